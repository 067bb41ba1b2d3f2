"""Compares plans side by side: the gangs of all plans stay alive and take turns, a short window of steps each.

Whatever disturbs the machine for a while then disturbs all of them alike. Also a program of its own, for callers that
must not load torch: one question as JSON on stdin, one answer on stdout.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from fairlead import wire
from fairlead.errors import FairleadError
from fairlead.local_wire import PlacedJoin
from fairlead.planning.plan import Plan, plan_from
from fairlead.training import preload
from fairlead.training.plan_measurement import (
    Question,
    SilentConnection,
    WorkerPlace,
    enter_place,
    join_cgroups,
    peak_memory,
    place_from,
    quiet_loop,
)

WARM_UP = 3
LEAST_STEPS, MOST_STEPS = 2, 400
_ENDLESS = 10**9


@dataclass(frozen=True, slots=True)
class PlanBenchmark:
    """One Training under several plans: each plan runs one window of steps per round."""

    run: str
    plans: Sequence[Plan]
    rounds: int = 7
    window_s: float = 0.4  # as many steps as fit, at least two
    steps: int = 0  # in every window; 0: as many as fit
    params: Mapping[str, Any] = field(default_factory=dict)
    folder: str = "."
    places: Sequence[WorkerPlace] = ()
    silence_s: float = 120.0
    held: Sequence[int] = ()  # indices of plans whose workers keep equal shares of the batch
    accompanied: Sequence[int] = ()
    """Indices of plans of one worker, beside which all other workers train, each on its own.

    What workers on one machine take from each other then counts on both sides, as it would not between two machines.
    """


@dataclass(slots=True)
class PlanTimings:
    """Per window of one plan: seconds per step, and each rank's CPU and computing seconds per step.

    Computing is the time before the ranks wait for each other, for the share of the batch in ``shares``.
    """

    step_s: list[float] = field(default_factory=list)
    cpu_s: list[list[float]] = field(default_factory=list)
    compute_s: list[list[float]] = field(default_factory=list)  # 0 where a plan does not measure it
    shares: list[list[float]] = field(default_factory=list)
    peak_bytes: list[int] = field(default_factory=list)
    error: str = ""


def measure_plans(asked: PlanBenchmark) -> list[PlanTimings]:
    """Run all windows of all plans; all processes have ended when this returns. Call it before any tensor operation."""
    from fairlead.training.loading import load_training

    if asked.places:
        join_cgroups(replace(asked.places[0], cgroups=asked.places[0].before))
    preload()
    with contextlib.chdir(asked.folder):
        training = load_training(asked.run, asked.params)  # once for all: forked children share its data
    taken = [PlanTimings() for _ in asked.plans]
    gangs: list[_Gang] = []
    background: list[_Gang] = []
    with tempfile.TemporaryDirectory(prefix="fairlead-rounds-") as scratch:
        try:
            for number, plan in enumerate(asked.plans):
                meet = Path(scratch) / f"meet-{number}"
                gangs.append(_Gang(asked, plan, training, meet, hold=number in asked.held))
                taken[number].error = gangs[-1].warm_up(WARM_UP)
            for place in range(1, len(asked.places) if asked.accompanied else 0):
                background.append(_Gang(asked, Plan(members=(place,)), training, Path(scratch) / f"background-{place}"))
                background[-1].warm_up(WARM_UP)
                background[-1].begin(_ENDLESS)
                background[-1].pause()
            for turn in range(asked.rounds + 1):  # the first round warms up, and shows how many steps fit into a window
                for place in range(len(gangs)):
                    number = (place + turn) % len(gangs)
                    if not taken[number].error:
                        with _training_beside(background if number in asked.accompanied else ()):
                            _one_turn(gangs[number], taken[number], asked, keep=turn > 0)
        finally:
            for gang in (*gangs, *background):
                gang.end()
    return taken


@contextlib.contextmanager
def _training_beside(background: Sequence[_Gang]) -> Iterator[None]:
    """Let these gangs train during the block."""
    for gang in background:
        gang.resume()
    try:
        yield
    finally:
        for gang in background:
            gang.pause()


def _one_turn(gang: _Gang, taken: PlanTimings, asked: PlanBenchmark, *, keep: bool) -> None:
    fitting = LEAST_STEPS if gang.step_s is None else round(asked.window_s / gang.step_s)
    steps = asked.steps or min(max(fitting, LEAST_STEPS), MOST_STEPS)
    answers, taken.error = gang.turn(steps)
    if taken.error:
        return
    gang.step_s = max(answer["wall_s"] for answer in answers) / steps
    if keep:
        taken.step_s.append(gang.step_s)
        taken.cpu_s.append([answer["cpu_s"] / steps for answer in answers])
        taken.compute_s.append([answer["compute_s"] for answer in answers])
        taken.shares.append([answer["share"] for answer in answers])
        taken.peak_bytes = [answer["peak_bytes"] for answer in answers]


class _Gang:
    """The processes of one plan. Each gets step counts on one pipe and answers on another."""

    def __init__(self, asked: PlanBenchmark, plan: Plan, training: Any, meet: Path, *, hold: bool = False) -> None:
        self.step_s: float | None = None
        self._silence_s, self._hold = asked.silence_s, hold
        question = Question(
            asked.run, plan, params=asked.params, folder=asked.folder, places=asked.places, silence_s=asked.silence_s
        )
        ranks = {str(n): n for n in range(plan.workers_used)}
        join = PlacedJoin(1, ranks, [], asked.silence_s, init_method=f"file://{meet}")
        self._children: list[tuple[int, int, int]] = []  # pid, pipe of requests, pipe of answers
        for number in range(plan.workers_used):
            self._children.append(self._fork(question, training, join, number))

    def _fork(self, question: Question, training: Any, join: wire.Join, number: int) -> tuple[int, int, int]:
        request_pipe, requests = os.pipe()
        replies, answers = os.pipe()
        pid = os.fork()
        if pid:
            os.close(request_pipe)
            os.close(answers)
            return pid, requests, replies
        try:
            os.close(requests)
            os.close(replies)
            for _, other_requests, other_replies in self._children:  # open copies would hide the end of the parent
                os.close(other_requests)
                os.close(other_replies)
            _work(question, training, join, number, request_pipe, answers, hold=self._hold)
        finally:
            os._exit(0)  # a child never returns into its parent's program

    def warm_up(self, steps: int) -> str:
        """Let all ranks set up and run a few steps; returns the error, if any."""
        answers, error = self._read_answers()
        if not error:
            answers, error = self.turn(steps)
            self.step_s = None if error else max(answer["wall_s"] for answer in answers) / steps
        return error

    def turn(self, steps: int) -> tuple[list[dict[str, Any]], str]:
        """Run one window on all ranks."""
        self.begin(steps)
        return self._read_answers()

    def begin(self, steps: int) -> None:
        """Start a window on all ranks without waiting for its end."""
        for _, requests, _ in self._children:
            with contextlib.suppress(BrokenPipeError):  # the rank has ended; its last answer says why
                os.write(requests, f"{steps}\n".encode())

    def pause(self) -> None:
        """Stop all ranks in the middle of a window."""
        for pid, _, _ in self._children:
            os.kill(pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let stopped ranks continue."""
        for pid, _, _ in self._children:
            os.kill(pid, signal.SIGCONT)

    def _read_answers(self) -> tuple[list[dict[str, Any]], str]:
        answers: list[dict[str, Any]] = []
        deadline_s = time.monotonic() + self._silence_s
        for number, (_, _, replies) in enumerate(self._children):
            line = _read_line(replies, deadline_s)
            if line is None:
                answers.append({"error": f"rank {number} did not answer in time", "lost": False})
                continue
            answers.append(json.loads(line) if line else {"error": f"rank {number} has ended", "lost": True})
        errors = sorted((a for a in answers if a.get("error")), key=lambda a: bool(a["lost"]))
        return answers, errors[0]["error"] if errors else ""

    def end(self) -> None:
        for pid, requests, replies in self._children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(requests)
            os.close(replies)


def _read_line(source: int, deadline_s: float) -> bytes | None:
    """A whole line; empty at the end of the stream, None at the deadline."""
    line = b""
    while not line.endswith(b"\n"):
        ready, _, _ = select.select([source], [], [], max(0.0, deadline_s - time.monotonic()))
        if not ready:
            return None
        more = os.read(source, 1 << 16)
        if not more:
            return b""
        line += more
    return line


# ---------------------------------------------------------------- in a child


class _Gate(SilentConnection):
    """A control connection that lets steps pass only during this gang's turn."""

    def __init__(self, request_pipe: int, answers: int, place: WorkerPlace | None) -> None:
        self._request_pipe, self._answers, self._place = request_pipe, answers, place
        self._left, self._steps, self._begun = 0, 0, (0.0, 0.0)
        self._balance = {"compute_s": 0.0, "share": 0.0}  # as reported last

    def pending(self) -> bool:
        """Called before every step. The first step of a window is not counted: it wakes what was idle."""
        if self._left == self._steps and self._steps:
            self._begun = time.perf_counter(), time.process_time()
        if self._left == 0:
            self._pause()
        self._left -= 1
        return False

    def _pause(self) -> None:
        if self._steps:
            wall_s, cpu_s = (now - then for now, then in zip(_now(), self._begun, strict=True))
            self._send({"wall_s": wall_s, "cpu_s": cpu_s, "peak_bytes": peak_memory()["peak_bytes"], **self._balance})
        else:
            self._send({"ready": True})
        line = os.read(self._request_pipe, 64)
        if not line:
            os._exit(0)
        if self._place is not None:  # only now: the set-up need not be slow
            join_cgroups(self._place)
            self._place = None
        self._steps = int(line)
        self._left = self._steps + 1

    def _send(self, what: Mapping[str, Any]) -> None:
        os.write(self._answers, json.dumps(what).encode() + b"\n")

    def send(self, message: Any) -> None:
        if isinstance(message, wire.Progress):
            self._balance = {"compute_s": message.compute_s, "share": message.share}


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def _work(
    question: Question, training: Any, join: wire.Join, number: int, request_pipe: int, answers: int, *, hold: bool
) -> None:
    from fairlead.training.group import PeerLost
    from fairlead.training.loading import describe
    from fairlead.training.run_schedule import RunSchedule

    plan = question.plan
    place = question.places[plan.members[number] if plan.members else number] if question.places else None
    try:
        if place is not None:
            enter_place(replace(place, cgroups=()))
        os.chdir(question.folder)
        gate = _Gate(request_pipe, answers, place)
        loop, session, group = quiet_loop(training, plan, join, number, gate, steps=_ENDLESS)
        if hold:  # as a rerun does
            session.replayed_schedule = RunSchedule([(0, group.size, plan.id, (1 / group.size,) * group.size)])
        loop.run()
    except PeerLost as lost:
        answer = {"error": f"rank {number}: {lost}", "lost": True}
    except (Exception, SystemExit) as error:  # noqa: BLE001 (the process's edge: whatever user code raises is told)
        answer = {"error": describe(error)[0], "lost": False}
    else:
        answer = {"error": "the training ended early", "lost": False}
    os.write(answers, json.dumps(answer).encode() + b"\n")


def main() -> int:
    """Answer the question on stdin."""
    asked = json.load(sys.stdin)
    asked["plans"] = [plan_from(plan) for plan in asked["plans"]]
    asked["places"] = [place_from(plain) for plain in asked.get("places", ())]
    try:
        answer: dict[str, Any] = {"taken": [asdict(one) for one in measure_plans(PlanBenchmark(**asked))]}
    except FairleadError as error:
        answer = {"error": str(error)}
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
