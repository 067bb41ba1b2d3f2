"""What is believed of a worker's words: the bounds, and that honest words pass them unchanged."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from fairlead import wire
from fairlead.control.reconcile import worker_messages
from fairlead.control.reconcile.worker_messages import (
    DEEPEST,
    MOST,
    ImplausibleMessage,
    check_message,
    check_plain_value,
    check_stage_result,
)

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
    return check_message(body, SINCE_S, NOW_S)


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
    with pytest.raises(ImplausibleMessage):
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
        with pytest.raises(ImplausibleMessage, match="step"):
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
    check_plain_value(nested(DEEPEST - 1), "it")
    with pytest.raises(ImplausibleMessage, match="deep"):
        check_plain_value(nested(DEEPEST), "it")
    monkeypatch.setattr(worker_messages, "MOST_PARTS", 10)
    check_plain_value([1] * 9, "it")
    with pytest.raises(ImplausibleMessage, match="parts"):
        check_plain_value([1] * 10, "it")


@pytest.mark.parametrize("size", [True, -1, 2**54, "7"])
def test_a_result_that_refers_to_nothing_is_refused(size: Any) -> None:
    with pytest.raises(ImplausibleMessage, match="invalid result reference"):
        check_stage_result({"kind": "block", "block": "ab", "bytes": size})
    with pytest.raises(ImplausibleMessage, match="bytes"):
        check_stage_result({"kind": "plain", "plain": "x" * (64 << 10)})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MOST", 2**53), ("MOST_SECONDS", 1e8), ("MOST_BYTES", 1e16), ("LARGEST_VALUE", 65_536), ("DEEPEST", 32),
        ("MOST_PARTS", 1_000_000), ("MOST_STEPS", 100_000), ("MOST_METRICS", 1024), ("LONGEST_METRIC", 200),
        ("METRIC_NAMES_BYTES", 24_576), ("LONGEST_NAME", 500), ("LONGEST_PATH", 4096), ("MOST_ARTIFACTS", 100_000),
        ("MOST_MISSING", 500), ("STEPS_PER_S", 1e6), ("SLACK_S", 5.0),
    ],
)  # fmt: skip
def test_a_bound_is_what_it_was_when_workers_were_built_that_keep_to_it(name: str, value: float) -> None:
    """Workers run in virtual environments of their own, and may be older than the platform."""
    assert getattr(worker_messages, name) == value


EDGES: list[tuple[Callable[[Any], Any], Any, Any]] = [
    (lambda n: wire.Ready(samples=n), MOST, MOST + 1), (lambda n: wire.Ready(samples=n, epochs=2), MOST // 2, MOST),
    (lambda n: wire.Ready(batch_size=n), MOST, MOST + 1), (lambda n: wire.Ready(parameters=n), MOST, MOST + 1),
    (lambda n: wire.Ready(glance=wire.Glance(n, 0.0, 0.0)), 1e8, 1.1e8),
    (lambda n: wire.Ready(glance=wire.Glance(0.0, n, 0.0)), 1e8, 1.1e8),
    (lambda n: wire.Ready(glance=wire.Glance(1.0, 0.0, n)), 1e16, 1.1e16),
    (lambda n: wire.Ready(glance=wire.Glance(1.0, 0.0, n)), 0.0, -1.0),
    (lambda n: wire.Progress(n, 1, 2), MOST, MOST + 1), (lambda n: wire.Progress(1, 1, n), MOST, MOST + 1),
    (lambda n: wire.Progress(1, 1, 2, epoch=n), MOST, MOST + 1),
    (lambda n: wire.Progress(1, 1, 2, step_s=n), 1e8, 1.1e8),
    (lambda n: wire.Progress(1, 1, 2, compute_s=n), 1e8, 1.1e8),
    (lambda n: wire.Progress(1, 1, 2, samples_per_s=n), float(MOST), 1.1 * MOST),
    (lambda n: wire.Progress(1, 1, 2, share=n), 1.000001, 1.00001),
    (lambda n: wire.Progress(1, 1, 2, steps=[ROW] * n), 100_000, 100_001),
    (lambda n: wire.Progress(1, 1, 2, steps=[{f"{at:04d}": 1.0 for at in range(n)} | {"step": 1.0}]), 1023, 1024),
    (lambda n: wire.Progress(1, 1, 2, steps=[ROW | {"x" * n: 1.0}]), 200, 201),
    (lambda n: wire.Progress(1, 1, 2, steps=[ROW | {"step": n}]), float(MOST_STEPS), MOST_STEPS + 1.0),
    (lambda n: wire.Progress(1, 1, 2, steps=[ROW | {"step": n}]), 0.0, -1.0),
    (lambda n: wire.Progress(1, 1, 2, steps=[ROW | {"time_s": NOW_S + n}]), 1e8, 1.1e8),
    (lambda n: wire.Snapshot(n, 1, "disk", 1, 1.0), MOST, MOST + 1),
    (lambda n: wire.Snapshot(1, 1, "disk", n, 1.0), MOST, MOST + 1),
    (lambda n: wire.Snapshot(1, 1, "disk", 1, n), 1e8, 1.1e8), (lambda n: wire.Profiled(seconds=n), 1e8, 1.1e8),
    (lambda n: wire.Finished(n, 1), MOST, MOST + 1), (lambda n: wire.Joined(n, 1), MOST, MOST + 1),
    (lambda n: wire.Finished(1, 1, artifacts=["x" * n]), 4096, 4097),
    (lambda n: wire.Finished(1, 1, artifacts=["x"] * n), 100_000, 100_001),
    (lambda n: wire.Raised("", missing=["x" * n]), 500, 501),
    (lambda n: wire.Finished(1, 1, value={"kind": "plain", "plain": "x" * n}), 65_536 - 27, 65_536 - 26),
    (lambda n: wire.Finished(1, 1, value={"kind": "block", "bytes": n}), MOST, MOST + 1),
    (lambda n: wire.Finished(1, 1, value={"kind": "block", "shown": n}), "x", 7),
    (lambda n: wire.Finished(1, 1, value={"kind": "block", "block": n}), "x", 7),
    (lambda n: wire.Finished(1, 1, value={"kind": n}), "plain", "file"),
    (lambda n: wire.Finished(1, 1, {f"{at:03d}" + "x" * 189: 1.0 for at in range(n)}), 128, 129),
]  # fmt: skip


@pytest.mark.parametrize("place", range(len(EDGES)))
def test_what_lies_on_a_bound_is_believed_and_what_lies_beyond_is_not(place: int) -> None:
    say, good, bad = EDGES[place]
    says(say(good))
    with pytest.raises(ImplausibleMessage):
        says(say(bad))


def test_a_job_that_seems_not_even_submitted_has_a_few_seconds() -> None:
    young = check_message(wire.Joined(1, 5_000_000), NOW_S + 100.0, NOW_S)
    assert young == wire.Joined(1, 5_000_000)
    with pytest.raises(ImplausibleMessage):
        check_message(wire.Joined(1, 5_000_001), NOW_S + 100.0, NOW_S)


def test_more_missing_stages_than_are_looked_at_are_nobodys_trouble() -> None:
    says(wire.Raised("", missing=["x"] * 501))
    says(wire.Raised("", missing=["x"] * 500 + ["x" * 501]))


def test_a_step_without_a_time_stays_without_one() -> None:
    row = {"step": 1.0, "loss": 0.5}
    assert says(wire.Progress(1, 1, 2, steps=[row])).steps == [row]
