"""Answers questions for tenants in a process of its own, within limits of CPU time, wall time and memory.

Plans are computed in one such process, forecasts in others (:mod:`.foresight`). The kernel ends the process when an
answer exceeds its CPU time, this side when it exceeds its wall time. Values travel as MessagePack; tenants take turns.
"""

from __future__ import annotations

import importlib
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections import OrderedDict, deque
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

import msgspec

import fairlead
from fairlead import framing

CPU_S = 3.0
"""CPU time of one answer; the search itself ends well before."""

WALL_S = 10.0
MEMORY_BYTES = 2 << 30
MOST_WAITING = 64  # questions of one tenant


class PlannerFailed(Exception):
    """There is no answer; the text says why and is shown by ``fairlead why``."""


class TooManyQuestions(PlannerFailed):
    """This tenant has too many questions waiting."""


class PlannerFault(PlannerFailed):
    """An error of our own; its text may hold parts of the question."""


class Question(Protocol):
    """A struct of plain values that computes its answer; ``Question`` of its module lists those that a process may be
    asked."""

    def answer(self) -> Any:
        """The answer, in plain values."""


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """What a process is for, and its limits."""

    questions: str = "fairlead.control.plans.plan_questions"  # the module of its questions
    doing: str = "working a plan out"
    cpu_s: float = CPU_S
    wall_s: float = WALL_S
    nice: int = 0
    most_waiting: int = MOST_WAITING  # questions of one tenant
    idle_s: float | None = None  # it ends after this long without a question; None: never


PLANS = ProcessSpec()


class Planner(Protocol):
    """Answers questions."""

    def ask(self, tenant: str, question: Question, kind: Any) -> Future[Any]:
        """A future with the answer, of this type; its exception is a :class:`PlannerFailed`."""

    def warm(self) -> None:
        """A question will come soon."""

    def close(self) -> None:
        """Stop answering."""


class InlinePlanner:
    """Answers in this process: for tools and tests whose models are their own."""

    def ask(self, tenant: str, question: Question, kind: Any) -> Future[Any]:
        answered: Future[Any] = Future()
        try:
            answered.set_result(question.answer())
        except Exception as error:  # noqa: BLE001 (as the process would say it)
            answered.set_exception(PlannerFault(_describe_error(error)))
        return answered

    def warm(self) -> None:
        return None

    def close(self) -> None:
        return None


class PlannerProcess:
    """Starts the process when it is first needed, and again when it ended."""

    def __init__(self, work: ProcessSpec = PLANS) -> None:
        self._queue = _QuestionQueue(work)
        self._end = weakref.finalize(self, self._queue.close)

    def ask(self, tenant: str, question: Question, kind: Any) -> Future[Any]:
        return self._queue.put(tenant, question, kind)

    def warm(self) -> None:
        self._queue.warm()

    def close(self) -> None:
        self._end()


# ---------------------------------------------------------------- this side


@dataclass(slots=True)
class _PendingQuestion:
    frame: bytes
    kind: Any
    answer: Future[Any]


class _QuestionQueue:
    """Questions by tenant, and the thread that puts them to the process one by one."""

    def __init__(self, work: ProcessSpec) -> None:
        self._work = work
        self._waiting: OrderedDict[str, deque[_PendingQuestion]] = OrderedDict()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._child: _ChildProcess | None = None
        self._closed = False

    def put(self, tenant: str, question: Question, kind: Any) -> Future[Any]:
        asked = _PendingQuestion(b"", kind, Future())
        try:
            asked.frame = framing.pack(cast(msgspec.Struct, question))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            asked.answer.set_exception(PlannerFailed(_describe_error(error)))
            return asked.answer
        with self._changed:
            line = self._waiting.setdefault(tenant, deque())
            if self._closed or len(line) >= self._work.most_waiting:
                few = f"{self._work.most_waiting} questions of this tenant wait for an answer already"
                asked.answer.set_exception(
                    PlannerFailed("the platform ends") if self._closed else TooManyQuestions(few)
                )
                return asked.answer
            line.append(asked)
            self._begin()
        return asked.answer

    def warm(self) -> None:
        with self._changed:
            self._begin()

    def _begin(self) -> None:
        if self._thread is None and not self._closed:
            self._thread = threading.Thread(target=self._serve, name="planner", daemon=True)
            self._thread.start()
        self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
            if self._child is not None:
                self._child.end()

    def _next(self) -> _PendingQuestion | None:
        """The oldest question of the tenant whose turn it is."""
        with self._changed:
            while not self._waiting and not self._closed:
                asked_on = self._changed.wait(self._work.idle_s)
                if not asked_on and not self._waiting and self._child is not None:
                    self._child.end()
                    self._child = None
            if self._closed:
                return None
            tenant, line = self._waiting.popitem(last=False)
            asked = line.popleft()
            if line:
                self._waiting[tenant] = line  # behind all others
            return asked

    def _serve(self) -> None:
        with suppress(OSError):  # the first question reports it
            self._ensure_child()
        while (asked := self._next()) is not None:
            if not asked.answer.set_running_or_notify_cancel():
                continue
            try:
                asked.answer.set_result(self._answer(asked))
            except PlannerFailed as error:
                asked.answer.set_exception(error)
        if self._child is not None:
            self._child.end()

    def _ensure_child(self) -> _ChildProcess | None:
        with self._changed:
            if not self._closed:
                self._child = self._child or _ChildProcess(self._work)
            return None if self._closed else self._child

    def _answer(self, asked: _PendingQuestion) -> Any:
        child = None
        try:
            child = self._ensure_child()
            if child is None:
                raise PlannerFailed("the platform ends")
            reply = child.ask(asked.frame, self._work.wall_s)
            if reply.error is not None:
                raise PlannerFault(reply.error)
            return msgspec.msgpack.decode(reply.value, type=asked.kind)
        except (OSError, EOFError, ValueError, msgspec.MsgspecError) as error:
            self._child = None
            if child is None:
                raise PlannerFailed(f"the planner cannot be started: {error}") from None
            child.end()
            raise PlannerFailed(child.why(error)) from None


class _Reply(msgspec.Struct):
    value: msgspec.Raw = msgspec.Raw(b"\xc0")
    error: str | None = None


class _ChildProcess:
    """The process and its pipes; it ends when this side closes them."""

    def __init__(self, work: ProcessSpec) -> None:
        environment = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
        environment |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # one core at most
        self._work = work
        self._late = False
        words = [work.questions, str(work.cpu_s), str(work.nice)]
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "fairlead.control.plans.planner_process", *words],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True, cwd="/",
            env=environment | {"PYTHONPATH": str(Path(fairlead.__file__).parent.parent)},
        )  # fmt: skip

    def ask(self, frame: bytes, within_s: float) -> _Reply:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(frame)
        self._process.stdin.flush()
        until_s = time.monotonic() + within_s
        out = self._process.stdout.fileno()
        unpacker = framing.Unpacker(_Reply)
        while True:
            if not select.select([out], [], [], max(0.0, until_s - time.monotonic()))[0]:
                self._late = True
                raise EOFError
            data = os.read(out, 1 << 18)
            if not data:
                raise EOFError
            for reply in unpacker.feed(data):
                return cast(_Reply, reply)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()

    def why(self, error: Exception) -> str:
        """Why it gave no answer."""
        if self._late:
            return f"{self._work.doing} took too long"
        if self._process.returncode == -signal.SIGPROF:
            return f"{self._work.doing} took more than {self._work.cpu_s:g} s of computing"
        return f"the planner ended ({type(error).__name__})"


def _describe_error(error: BaseException) -> str:
    return f"the planner failed: {type(error).__name__}: {error}"[:300]


# ---------------------------------------------------------------- the process


def serve(source: BinaryIO, sink: BinaryIO, questions: str, cpu_s: float, nice: int) -> None:
    """Answer questions until the source is closed."""
    os.nice(nice)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    unpacker = framing.Unpacker(importlib.import_module(questions).Question)
    while data := os.read(source.fileno(), 1 << 18):
        for question in unpacker.feed(data):
            signal.setitimer(signal.ITIMER_PROF, cpu_s)  # the kernel ends this process by SIGPROF
            try:
                reply = _Reply(msgspec.Raw(msgspec.msgpack.encode(question.answer())))
            except Exception as error:  # noqa: BLE001 (a process's edge: it is told to whoever asked)
                reply = _Reply(error=_describe_error(error))
            signal.setitimer(signal.ITIMER_PROF, 0.0)
            sink.write(framing.pack(reply))
            sink.flush()


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer, sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
