"""The verb profile: measures the speed of this node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fairlead.cli import output
from fairlead.cli.options import HomeDir, Json
from fairlead.home import Home, default_home
from fairlead.units import shown_size

if TYPE_CHECKING:
    pass


def profile(
    again: Annotated[bool, typer.Option("--again", help="Measure again, even if a profile exists.")] = False,
    home: HomeDir = None,
    as_json: Json = False,
) -> None:
    """Measure this node's FLOP/s, memory, disk and network between workers, and keep the result in the home."""
    from fairlead.profiling.profile_cache import node_profile

    found = node_profile(Home(home or default_home()), again=again)
    if as_json:
        output.print_json(found)
        return
    link = found["links"]["gloo"]
    rows = [
        ("device", f"{found['device_name']}{' (virtual)' if found['virtual'] else ''}, {found['cores']} cores"),
        ("memory", f"{shown_size(found['memory_bytes'])}, {shown_size(found['memory_bytes_per_s'])}/s"),
        *((f"{name} per core", f"{flops / 1e9:.1f} GFLOP/s") for name, flops in found["flops_per_s"].items()),
        ("disk", f"{shown_size(found['disk_write_bytes_per_s'])}/s (writing)"),
        ("link (gloo)", f"{shown_size(link['bytes_per_s'])}/s, {link['latency_s'] * 1e6:.0f} µs"),
    ]
    for name, text in rows:
        output.line(f"{name:<18} {text}")
