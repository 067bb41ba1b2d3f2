"""The verb doctor: checks the machine, the home and the running platform, and prints fixes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fairlead.cli import output
from fairlead.cli.options import HomeDir, Json
from fairlead.home import default_home

if TYPE_CHECKING:
    from fairlead.cli.doctor.finding import Finding

    Check = Callable[[Path], Iterable[Finding]]


def doctor(
    home: HomeDir = None,
    quick: Annotated[bool, typer.Option("--quick", help="Skip torch, which takes seconds to load.")] = False,
    as_json: Json = False,
) -> None:
    """Check this machine, the home and the running platform. Exit code 1 if a check fails."""
    folder = (home or default_home()).expanduser().absolute()
    findings = []
    for finding in _findings(folder, quick):
        findings.append(finding)
        if not as_json:
            _show(finding)
    failed = sum(finding.level == "fail" for finding in findings)
    warned = sum(finding.level == "warn" for finding in findings)
    if as_json:
        output.print_json({"ok": not failed, "home": str(folder), "checks": [asdict(finding) for finding in findings]})
    else:
        output.line(_summary(len(findings), failed, warned))
    if failed:
        raise typer.Exit(1)


def _checks(quick: bool) -> list[Check]:
    from fairlead.cli.doctor import home as home_dir
    from fairlead.cli.doctor import isolation, machine, platform

    return [
        machine.python, *([] if quick else [machine.torch]), isolation.control_groups, isolation.namespaces,
        isolation.bubblewrap, isolation.seccomp, machine.shared_memory, machine.limits, machine.clock, machine.port,
        home_dir.owner_and_modes, home_dir.room, home_dir.file_system, home_dir.secrets_key, home_dir.certificate,
        platform.platform, platform.store,
    ]  # fmt: skip


def _findings(home: Path, quick: bool) -> Iterator[Finding]:
    from fairlead.cli.doctor.finding import fail
    from fairlead.errors import FairleadError

    for check in _checks(quick):
        name = check.__name__.replace("_", " ")
        try:
            yield from check(home)
        except (OSError, ValueError, FairleadError) as error:  # a check that cannot run is a finding, too
            yield fail(name, f"could not be checked: {error}", "check it by hand; all other checks ran")


def _show(finding: Finding) -> None:
    style = {"ok": "green", "warn": "yellow", "fail": "red"}[finding.level]
    output.line(f"{finding.level:<4}", style, rest=f"  {finding.name:<14}  {output.clean(finding.text)}")
    if finding.fix is not None and finding.level != "ok":
        output.line(f"{'':<22}fix: {finding.fix}")


def _summary(checks: int, failed: int, warned: int) -> str:
    if not failed and not warned:
        return f"all {checks} checks passed"
    counts = ((failed, "failure"), (warned, "warning"))
    parts = [f"{count} {word}{'' if count == 1 else 's'}" for count, word in counts if count]
    return f"{' and '.join(parts)} in {checks} checks"
