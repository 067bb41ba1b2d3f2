"""Checks messages of workers, which are hostile: bounds size, depth and meaning before anything is computed from them.
Pure.

The node bounds length and rate of messages before that (``agent/node/worker_stream.py``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from fairlead import wire
from fairlead.planning.plan_choice import PLAN_FAMILIES

MOST = 2**53  # limit of every count
MOST_SECONDS = 1e8  # three years
MOST_BYTES = 1e16
LARGEST_VALUE = 64 << 10  # bytes of a reference to a stage's result
DEEPEST = 32  # levels of nested values
MOST_PARTS = 1_000_000  # of one value, all levels together
MOST_STEPS = 100_000  # in one message
MOST_METRICS = 1024  # of one step or result
LONGEST_METRIC = 200  # characters of a metric's name
METRIC_NAMES_BYTES = 24 << 10  # of all names of a step together
LONGEST_NAME = 500
LONGEST_PATH = 4096
MOST_ARTIFACTS = 100_000
MOST_MISSING = 500
STEPS_PER_S = 1e6  # no real step is faster
SLACK_S = 5.0  # added to a job's age, as clocks differ


class ImplausibleMessage(ValueError):
    """A message that no honest worker sends; the text is for its tenant."""


def check_message(body: wire.FromWorker | wire.Exited, since_s: float, now_s: float) -> wire.FromWorker | wire.Exited:
    """The message with times bounded to lie between ``since_s``, when its job was submitted, and now.

    Raises :class:`ImplausibleMessage` for what no honest worker sends.
    """
    age_s = max(0.0, now_s - since_s) + SLACK_S
    match body:
        case wire.Ready():
            _check_ready(body)
            _check_step(body.resumable_step, age_s)
        case wire.Progress():
            _check_progress(body, age_s)
            return replace(
                body, total_steps=body.total_steps if body.step <= body.total_steps else 0,  # unknown
                slow_s=min(body.slow_s, age_s), steps=[_with_bounded_time(step, since_s, now_s) for step in body.steps],
            )  # fmt: skip
        case wire.Profiled():
            _check_seconds(seconds=body.seconds)
            check_plain_value(body.profile, "the profile")
        case wire.Snapshot():
            _check_counts(generation=body.generation, size_bytes=body.size_bytes)
            _check_step(body.step, age_s)
            _check_seconds(seconds=body.seconds, waited_s=body.waited_s)
            return replace(body, seconds=min(body.seconds, age_s), waited_s=min(body.waited_s, age_s))
        case wire.Finished():
            _check_finished(body)
            _check_step(body.step, age_s)
        case wire.Raised():
            _check_names("missing stages", body.missing[:MOST_MISSING], MOST_MISSING)
        case wire.Exited():  # sent by its node
            pass
        case _:  # Joined, Left, Broken, and other messages about a generation
            _check_counts(generation=body.generation)
            _check_step(body.step, age_s)
    return body


def _check_ready(body: wire.Ready) -> None:
    _check_counts(
        samples=body.samples, epochs=body.epochs, batch_size=body.batch_size, parameters=body.parameters,
        resumable_step=body.resumable_step, steps=body.samples * body.epochs,
    )  # fmt: skip
    if body.plan not in PLAN_FAMILIES:
        raise ImplausibleMessage("requests an unknown kind of plan")
    seen = body.glance
    if seen is not None:
        _check_seconds(fixed_s=seen.fixed_s, sample_s=seen.sample_s)
        _check_bounds("kept_bytes", seen.kept_bytes, MOST_BYTES)
        if seen.fixed_s + seen.sample_s <= 0:
            raise ImplausibleMessage("claims that a pass of its model takes no time")


def _check_progress(body: wire.Progress, age_s: float) -> None:
    _check_counts(generation=body.generation, total_steps=body.total_steps, epoch=body.epoch)
    _check_step(body.step, age_s)
    _check_seconds(step_s=body.step_s, compute_s=body.compute_s, slow_s=body.slow_s)
    _check_bounds("samples_per_s", body.samples_per_s, MOST)
    _check_bounds("share", body.share, 1.000001)
    most = STEPS_PER_S * age_s
    if len(body.steps) > MOST_STEPS:
        raise ImplausibleMessage(f"reports {len(body.steps)} steps at once, more than {MOST_STEPS}")
    for step in body.steps:
        _check_metrics(step)
        if not 0 <= step.get("step", -1.0) <= most:
            raise ImplausibleMessage("reports a step that cannot have been made")


def _with_bounded_time(step: Mapping[str, float], since_s: float, now_s: float) -> dict[str, float]:
    """The step with its time bounded to lie between the job's submission and now."""
    time_s = step.get("time_s")
    if time_s is None:
        return dict(step)
    if not (math.isfinite(time_s) and abs(time_s - now_s) <= MOST_SECONDS):
        raise ImplausibleMessage("reports a step at an impossible time")
    return {**step, "time_s": min(max(time_s, since_s), now_s)}


def _check_finished(body: wire.Finished) -> None:
    _check_counts(generation=body.generation)
    _check_metrics(body.metrics)
    _check_names("artifacts", body.artifacts, MOST_ARTIFACTS, LONGEST_PATH)
    for what, value in (("its lineage", body.lineage), ("its data sets", body.made)):
        check_plain_value(value, what)
    if body.value:
        check_stage_result(body.value)


def check_stage_result(value: Mapping[str, Any]) -> None:
    """Raise :class:`ImplausibleMessage` unless this refers to a result as ``pipelines/results.py`` writes it."""
    check_plain_value(value, "its result")
    if len(msgspec.json.encode(value)) > LARGEST_VALUE:
        raise ImplausibleMessage(f"has a result reference of more than {LARGEST_VALUE} bytes")
    size = value.get("bytes", 0)
    sound = isinstance(size, int) and not isinstance(size, bool) and 0 <= size <= MOST
    words = [value.get("shown", ""), value.get("block", "")]
    if value.get("kind") not in ("plain", "block") or not sound or not all(isinstance(word, str) for word in words):
        raise ImplausibleMessage("has an invalid result reference")


def check_plain_value(value: Any, what: str) -> None:
    """Raise :class:`ImplausibleMessage` unless this is plain data (as in JSON) of bounded depth."""
    level, seen = [value], 0
    for _ in range(DEEPEST):
        seen += len(level)
        if seen > MOST_PARTS:
            raise ImplausibleMessage(f"{what} has more than {MOST_PARTS} parts")
        level = [part for each in level for part in _parts(each, what)]
        if not level:
            return
    raise ImplausibleMessage(f"{what} is nested more than {DEEPEST} deep")


def _parts(value: Any, what: str) -> Sequence[Any]:
    if isinstance(value, dict):
        if not all(isinstance(name, str) for name in value):
            raise ImplausibleMessage(f"{what} has keys that are not text")
        return list(value.values())
    if isinstance(value, list | tuple):
        return value
    if value is None or isinstance(value, str | int | float):
        return ()
    raise ImplausibleMessage(f"{what} is not plain data")


def _check_metrics(named: Mapping[str, float]) -> None:
    if len(named) > MOST_METRICS:
        raise ImplausibleMessage(f"reports {len(named)} metrics, more than {MOST_METRICS}")
    if any(len(name) > LONGEST_METRIC for name in named):
        raise ImplausibleMessage(f"has a metric name of more than {LONGEST_METRIC} characters")
    if sum(len(name.encode(errors="replace")) for name in named) > METRIC_NAMES_BYTES:
        raise ImplausibleMessage(f"has metric names of more than {METRIC_NAMES_BYTES} bytes together")


def _check_names(what: str, names: Sequence[str], most: int, longest: int = LONGEST_NAME) -> None:
    if len(names) > most or any(len(name) > longest for name in names):
        raise ImplausibleMessage(f"has too many or too long {what}: at most {most}, of at most {longest} characters")


def _check_step(step: int, age_s: float) -> None:
    """A step number is bounded by the job's age: no step takes no time."""
    _check_bounds("step", step, MOST)
    if step > STEPS_PER_S * age_s:
        raise ImplausibleMessage(f"claims {step} steps, more than are possible since it began")


def _check_counts(**named: int) -> None:
    for name, count in named.items():
        _check_bounds(name, count, MOST)


def _check_seconds(**named: float) -> None:
    for name, seconds in named.items():
        _check_bounds(name, seconds, MOST_SECONDS)


def _check_bounds(name: str, number: float, most: float) -> None:
    if not (math.isfinite(number) and 0 <= number <= most):
        raise ImplausibleMessage(f"has {name} out of bounds: it must lie between 0 and {most:g}")
