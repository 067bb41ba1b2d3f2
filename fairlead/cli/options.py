"""Options shared by several verbs, and the parsers of their values."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairlead.errors import InvalidSpec
from fairlead.units import is_duration, parse_duration

if TYPE_CHECKING:  # importing the client takes longer than --help
    from fairlead.sdk.client import Client

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object, for scripts.")]
JobRef = Annotated[str, typer.Argument(metavar="JOB", help="Job id, its first characters, or a job's name.")]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Show progress until the job has ended.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show whether, where and when it would run.")]
Folder = Annotated[
    Path | None,
    typer.Option("--folder", help="Folder to upload as the job's code; default: the file's, or the current one."),
]
Csv = Annotated[bool, typer.Option("--csv", help="Print all rows as comma-separated values.")]
TenantRef = Annotated[str, typer.Argument(metavar="TENANT", help="The tenant's name.")]
Tenant = Annotated[str | None, typer.Option("--tenant", "-t", help="The tenant; default: that of the token.")]
HomeDir = Annotated[Path | None, typer.Option("--home", help="The platform's home folder; default: FAIRLEAD_HOME.")]
SINCE_HELP = "From this time on: 12h, 30d (ago), or 2026-11-01 (UTC)."


def quiet_imports() -> None:
    """Keep httpx from importing its own command line, which costs start-up time."""
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]


def client(home: Path | None = None) -> Client:
    """A client of the platform that this command talks to."""
    quiet_imports()
    from fairlead.sdk.client import Client

    return Client(home=home)


def parse_pairs(option: str, texts: list[str] | None) -> dict[str, str]:
    """Options of the form ``name=value`` as a mapping."""
    found: dict[str, str] = {}
    for text in texts or []:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InvalidSpec(f"{text!r} is not of the form name=value", field=option, fix=f"write {option} name=value")
        found[name] = value
    return found


def invalid_value(option: str, text: str, error: ValueError, fix: str) -> InvalidSpec:
    """The error for an option's value, with a fix written for this option instead of the parser's."""
    return InvalidSpec(f"{text!r} {str(error).partition('; ')[0]}", field=option, value=text, fix=fix)


def parse_value(text: str) -> Any:
    """A parameter's value: JSON, True, False or None if it parses as such, else text."""
    import json

    words = {"True": True, "False": False, "None": None}
    if text in words:
        return words[text]
    try:
        return json.loads(text)
    except ValueError:
        return text


def parse_moment(option: str, text: str) -> float:
    """A time in the past as epoch seconds: a duration ago (``12h``), or a date or time (UTC by default)."""
    if is_duration(text):
        return max(0.0, time.time() - float(parse_duration(text)))
    try:
        written = datetime.fromisoformat(text)
    except ValueError:
        fix = "write it like 12h, 30d, 2026-11-01 or 2026-11-01T12:00"
        raise InvalidSpec(f"{text!r} is neither a time nor a duration", field=option, value=text, fix=fix) from None
    return (written if written.tzinfo else written.replace(tzinfo=UTC)).timestamp()


def parse_sla(text: str | None) -> dict[str, str] | None:
    """An SLA as the API takes it: a class, a deadline (duration or time), or ``none``."""
    if text is None:
        return None
    if text == "none":
        return {}
    if text.isalpha() and text not in ("gold", "silver", "bronze"):
        fix = "write gold, silver, bronze, none, a duration like 30m, or a time like 2030-01-31T12:00:00Z"
        raise InvalidSpec(f"{text!r} is neither an SLA class nor a deadline", field="--sla", value=text, fix=fix)
    return {"class" if text in ("gold", "silver", "bronze") else "deadline": text}
