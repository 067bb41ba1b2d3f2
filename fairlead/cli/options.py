"""Options that several verbs share, and how their texts become values."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairlead.errors import InvalidSpec
from fairlead.units import is_duration, parse_duration

if TYPE_CHECKING:  # the client costs more to import than all of --help
    from fairlead.sdk.client import Client

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object for machines.")]
JobRef = Annotated[str, typer.Argument(metavar="JOB", help="Id, the beginning of one, or name of a job.")]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Show progress until the job has ended.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say whether, where and when it would run.")]
Folder = Annotated[Path | None, typer.Option("--folder", help="The folder that goes along as the job's code.")]
Csv = Annotated[bool, typer.Option("--csv", help="Print all rows as comma-separated values.")]
TenantRef = Annotated[str, typer.Argument(metavar="TENANT", help="The tenant's name.")]
Tenant = Annotated[str | None, typer.Option("--tenant", "-t", help="For which tenant; default: the token's own.")]
HomeDir = Annotated[Path | None, typer.Option("--home", help="The platform's home folder; default: FAIRLEAD_HOME.")]
SINCE_HELP = "From this time on: 12h, 30d (ago), or 2026-11-01 (UTC)."


def quiet_imports() -> None:
    """httpx would import a command line of its own, with another parser and a highlighter; it can do without."""
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]


def client(home: Path | None = None) -> Client:
    """The platform that this command talks to."""
    quiet_imports()
    from fairlead.sdk.client import Client

    return Client(home=home)


def pairs(option: str, texts: list[str] | None) -> dict[str, str]:
    """``A=b`` options as a mapping."""
    found: dict[str, str] = {}
    for text in texts or []:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InvalidSpec(f"{text!r} is not of the form name=value", field=option, fix=f"write {option} name=value")
        found[name] = value
    return found


def unfit(option: str, text: str, error: ValueError, fix: str) -> InvalidSpec:
    """What to say of a text that an option cannot take, with this option's own advice instead of the parser's."""
    return InvalidSpec(f"{text!r} {str(error).partition('; ')[0]}", field=option, value=text, fix=fix)


def plain_value(text: str) -> Any:
    """A parameter's value as the number, truth or list that it looks like; anything else is text."""
    import json

    words = {"True": True, "False": False, "None": None}
    if text in words:
        return words[text]
    try:
        return json.loads(text)
    except ValueError:
        return text


def moment(option: str, text: str) -> float:
    """A moment in the past: so long ago (``12h``, ``30d``), or a date or time (UTC unless it says otherwise)."""
    if is_duration(text):
        return max(0.0, time.time() - float(parse_duration(text)))
    try:
        written = datetime.fromisoformat(text)
    except ValueError:
        fix = "write it like 12h, 30d, 2026-11-01 or 2026-11-01T12:00"
        raise InvalidSpec(f"{text!r} is neither a time nor a duration", field=option, value=text, fix=fix) from None
    return (written if written.tzinfo else written.replace(tzinfo=UTC)).timestamp()


def sla(text: str | None) -> dict[str, str] | None:
    """``gold``, ``silver``, ``bronze``, a time to be done within or by, or ``none``."""
    if text is None:
        return None
    if text == "none":
        return {}
    if text.isalpha() and text not in ("gold", "silver", "bronze"):
        fix = "write gold, silver, bronze, none, a duration like 30m, or a time like 2030-01-31T12:00:00Z"
        raise InvalidSpec(f"{text!r} is neither a class nor a deadline", field="--sla", value=text, fix=fix)
    return {"class" if text in ("gold", "silver", "bronze") else "deadline": text}
