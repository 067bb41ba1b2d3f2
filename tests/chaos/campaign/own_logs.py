"""What the jobs of a campaign wrote down themselves, and what it says: each step once, no run beside another."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

KNOWN_WITHIN_S = 5.0
"""So long after its last line a life may end, and its node hand that on: what hits it meanwhile may hide its end."""


@dataclass(frozen=True, order=True, slots=True)
class Step:
    """One line of a training's own log."""

    time_s: float
    number: int
    worker: str
    life: str  # of the worker's process: worker and a random mark


@dataclass(frozen=True, slots=True)
class Run:
    """One life of a command or of a stage."""

    life: str
    begun_s: float
    last_s: float
    done: bool


def steps(output: Path) -> list[Step]:
    """All steps that any process of a training made, in the order of time."""
    found = []
    for path in sorted(output.glob("steps-*.log")):
        life = path.stem.removeprefix("steps-")
        for time_s, number in _lines(path):
            found.append(Step(float(time_s), int(number), life.rpartition("-")[0], life))
    return sorted(found)


def runs(output: Path) -> list[Run]:
    """All lives of a command or a stage, in the order in which they began."""
    lives: dict[str, Run] = {}
    for time_s, word, life in _lines(output / "runs.log"):
        before = lives.get(life)
        begun_s = before.begun_s if before else float(time_s)
        lives[life] = Run(life, begun_s, float(time_s), word == "done")
    return sorted(lives.values(), key=lambda run: run.begun_s)


def _lines(path: Path) -> Iterator[list[str]]:
    text = path.read_text() if path.exists() else ""
    return (line.split() for line in text.split("\n")[:-1])  # the last one is empty, or is being written


# ------------------------------------------------------------ what it says


def missing(made: Sequence[Step], total: int) -> list[int]:
    """Steps that nobody ever made."""
    return sorted(set(range(1, total + 1)) - {step.number for step in made})


def doubled(made: Sequence[Step], stopped: Collection[str] = ()) -> list[int]:
    """Steps that were made twice: after the one that follows them, or in two histories at a time.

    A step counts when it was made last. In one history, however often it began again from a snapshot, each step was
    last made before the step after it; and while a process goes from one step to the next, all others make one of
    these two. The last step of a worker that was stopped and went on does not count: its process finishes the line
    that it was about to write before anybody can end it.
    """
    last_of_life = {step.life: step for step in made}
    late = {step for step in last_of_life.values() if step.worker in stopped}
    counted = [step for step in made if step not in late]
    last = {step.number: step.time_s for step in counted}
    again = {number for number in last if number + 1 in last and last[number] > last[number + 1]}
    return sorted(again | _in_two_histories(counted))


def _in_two_histories(made: Sequence[Step]) -> set[int]:
    lives: dict[str, list[Step]] = {}
    for step in made:
        lives.setdefault(step.life, []).append(step)
    found: set[int] = set()
    for life, own in lives.items():
        others = [step for step in made if step.life != life]
        for before, after in pairwise(own):
            if after.number == before.number + 1:
                between = (step for step in others if before.time_s < step.time_s < after.time_s)
                found |= {step.number for step in between if step.number not in (before.number, after.number)}
    return found


def beside_each_other(lived: Sequence[Run]) -> list[tuple[str, str]]:
    """Lives of one command that were there at the same time."""
    return [(before.life, after.life) for before, after in pairwise(lived) if after.begun_s < before.last_s]


def begun_after_done(lived: Sequence[Run]) -> list[Run]:
    """The lives of a command that had come to their end, and after which it began again all the same."""
    return [run for run in lived[:-1] if run.done]


def unexcused(ended: Sequence[Run], hits: Sequence[tuple[str, float]]) -> list[Run]:
    """Those of these lives that no fault (worker, time) hit before it could be known that they had ended."""

    def hit(run: Run) -> bool:
        own = (at_s for worker, at_s in hits if worker == run.life.rpartition("-")[0])
        return any(run.begun_s <= at_s <= run.last_s + KNOWN_WITHIN_S for at_s in own)

    return [run for run in ended if not hit(run)]


def recovered_s(made: Sequence[Step], workers: Collection[str], hit_s: float) -> float | None:
    """From the loss of these workers to the first step that was made without them; None: there was none.

    The step that was under way may still be finished by the others: the lost ones have given their part of it. So
    what counts is a step that was made before, or one that comes after that.
    """
    known = [step.number for step in made if step.time_s <= hit_s and step.worker in workers]
    if not known:
        return None
    usual = max(known) + 1
    later = (step.time_s for step in made if step.time_s > hit_s and step.number != usual)
    return next((time_s - hit_s for time_s in later), None)
