"""A node manager for tests: forks real workers, talks to them over socket pairs and keeps what they say."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from fairlead import framing, wire
from fairlead.local_wire import PlacedJoin, PlacedSpec
from fairlead.planning.plan import Plan

PATIENCE_S = 180.0
M = TypeVar("M", bound=msgspec.Struct)


@dataclass
class Worker:
    name: str
    pid: int
    stream: socket.socket
    unpacker: framing.Unpacker = field(default_factory=lambda: framing.Unpacker(wire.FromWorker))
    said: list[tuple[float, Any]] = field(default_factory=list)
    code: int | None = None  # as of os.waitstatus_to_exitcode

    def heard(self, kind: type[M]) -> list[M]:
        return [message for _, message in self.said if isinstance(message, kind)]

    def last(self, kind: type[M]) -> M:
        return self.heard(kind)[-1]


class Gang:
    """The workers of one job, with a folder of their own."""

    def __init__(
        self, root: Path, code: str, params: dict[str, Any] | None = None, run: str = "train.py:training"
    ) -> None:
        self.root = root
        (root / "code").mkdir(parents=True, exist_ok=True)
        if code:
            (root / "code" / "train.py").write_text(code)
        self.run, self.params = run, params or {}
        self.course: list[Any] = []  # that its workers follow: shares that no clock changes
        self.workers: dict[str, Worker] = {}
        self.generation = 0
        self.members: list[str] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._selector = selectors.DefaultSelector()

    # ------------------------------------------------------------ starting and ending

    def spec(self, node: str = "n0") -> PlacedSpec:
        return PlacedSpec(
            job="job-1", tenant="tests", uid=None, run=self.run, command=None, params=self.params, env={}, venv=None,
            bundle=None, folder=str(self.root), memory_folder=str(self.root / "memory" / "job-1" / node), cpu=1.0,
            course=self.course,
        )  # fmt: skip

    def start(self, *names: str, node: str = "n0") -> None:
        for name in names:
            here, there = socket.socketpair()
            pid = os.fork()
            if pid == 0:
                self._live(name, here, there, self.spec(node))
            there.close()
            self.workers[name] = Worker(name, pid, here)
            self._selector.register(here, selectors.EVENT_READ, name)

    def start_by_exec(self, name: str) -> None:
        here, there = socket.socketpair()
        environment = os.environ | {
            "FAIRLEAD_WORKER": name,
            "FAIRLEAD_CHANNEL_FD": str(there.fileno()),
            "FAIRLEAD_WORKER_SPEC": msgspec.json.encode(self.spec()).decode(),
        }
        command = [sys.executable, "-m", "fairlead.worker"]
        process = subprocess.Popen(
            command, cwd=self.root / "code", env=environment, pass_fds=[there.fileno()], stdout=subprocess.DEVNULL
        )
        there.close()
        self.workers[name] = Worker(name, process.pid, here)
        self._processes.append(process)  # kept, so that nobody else waits for it
        self._selector.register(here, selectors.EVENT_READ, name)

    def _live(self, name: str, here: socket.socket, there: socket.socket, spec: PlacedSpec) -> None:
        code = 70
        try:
            from fairlead import worker

            here.close()
            for other in self.workers.values():
                other.stream.close()
            log = os.open(self.root / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.chdir(self.root / "code")
            sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 (pytest has put its own in place)
            code = worker.main(spec, name, there)
        except BaseException:  # noqa: BLE001 (a forked child must never return into pytest)
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(code)

    def close(self) -> None:
        for worker in self.workers.values():
            if worker.code is None:
                os.kill(worker.pid, signal.SIGKILL)
                self._reap(worker)
            worker.stream.close()
        self._selector.close()

    def kill(self, name: str, how: signal.Signals = signal.SIGKILL) -> None:
        os.kill(self.workers[name].pid, how)

    def _reap(self, worker: Worker) -> None:
        _, status = os.waitpid(worker.pid, 0)
        worker.code = os.waitstatus_to_exitcode(status)

    # ------------------------------------------------------------ talking

    def tell(self, message: wire.ToWorker, *names: str) -> None:
        for name in names:
            worker = self.workers[name]
            if worker.code is None:
                worker.stream.sendall(framing.pack(message))

    def join(
        self, *names: str, shares: list[float] | None = None, silence_s: float = 30.0, wait: bool = True,
        plan: Plan | None = None,
    ) -> None:  # fmt: skip
        """Call these workers to the next generation and, unless told otherwise, wait until all are in it."""
        self.generation += 1
        self.members = list(names)
        place = f"file://{self.root}/meet-{self.generation}"
        ranks = {name: rank for rank, name in enumerate(names)}
        plain = None if plan is None else plan.to_plain()
        self.tell(PlacedJoin(self.generation, ranks, shares or [], silence_s, plain, init_method=place), *names)
        if wait:
            self.until(lambda: all(self.in_generation(name) for name in names), "everybody joined")

    def in_generation(self, name: str) -> bool:
        return any(message.generation == self.generation for message in self.workers[name].heard(wire.Joined))

    def leave(self, *, snapshot: bool = False, exits: list[str] | None = None) -> None:
        """End the generation and wait until everybody left it."""
        self.tell(wire.Leave(self.generation, snapshot, exits or []), *self.members)
        self.until(lambda: all(self.said(name, wire.Left) for name in self.members), "everybody left")

    def said(self, name: str, kind: type[Any]) -> bool:
        return any(message.generation == self.generation for message in self.workers[name].heard(kind))

    def ready(self, *names: str) -> None:
        """Wait until these workers have loaded; one that ended instead fails the test at once."""
        workers = [self.workers[name] for name in names]
        self.until(lambda: all(w.heard(wire.Ready) or w.code is not None for w in workers), "everybody is ready")
        assert all(w.heard(wire.Ready) for w in workers), self.story()

    def until(self, condition: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
        """Listen until the condition holds."""
        deadline = time.monotonic() + patience_s
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"waited {patience_s:g} s until {what}\n{self.story()}")
            self._listen(0.05)

    def listen_for(self, seconds: float) -> None:
        """Listen for so long, whatever is said: for killing at a moment that nothing marks."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self._listen(min(left, 0.01))

    def _listen(self, timeout_s: float) -> None:
        for key, _ in self._selector.select(timeout_s):
            worker = self.workers[key.data]
            try:
                data = worker.stream.recv(1 << 16)
            except ConnectionResetError:
                data = b""
            if not data:
                self._selector.unregister(worker.stream)
                self._reap(worker)
                continue
            now = time.monotonic()
            worker.said.extend((now, message) for message in worker.unpacker.feed(data))

    # ------------------------------------------------------------ what came of it

    def step(self) -> int:
        return max((p.step for w in self.workers.values() for p in w.heard(wire.Progress)), default=0)

    def reach(self, step: int) -> None:
        self.until(lambda: self.step() >= step, f"step {step} is reached")

    def finish(self) -> None:
        names = self.members
        self.until(lambda: all(self.workers[name].code is not None for name in names), "everybody ended")
        assert [self.workers[name].code for name in names] == [0] * len(names), self.story()

    def curve(self) -> dict[int, float]:
        """Loss by step, as the control plane would store it: the last report of a step counts."""
        rows = [
            (time_s, row) for w in self.workers.values() for time_s, p in w.said
            if isinstance(p, wire.Progress) for row in p.steps
        ]  # fmt: skip
        return {int(row["step"]): row["loss"] for _, row in sorted(rows, key=lambda pair: pair[0])}

    def story(self) -> str:
        said = {w.name: [type(m).__name__ for _, m in w.said][-12:] for w in self.workers.values()}
        logs = "\n".join(f"--- {path.name}\n{path.read_text()[-3000:]}" for path in sorted(self.root.glob("*.log")))
        return f"{said}\ncodes: { {w.name: w.code for w in self.workers.values()} }\n{logs}"

    def log(self, name: str) -> str:
        return (self.root / f"{name}.log").read_text()
