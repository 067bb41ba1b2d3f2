"""The verb lineage: where a job's result came from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.cli import output
from fairlead.cli.options import JobRef, Json, client

if TYPE_CHECKING:
    from fairlead.views.datasets import InputView, LineageView, StretchView

SHORT = 12  # characters of a hash that people read
FEW = 4  # blocks that are named
EXPECTED = {"bits": "the same weights bit by bit", "tolerance": "the same weights but for rounding"}


def lineage(job: JobRef, as_json: Json = False) -> None:
    """Where a job's result came from: data set, recipe, blocks, code, run, weights; and what a rerun would give."""
    found = client().lineage(job)
    if as_json:
        output.print_json(found)
        return
    output.line(f"{found.job} of {found.tenant}: {found.state}")
    for line in _tree(found):
        output.line(output.clean(line))


def _tree(found: LineageView) -> list[str]:
    """The whole as lines, each under what it belongs to."""
    lines = [line for each in found.data for line in _input(each)]
    lines += [f"├─ code {_short(found.code)}  {found.run or ' '.join(found.command or ())}"]
    if found.params:
        lines.append("│    " + "  ".join(f"{name}={value}" for name, value in found.params.items()))
    lines += [f"├─ seed {found.seed}"] if found.seed is not None else []
    if found.environment:
        lines.append("├─ " + "  ".join(f"{name} {value}" for name, value in found.environment.items()))
    lines += [f"├─ {line}" for line in map(_stretch, found.history)]
    lines += [f"├─ data set {each.name}@{each.version[:SHORT]}: {each.rows} rows" for each in found.made]
    lines.append(f"└─ weights {_short(found.weights)}" if found.weights else "└─ no weights yet")
    if found.rerun_of is not None:
        same = {True: "the same weights, bit by bit", False: f"other weights: {found.why}", None: "not ended yet"}
        lines.append(f"   repeats {found.rerun_of}: {same[found.same_weights]}")
    if found.repeats and found.weights:
        lines.append(f"   a rerun gives {EXPECTED[found.repeats]}: {found.why}")
    return lines


def _input(data: InputView) -> list[str]:
    lines = [f"├─ data set {data.name}@{data.version[:SHORT]}: {data.rows} rows"]
    lines += [f"│    loaded by {data.loaded_by}"] if data.loaded_by else ["│    dropped since"]
    lines += [f"│    recipe {_short(data.recipe)}"] if data.recipe else []
    if data.blocks:
        rest = f" and {len(data.blocks) - FEW} more" if len(data.blocks) > FEW else ""
        lines.append(f"│    blocks {', '.join(data.blocks[:FEW])}{rest}")
    return lines


def _stretch(part: StretchView) -> str:
    nodes = ", ".join(dict.fromkeys(part.nodes))
    since = f" from step {part.first_step}" if part.first_step is not None else ""
    plan = f" as {part.plan}" if part.plan else ""
    ended = f" → {part.outcome}" if part.outcome else ""
    count = f"{part.workers} worker{'s' if part.workers > 1 else ''}"
    return f"generation {part.generation}: {count} on {nodes}{plan}{since}{ended}"


def _short(text: str | None) -> str:
    return (text or "–").removeprefix("sha256:")[:SHORT]
