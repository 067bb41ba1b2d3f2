"""Runs a few steps of a Training under a plan, in as many processes on this machine, and measures their time.

Also a program of its own, for callers that must not load torch: one question as JSON on stdin, one answer on stdout.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from fairlead import wire
from fairlead.errors import FairleadError
from fairlead.local_wire import PlacedJoin
from fairlead.planning.plan import Plan, plan_from
from fairlead.training import preload

if TYPE_CHECKING:
    from fairlead.training.definition import Training
    from fairlead.training.group import Group
    from fairlead.training.loop import ControlConnection, TrainingLoop
    from fairlead.training.session import Session

WARM_UP = 3
ERROR_GRACE_S = 3.0
"""How long the other ranks may take to notice that one has failed."""
_CLONE_NEWNET = 0x40000000


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """Where a worker runs: a network namespace, its interface, and control groups that limit the worker."""

    namespace: str | None = None
    interface: str | None = None
    cgroups: tuple[str, ...] = ()
    before: tuple[str, ...] = ()  # control groups during the set-up, if they differ


def place_from(plain: Mapping[str, Any]) -> WorkerPlace:
    """The place from its JSON values."""
    groups, before = (tuple(plain.get(name, ())) for name in ("cgroups", "before"))
    return WorkerPlace(plain.get("namespace"), plain.get("interface"), groups, before)


@dataclass(frozen=True, slots=True)
class Measured:
    """Per rank: the median seconds of a step and the peak memory; or the error."""

    step_s: tuple[float, ...] = ()
    peak_bytes: tuple[int, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """What to measure: the function that makes the Training, its folder, and the plan."""

    run: str
    plan: Plan
    steps: int = 20
    params: Mapping[str, Any] = field(default_factory=dict)
    folder: str = "."
    places: Sequence[WorkerPlace] = ()  # of all workers, of which the plan may use some
    meet: str | None = None  # rendezvous, if not by a file: tcp://host:port
    silence_s: float = 60.0


def measure(question: Question) -> Measured:
    """Run the steps; all processes have ended when this returns. Forks: call it before any tensor operation."""
    preload()
    plan = question.plan
    with tempfile.TemporaryDirectory(prefix="fairlead-measure-") as scratch:
        place = question.meet or f"file://{scratch}/meet"
        ranks = {str(n): n for n in range(plan.workers_used)}
        join = PlacedJoin(1, ranks, [], question.silence_s, init_method=place)
        children = [_fork(question, join, number, Path(scratch)) for number in range(plan.workers_used)]
        codes = _wait(children, Path(scratch))
        answers = [_read(Path(scratch) / f"answer-{n}", code) for n, code in enumerate(codes)]
    errors = sorted(
        (a for a in answers if a["error"]), key=lambda a: bool(a["lost"])
    )  # the cause before the peers that it took along
    if errors:
        return Measured(error=errors[0]["error"])
    return Measured(tuple(a["step_s"] for a in answers), tuple(a["peak_bytes"] for a in answers))


def _wait(children: Sequence[int], scratch: Path) -> list[int]:
    """The exit states of all children. After an error the others get a moment to notice it, then they are killed."""
    codes: dict[int, int] = {}
    deadline_s: float | None = None
    try:
        while len(codes) < len(children):
            for number, pid in enumerate(children):
                found, code = os.waitpid(pid, os.WNOHANG) if pid not in codes else (0, 0)
                if found:
                    codes[pid] = code
                    if deadline_s is None and _read(scratch / f"answer-{number}", code)["error"]:
                        deadline_s = time.monotonic() + ERROR_GRACE_S
            if deadline_s is not None and time.monotonic() > deadline_s:
                break
            time.sleep(0.01)
    finally:
        for pid in children:
            if pid not in codes:
                os.kill(pid, signal.SIGKILL)
                codes[pid] = os.waitpid(pid, 0)[1]
    return [codes[pid] for pid in children]


def _read(path: Path, code: int) -> dict[str, Any]:
    if not path.exists():
        ended = os.waitstatus_to_exitcode(code)
        return {"error": f"a worker ended with {ended}", "lost": ended == -signal.SIGKILL}
    answer: dict[str, Any] = json.loads(path.read_text())
    return answer


# ---------------------------------------------------------------- in a child


def _fork(question: Question, join: wire.Join, number: int, scratch: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        answer = _answer(question, join, number, scratch)
        (scratch / f"answer-{number}").write_text(json.dumps(answer))
        code = 0
    finally:
        os._exit(code)  # a child never returns into its parent's program


def _answer(question: Question, join: wire.Join, number: int, scratch: Path) -> dict[str, Any]:
    from fairlead.training.group import PeerLost
    from fairlead.training.loading import describe

    try:
        return {"error": "", "lost": False} | _run_steps(question, join, number, scratch)
    except PeerLost as lost:
        return {"error": f"rank {number}: {lost}", "lost": True}
    except (Exception, SystemExit) as error:  # noqa: BLE001 (the process's edge: whatever user code raises is told)
        return {"error": describe(error)[0], "lost": False}


def _run_steps(question: Question, join: wire.Join, number: int, scratch: Path) -> dict[str, Any]:
    import torch

    from fairlead.training.loading import load_training

    plan = question.plan
    if question.places:
        enter_place(question.places[plan.members[number] if plan.members else number])
    os.chdir(question.folder)
    torch.set_num_threads(1)
    training = load_training(question.run, question.params)
    loop, session, group = quiet_loop(training, plan, join, number, SilentConnection(), steps=WARM_UP + question.steps)
    loop.run()
    group.close()
    times = [row["time_s"] for row in session.history.rows(0)]
    step_s = statistics.median(b - a for a, b in zip(times[WARM_UP - 1 :], times[WARM_UP:], strict=False))
    return {"step_s": step_s} | peak_memory()


def peak_memory() -> dict[str, int]:
    """The most memory that this process has used."""
    return {"peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


def quiet_loop(
    training: Training, plan: Plan, join: wire.Join, number: int, line: ControlConnection, *, steps: int
) -> tuple[TrainingLoop, Session, Group]:
    """A loop that trains for ``steps`` steps without evaluation and snapshots."""
    from fairlead.training.group import Group
    from fairlead.training.loop import TrainingLoop
    from fairlead.training.seeds import seed_everything
    from fairlead.training.session import Session
    from fairlead.training.state_agreement import check_same_training

    seed_everything(0)
    session = Session(training, 0)
    session.eval_samples = None
    session.total_steps = steps
    group = Group(join, str(number), lambda: None)
    check_same_training(group, session)
    return TrainingLoop(session, group, line, _NoSnapshots(), plan), session, group


def enter_place(place: WorkerPlace) -> None:
    """Move this process to the place of a worker."""
    join_cgroups(place)
    if place.namespace is not None:
        with Path(place.namespace).open() as file:
            if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "cannot enter the network namespace", place.namespace)
    if place.interface is not None:
        os.environ["GLOO_SOCKET_IFNAME"] = place.interface


def join_cgroups(place: WorkerPlace) -> None:
    """Move this process into the place's control groups, which limit its cores."""
    for group in place.cgroups:
        Path(group, "cgroup.procs").write_text(str(os.getpid()))


class SilentConnection:
    """A control connection without messages, for measurements."""

    def pending(self) -> bool:
        return False

    def take(self, timeout_s: float | None = None) -> wire.ToWorker | None:
        return None

    def put_back(self, message: wire.ToWorker) -> None:
        raise AssertionError("nothing was taken")

    def send(self, message: msgspec.Struct) -> None:
        return None


class _NoSnapshots:
    """Stores no snapshots, for measurements."""

    def find(self) -> list[Any]:
        return []

    def due(self) -> bool:
        return False

    def write(self, step: int, state: Mapping[str, Any], *, wait: bool = False) -> None:
        return None

    def write_sharded(self, step: int, save: Callable[[Path], None], describe: Callable[[Any], None] | None) -> None:
        return None

    def sharded_folder(self, step: int) -> Path:
        return Path("nowhere")


def main() -> int:
    """Answer the question on stdin."""
    asked = json.load(sys.stdin)
    asked["plan"] = plan_from(asked["plan"])
    asked["places"] = [place_from(plain) for plain in asked.get("places", ())]
    begun_s = time.monotonic()
    try:
        measured = measure(Question(**asked))
    except FairleadError as error:
        measured = Measured(error=str(error))
    print(json.dumps(asdict(measured) | {"seconds": time.monotonic() - begun_s}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
