"""The verb usage: device hours, CPU hours and jobs, from the usage ledger."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from fairlead.cli import output
from fairlead.cli.options import SINCE_HELP, Csv, Json, Tenant, client, parse_moment
from fairlead.cli.text_tables import Column
from fairlead.errors import InvalidSpec

if TYPE_CHECKING:
    from fairlead.views.jobs import UsageLine

MAX_LINES = 100_000


def usage(
    by: Annotated[
        str, typer.Option("--by", help="tenant, user, label, label:KEY, job, node, device; comma-separated.")
    ] = "tenant",
    since: Annotated[str, typer.Option("--since", help=SINCE_HELP)] = "30d",
    until: Annotated[str | None, typer.Option("--until", help="Until this time; default: now.")] = None,
    tenant: Tenant = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=MAX_LINES, help="Maximum rows of the table.")] = 50,
    as_csv: Csv = False,
    as_json: Json = False,
) -> None:
    """Show device hours, CPU hours and jobs from the usage ledger."""
    keys = [name.strip() for name in by.split(",")]
    whole = as_csv or as_json
    since_s, until_s = parse_moment("--since", since), None if until is None else parse_moment("--until", until)
    if since_s >= (time.time() if until_s is None else until_s):
        end = "now" if until is None else f"--until {until}"
        fix = "give an earlier time"
        raise InvalidSpec(f"{since!r} is not before {end}", field="--since", value=since, fix=fix)
    answer = client().usage(keys, since_s=since_s, until_s=until_s, tenant=tenant, limit=MAX_LINES if whole else limit)
    if as_json:
        output.print_json(answer)
    elif as_csv:
        titles = [*keys, *(["user_label"] if "user" in keys else []), "device_hours", "cpu_hours", "jobs"]
        output.csv(titles, (_cells(keys, line, line.device_hours, line.cpu_hours, "") for line in answer.lines))
    else:
        columns = [Column(key.upper() if ":" not in key else key) for key in keys]
        columns += [Column("LABEL")] if "user" in keys else []
        columns += [Column(name, right=True) for name in ("DEVICE HOURS", "CPU HOURS", "JOBS")]
        lines = [*answer.lines, *([answer.total] if len(answer.lines) > 1 else [])]
        rows = (_cells(keys, line, _hours(line.device_hours), _hours(line.cpu_hours), "–") for line in lines)
        output.table(columns, rows, empty="no usage in this period")
        if answer.groups > len(answer.lines):
            output.line(f"the first {len(answer.lines)} of {answer.groups} (--limit N shows more, --csv all)")


def _hours(hours: float) -> str:
    """Hours with three decimals, or two significant digits below 0.01 h (36 s)."""
    if 0 < hours < 0.01:
        return output.number(hours, 2)
    return f"{hours:,.1f}" if hours >= 100 else f"{hours:.3f}"


def _cells(keys: list[str], line: UsageLine, device_hours: object, cpu_hours: object, none: str) -> list[object]:
    """The cells of one line; the total line has no keys and is labelled ``total``."""
    of = [line.keys.get(key) or none for key in keys] if line.keys else ["total", *[""] * (len(keys) - 1)]
    label = [line.user_label or ("" if not line.keys else none)] if "user" in keys else []
    return [*of, *label, device_hours, cpu_hours, line.jobs]
