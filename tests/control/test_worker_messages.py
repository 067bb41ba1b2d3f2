"""What is believed of a worker's words: the bounds, and that honest words pass them unchanged."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from fairlead import wire
from fairlead.control import worker_messages
from fairlead.control.worker_messages import DEEPEST, MOST, Nonsense, checked, plain_value, stage_result

SINCE_S, NOW_S = 1.8e9, 1.8e9 + 100.0
ROW = {"step": 3.0, "time_s": NOW_S - 1.0, "loss": math.nan, "epoch": 0.0}
HONEST: list[Any] = [
    wire.Ready(), wire.Ready(100, 2, 10, 5, 3, "fsdp", wire.Glance(0.0, 1e-6, 0.0)), wire.Joined(1, 0), wire.Left(1, 3),
    wire.Broken(1, 3, "x" * 10_000), wire.Progress(1, 3, 9, steps=[ROW], share=1.0),
    wire.Snapshot(1, 3, "disk", 9, 0.1),
    wire.Finished(1, 3, {"a": math.nan}, ["model"], {"kind": "plain", "plain": [1, {"a": None}], "shown": "x"}),
    wire.Finished(1, 3, value={"kind": "block", "block": "ab", "bytes": 7, "shown": "x"}),
    wire.Raised("x" * 100_000), wire.Exited(None, 9), wire.Profiled({"layers": []}, 0.5),
]  # fmt: skip


def says(body: Any) -> Any:
    return checked(body, SINCE_S, NOW_S)


@pytest.mark.parametrize("body", HONEST, ids=lambda body: type(body).__name__)
def test_honest_words_pass_as_they_are(body: Any) -> None:
    assert repr(says(body)) == repr(body)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "body",
    [
        wire.Ready(samples=2**40, epochs=2**40), wire.Ready(plan="x"), wire.Ready(parameters=-1),
        wire.Ready(resumable_step=MOST + 1), wire.Ready(glance=wire.Glance(0.0, 0.0, 1.0)),
        wire.Ready(glance=wire.Glance(1e9, 0.0, 1.0)), wire.Ready(glance=wire.Glance(-1.0, 2.0, 1.0)),
        wire.Ready(glance=wire.Glance(1.0, 0.0, math.inf)), wire.Joined(-1, 0), wire.Left(1, 2**60),
        wire.Progress(1, 2, 9, step_s=math.inf), wire.Progress(1, 2, 9, compute_s=-1.0),
        wire.Progress(1, 2, 9, share=2.0), wire.Progress(1, 2, 9, slow_s=math.nan), wire.Progress(1, 2, 9, epoch=-1),
        wire.Progress(1, 10**10, 10**10), wire.Progress(1, 2, 9, steps=[{"loss": 1.0}]),
        wire.Progress(1, 2, 9, steps=[ROW | {"step": 1e12}]), wire.Progress(1, 2, 9, steps=[ROW | {"time_s": 5.0}]),
        wire.Progress(1, 2, 9, steps=[ROW | {"time_s": math.nan}]),
        wire.Progress(1, 2, 9, steps=[ROW | {"x" * 201: 1.0}]),
        wire.Progress(1, 2, 9, steps=[ROW | {f"m{at}": 1.0 for at in range(1024)}]),
        wire.Finished(1, 2, {f"{at:03d}" + "x" * 190: 1.0 for at in range(130)}),
        wire.Profiled({"a": nested(DEEPEST)}), wire.Profiled(seconds=math.inf), wire.Snapshot(1, 1, "disk", -1, 0.0),
        wire.Snapshot(1, 1, "disk", 1, 0.0, math.inf), wire.Finished(1, 1, artifacts=["x" * 5000]),
        wire.Finished(1, 1, made={"a": b"x"}), wire.Finished(1, 1, lineage={"a": {1: 2}}),
        wire.Finished(1, 1, value={"kind": "file"}), wire.Raised("", missing=["x" * 501]),
    ],
    ids=repr,
)  # fmt: skip
def test_what_no_honest_worker_would_say_is_refused(body: Any) -> None:
    with pytest.raises(Nonsense):
        says(body)


@pytest.mark.parametrize("total", [2, 0])
def test_a_total_that_was_passed_is_not_known(total: int) -> None:
    assert says(wire.Progress(1, 3, total)).total_steps == 0


def test_times_are_brought_between_submission_and_now() -> None:
    rows = [ROW | {"time_s": time_s} for time_s in (SINCE_S - 1e6, SINCE_S, NOW_S, NOW_S + 1.0, NOW_S + 1e6)]
    times = [row["time_s"] for row in says(wire.Progress(1, 3, 9, steps=rows)).steps]
    assert times == [SINCE_S, SINCE_S, NOW_S, NOW_S, NOW_S]


MOST_STEPS = int(worker_messages.STEPS_PER_S * (NOW_S - SINCE_S + worker_messages.SLACK_S))


@pytest.mark.parametrize("said", [
    lambda step: wire.Finished(1, step), lambda step: wire.Snapshot(1, step, "disk", 5, 1.0),
    lambda step: wire.Joined(1, step), lambda step: wire.Left(1, step), lambda step: wire.Broken(1, step, "x"),
    lambda step: wire.Progress(1, step, 2**53), lambda step: wire.Ready(resumable_step=step),
])  # fmt: skip
def test_every_word_of_a_step_has_the_same_bound(said: Callable[[int], Any]) -> None:
    assert says(said(MOST_STEPS)) == said(MOST_STEPS)
    for step in (MOST_STEPS + 1, 2**53, -1):
        with pytest.raises(Nonsense, match="step"):
            says(said(step))


def test_nothing_took_longer_than_the_job_is_old() -> None:
    longest_s = NOW_S - SINCE_S + worker_messages.SLACK_S
    snapshot = says(wire.Snapshot(1, 3, "disk", 9, 1e8, 1e7))
    assert (snapshot.seconds, snapshot.waited_s) == (longest_s, longest_s)
    assert says(wire.Progress(1, 3, 9, slow_s=1e8)).slow_s == longest_s


def test_the_metrics_of_a_model_of_a_thousand_classes_are_honest() -> None:
    row = ROW | {f"accuracy_n{at:08d}": 0.5 for at in range(1000)}
    assert len(says(wire.Progress(1, 3, 9, steps=[row])).steps[0]) == 1004


def test_values_are_bounded_in_depth_and_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    plain_value(nested(DEEPEST - 1), "it")
    with pytest.raises(Nonsense, match="deep"):
        plain_value(nested(DEEPEST), "it")
    monkeypatch.setattr(worker_messages, "MOST_PARTS", 10)
    plain_value([1] * 9, "it")
    with pytest.raises(Nonsense, match="parts"):
        plain_value([1] * 10, "it")


@pytest.mark.parametrize("size", [True, -1, 2**54, "7"])
def test_a_result_that_refers_to_nothing_is_refused(size: Any) -> None:
    with pytest.raises(Nonsense, match="nothing"):
        stage_result({"kind": "block", "block": "ab", "bytes": size})
    with pytest.raises(Nonsense, match="bytes"):
        stage_result({"kind": "plain", "plain": "x" * (64 << 10)})
