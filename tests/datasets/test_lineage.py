"""What workers say of their results is checked, and what a rerun promises follows from it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from fairlead.cluster import Member
from fairlead.control.datasets import check_manifest
from fairlead.control.lineage import (
    BITS,
    MOST_BYTES,
    TOLERANCE,
    ReportedOrigin,
    check_origin,
    differences,
    what_repeats,
)
from fairlead.control.records import Generation, GenerationPhase


def generation(number: int, workers: int, plan: str = "dp2") -> Generation:
    members = tuple(Member(f"w{rank}", rank, f"node-{rank}", 0) for rank in range(workers))
    return Generation("j", number, GenerationPhase.ENDED, members, "", "", 0.0, running_s=1.0, plan={"id": plan})


def said(*course: tuple[int, int, str], **fields: Any) -> ReportedOrigin:
    return ReportedOrigin(course=[(step, world, plan, [1 / world] * world) for step, world, plan in course],
                **{"repeats": True, **fields})  # fmt: skip


def test_one_number_of_workers_under_one_plan_gives_the_same_bits() -> None:
    found = what_repeats(said((0, 2, "replicas"), (40, 2, "replicas")), [generation(1, 2), generation(2, 2)])
    assert (found.gives, found.workers) == (BITS, 2)
    assert found.plan == {"id": "dp2"}


@pytest.mark.parametrize(
    ("what", "word"),
    [
        (said((0, 1, "replicas"), (9, 2, "replicas")), "1 and 2 workers"),
        (said((0, 2, "replicas"), (9, 2, "ddp")), "changed its plan"),
        (said((0, 1, "replicas"), repeats=False, why_not="sums on cuda"), "sums on cuda"),
        (ReportedOrigin(why_not="its loop is its own"), "its loop is its own"),
        (None, "says nothing"),
    ],
)
def test_whatever_else_is_repeated_but_for_rounding_and_says_why(what: ReportedOrigin | None, word: str) -> None:
    found = what_repeats(what, [generation(1, 2)])
    assert found.gives == TOLERANCE
    assert word in found.why


@pytest.mark.parametrize(
    "nonsense",
    [
        {"course": [[0, 1, "p", [math.nan]]]},
        {"course": "everything"},
        {"seed": "none"},
        {"why_not": "x" * 1000},
        {"environment": {"torch": ["2"]}},
        {"weights": "y" * MOST_BYTES},
    ],
)
def test_what_no_honest_worker_would_say_is_not_believed(nonsense: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="lineage"):
        check_origin(nonsense)


GOOD = {"name": "bank", "version": "ab" * 32, "rows": 3, "blocks": [{"id": "b1", "rows": 3, "bytes": 12}]}


def test_a_manifest_is_read_as_far_as_the_control_plane_needs_it() -> None:
    found = check_manifest({**GOOD, "schema": {"age": "float"}, "watermark": {}})
    assert (found.name, found.rows, found.blocks[0].id) == ("bank", 3, "b1")


@pytest.mark.parametrize(
    "wrong",
    [{"name": "../bank"}, {"version": "newest"}, {"rows": 4}, {"rows": -1}, {"blocks": [{"id": 1}]}, {"parent": "-"}],
)
def test_a_manifest_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="manifest"):
        check_manifest(GOOD | wrong)


def test_environments_are_compared_in_words() -> None:
    assert differences({"torch": "2", "python": "3"}, {"torch": "2", "python": "3"}) == ""
    assert differences({"torch": "2"}, {"torch": "3"}) == "torch 2 then, 3 now"
