"""What a worker says is hostile: bounded here in size, depth and meaning, before anything is reckoned from it. Pure.

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

MOST = 2**53  # of anything that a worker counts
MOST_SECONDS = 1e8  # three years
MOST_BYTES = 1e16
LARGEST_VALUE = 64 << 10  # bytes of a reference to what a stage gave
DEEPEST = 32  # of values in values
MOST_PARTS = 1_000_000  # of one value, all levels together
MOST_STEPS = 100_000  # in one message
MOST_METRICS = 1024  # of one step, or of a result
LONGEST_METRIC = 200  # characters of its name
METRIC_NAMES_BYTES = 24 << 10  # of all names of a step together
LONGEST_NAME = 500
LONGEST_PATH = 4096
MOST_ARTIFACTS = 100_000
MOST_MISSING = 500
STEPS_PER_S = 1e6  # no step takes no time
SLACK_S = 5.0  # that a job may seem younger than it is


class ImplausibleMessage(ValueError):
    """What no honest worker would say, in words for its tenant."""


def checked(body: wire.FromWorker | wire.Exited, since_s: float, now_s: float) -> wire.FromWorker | wire.Exited:
    """The message as it can be believed: times and steps lie between ``since_s``, when its job was submitted, and now.

    Raises :class:`ImplausibleMessage` for what no honest worker would say.
    """
    age_s = max(0.0, now_s - since_s) + SLACK_S
    match body:
        case wire.Ready():
            _ready(body)
            _steps(body.resumable_step, age_s)
        case wire.Progress():
            _progress(body, age_s)
            return replace(
                body, total_steps=body.total_steps if body.step <= body.total_steps else 0,  # not known
                slow_s=min(body.slow_s, age_s), steps=[_timed(step, since_s, now_s) for step in body.steps],
            )  # fmt: skip
        case wire.Profiled():
            _seconds(seconds=body.seconds)
            plain_value(body.profile, "the profile")
        case wire.Snapshot():
            _counts(generation=body.generation, size_bytes=body.size_bytes)
            _steps(body.step, age_s)
            _seconds(seconds=body.seconds, waited_s=body.waited_s)
            return replace(body, seconds=min(body.seconds, age_s), waited_s=min(body.waited_s, age_s))
        case wire.Finished():
            _finished(body)
            _steps(body.step, age_s)
        case wire.Raised():
            _names("missing stages", body.missing[:MOST_MISSING], MOST_MISSING)
        case wire.Exited():  # its node's words
            pass
        case _:  # Joined, Left, Broken, and whatever comes to be said of a generation
            _counts(generation=body.generation)
            _steps(body.step, age_s)
    return body


def _ready(body: wire.Ready) -> None:
    _counts(
        samples=body.samples, epochs=body.epochs, batch_size=body.batch_size, parameters=body.parameters,
        resumable_step=body.resumable_step, steps=body.samples * body.epochs,
    )  # fmt: skip
    if body.plan not in PLAN_FAMILIES:
        raise ImplausibleMessage("asks for a plan of no known kind")
    seen = body.glance
    if seen is not None:
        _seconds(fixed_s=seen.fixed_s, sample_s=seen.sample_s)
        _within("kept_bytes", seen.kept_bytes, MOST_BYTES)
        if seen.fixed_s + seen.sample_s <= 0:
            raise ImplausibleMessage("says that a pass of its model takes no time")


def _progress(body: wire.Progress, age_s: float) -> None:
    _counts(generation=body.generation, total_steps=body.total_steps, epoch=body.epoch)
    _steps(body.step, age_s)
    _seconds(step_s=body.step_s, compute_s=body.compute_s, slow_s=body.slow_s)
    _within("samples_per_s", body.samples_per_s, MOST)
    _within("share", body.share, 1.000001)
    most = STEPS_PER_S * age_s
    if len(body.steps) > MOST_STEPS:
        raise ImplausibleMessage(f"tells of {len(body.steps)} steps at once, more than {MOST_STEPS}")
    for step in body.steps:
        _figures(step)
        if not 0 <= step.get("step", -1.0) <= most:
            raise ImplausibleMessage("tells of a step that was never made")


def _timed(step: Mapping[str, float], since_s: float, now_s: float) -> dict[str, float]:
    """The step with its time brought between then and now, so that whoever looks at it sees a moment."""
    time_s = step.get("time_s")
    if time_s is None:
        return dict(step)
    if not (math.isfinite(time_s) and abs(time_s - now_s) <= MOST_SECONDS):
        raise ImplausibleMessage("tells of a step at a time that never was")
    return {**step, "time_s": min(max(time_s, since_s), now_s)}


def _finished(body: wire.Finished) -> None:
    _counts(generation=body.generation)
    _figures(body.metrics)
    _names("artifacts", body.artifacts, MOST_ARTIFACTS, LONGEST_PATH)
    for what, value in (("its lineage", body.lineage), ("its data sets", body.made)):
        plain_value(value, what)
    if body.value:
        stage_result(body.value)


def stage_result(value: Mapping[str, Any]) -> None:
    """Raise :class:`ImplausibleMessage` unless this refers to a result as ``pipelines/results.py`` writes it."""
    plain_value(value, "its result")
    if len(msgspec.json.encode(value)) > LARGEST_VALUE:
        raise ImplausibleMessage(f"gives a reference of more than {LARGEST_VALUE} bytes")
    size = value.get("bytes", 0)
    sound = isinstance(size, int) and not isinstance(size, bool) and 0 <= size <= MOST
    words = [value.get("shown", ""), value.get("block", "")]
    if value.get("kind") not in ("plain", "block") or not sound or not all(isinstance(word, str) for word in words):
        raise ImplausibleMessage("gives a result that refers to nothing")


def plain_value(value: Any, what: str) -> None:
    """Raise :class:`ImplausibleMessage` unless this is plain data (as JSON has it) of a bounded depth."""
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
            raise ImplausibleMessage(f"{what} has names that are no text")
        return list(value.values())
    if isinstance(value, list | tuple):
        return value
    if value is None or isinstance(value, str | int | float):
        return ()
    raise ImplausibleMessage(f"{what} is no plain data")


def _figures(named: Mapping[str, float]) -> None:
    if len(named) > MOST_METRICS:
        raise ImplausibleMessage(f"tells {len(named)} metrics, more than {MOST_METRICS}")
    if any(len(name) > LONGEST_METRIC for name in named):
        raise ImplausibleMessage(f"names a metric in more than {LONGEST_METRIC} characters")
    if sum(len(name.encode(errors="replace")) for name in named) > METRIC_NAMES_BYTES:
        raise ImplausibleMessage(f"names metrics in more than {METRIC_NAMES_BYTES} bytes together")


def _names(what: str, names: Sequence[str], most: int, longest: int = LONGEST_NAME) -> None:
    if len(names) > most or any(len(name) > longest for name in names):
        raise ImplausibleMessage(f"names {what}: more than {most}, or in more than {longest} characters")


def _steps(step: int, age_s: float) -> None:
    """Every word of a step: none is made in no time."""
    _within("step", step, MOST)
    if step > STEPS_PER_S * age_s:
        raise ImplausibleMessage(f"says that it has made {step} steps, more than anybody could in its time")


def _counts(**named: int) -> None:
    for name, count in named.items():
        _within(name, count, MOST)


def _seconds(**named: float) -> None:
    for name, seconds in named.items():
        _within(name, seconds, MOST_SECONDS)


def _within(name: str, number: float, most: float) -> None:
    if not (math.isfinite(number) and 0 <= number <= most):
        raise ImplausibleMessage(f"gives a {name} that is out of bounds")
