"""The verb lineage: where a job's result came from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.cli import output
from fairlead.cli.options import JobRef, Json, client

if TYPE_CHECKING:
    from fairlead.views.datasets import InputView, LineageView, StretchView

SHORT = 12  # characters of a hash that are shown
BLOCKS_SHOWN = 4
EXPECTED = {"bits": "identical weights", "tolerance": "the same weights except for rounding"}


def lineage(job: JobRef, as_json: Json = False) -> None:
    """Show where a job's result came from: data, recipe, code, settings, generations, weights."""
    found = client().lineage(job)
    if as_json:
        output.print_json(found)
        return
    output.line(f"{found.job} of tenant {found.tenant}: {found.state}")
    for line in _tree(found):
        output.line(output.clean(line))


def _tree(found: LineageView) -> list[str]:
    """The lineage as the lines of a tree."""
    lines = [line for each in found.data for line in _input(each)]
    lines += [f"├─ code {_short(found.code)}  {found.run or ' '.join(found.command or ())}"]
    if found.params:
        lines.append("│    " + "  ".join(f"{name}={value}" for name, value in found.params.items()))
    lines += [f"├─ seed {found.seed}"] if found.seed is not None else []
    if found.environment:
        lines.append("├─ " + "  ".join(f"{name} {value}" for name, value in found.environment.items()))
    lines += [f"├─ {line}" for line in map(_generation, found.history)]
    lines += [f"├─ data set {each.name}@{each.version[:SHORT]}: {each.rows} rows" for each in found.made]
    lines.append(f"└─ weights {_short(found.weights)}" if found.weights else "└─ no weights yet")
    if found.rerun_of is not None:
        same = {True: "identical weights", False: f"different weights: {found.why}", None: "not ended yet"}
        lines.append(f"   rerun of {found.rerun_of}: {same[found.same_weights]}")
    if found.repeats and found.weights:
        lines.append(f"   a rerun yields {EXPECTED[found.repeats]}: {found.why}")
    return lines


def _input(data: InputView) -> list[str]:
    lines = [f"├─ data set {data.name}@{data.version[:SHORT]}: {data.rows} rows"]
    lines += [f"│    loaded by {data.loaded_by}"] if data.loaded_by else ["│    dropped meanwhile"]
    lines += [f"│    recipe {_short(data.recipe)}"] if data.recipe else []
    if data.blocks:
        rest = f" and {len(data.blocks) - BLOCKS_SHOWN} more" if len(data.blocks) > BLOCKS_SHOWN else ""
        lines.append(f"│    blocks {', '.join(data.blocks[:BLOCKS_SHOWN])}{rest}")
    return lines


def _generation(part: StretchView) -> str:
    nodes = ", ".join(dict.fromkeys(part.nodes))
    since = f" from step {part.first_step}" if part.first_step is not None else ""
    plan = f" with plan {part.plan}" if part.plan else ""
    ended = f" → {part.outcome}" if part.outcome else ""
    count = f"{part.workers} worker{'s' if part.workers > 1 else ''}"
    return f"generation {part.generation}: {count} on {nodes}{plan}{since}{ended}"


def _short(text: str | None) -> str:
    return (text or "–").removeprefix("sha256:")[:SHORT]
