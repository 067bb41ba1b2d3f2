"""One worker in its node manager: start, messages, stop, end, and the cause of its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from fairlead import framing, wire
from fairlead.agent.node import cgroups, disk_usage, job_folders, processes
from fairlead.agent.node.channel_writer import ChannelWriter
from fairlead.agent.node.log_pump import LogFile, LogPump, make_pipe
from fairlead.agent.node.messages import Ended
from fairlead.agent.node.processes import Process
from fairlead.agent.node.secret_scrubber import Scrubber
from fairlead.agent.node.worker_stream import WorkerStream
from fairlead.agent.sandbox.bwrap_args import CannotStart
from fairlead.agent.zygote.start_message import StartMessage
from fairlead.agent.zygote.worker_bootstrap import WorkerBootstrap
from fairlead.cluster import Resources
from fairlead.local_wire import PlacedSpec, placed_join
from fairlead.recovery import silence
from fairlead.units import shown_size

LEAVE_GRACE_S = 5.0
SILENCE_GRACE_S = 5.0  # the gang itself notices first and reports Broken
LINGER_S = 1.0  # for a finished worker's process to end while its device is needed
_DRAIN_S = 2.0  # to receive messages sent right before the end
_READ_S = 30.0  # longer while one of them is being decoded

_PHASES: Mapping[type, str] = {
    wire.Ready: "ready", wire.Joined: "joined", wire.Left: "left", wire.Broken: "broken", wire.Finished: "finished",
}  # fmt: skip

Emit = Callable[["Worker", wire.FromWorker | wire.Exited], bool]
"""Forwards a message or the end of a worker; False when the worker has too many unacknowledged bytes."""


class Line(Protocol):
    """What a worker needs of the fork server's connection."""

    def pack(self, bootstrap: WorkerBootstrap) -> StartMessage: ...
    def start(self, message: StartMessage, channel: int, output: int) -> None: ...
    def kill(self, key: str, number: int) -> None: ...


class Worker:
    """One worker from start to end. For a command, which sends no messages, they are generated here."""

    def __init__(self, job: str, name: str, device: int, demand: Resources, line: Line, emit: Emit) -> None:
        self.job, self.name, self.device, self.demand = job, name, device, demand
        self.generation = 0
        self.phase = "starting"
        self.pid = 0
        self.sandbox: Process | None = None  # the sandbox's first process
        self.group = cgroups.Group(0)
        self.gone = asyncio.Event()
        self._line, self._emit = line, emit
        self._bootstrap: WorkerBootstrap | None = None
        self._submitted = False
        self._channel: asyncio.Task[None] | None = None
        self._output: LogPump | None = None
        self._scrubber = Scrubber({})
        self._stream = WorkerStream(self._scrubber)
        self._writer: ChannelWriter | None = None
        self._unsent: list[wire.ToWorker] = []
        self._cause: str | None = None
        self._detail = ""
        self._leaving = self._handles_sigterm = self._raised = self._ending = self._kill_scheduled = False
        self._finished_s: float | None = None  # when it reported Finished
        self._last_message_s: float | None = None  # since it trains
        self._step_s = 0.0

    @property
    def key(self) -> str:
        return f"{self.job}/{self.name}"

    @property
    def started(self) -> bool:
        return self._submitted

    @property
    def finished(self) -> bool:
        """True once it reported Finished: its device may be assigned again, to a worker that starts when it is gone."""
        return self._finished_s is not None

    @property
    def _command(self) -> bool:
        return self._bootstrap is not None and self._bootstrap.spec.command is not None

    @property
    def spec(self) -> PlacedSpec | None:
        """Its spec; None before prepare()."""
        return None if self._bootstrap is None else self._bootstrap.spec

    def pids(self) -> set[int]:
        """Pids of all its processes."""
        return self.group.pids() or {self.pid, *processes.descendants(self.pid)}

    def status(self) -> wire.WorkerStatus:
        ago_s = None if self._finished_s is None else time.monotonic() - self._finished_s
        return wire.WorkerStatus(self.job, self.name, self.device, self.generation, self.phase, ago_s)

    # ------------------------------------------------------------ start

    def prepare(
        self, spec: PlacedSpec, environment: Mapping[str, str], generation: int, secrets: Mapping[str, str]
    ) -> None:
        """Set what to start; submit() starts it once there is a fork server."""
        self._scrubber = Scrubber(secrets)
        self._stream = WorkerStream(self._scrubber)
        cpu = spec.cpu or self.demand.get("cpu", 1.0)  # default: its device's part
        granted = msgspec.structs.replace(spec, cpu=cpu)
        self._bootstrap = WorkerBootstrap(self.name, self.device, granted, {**secrets, **environment})
        self.generation = generation

    def submit(self) -> None:
        """Have the fork server start it."""
        assert self._bootstrap is not None
        spec = self._bootstrap.spec
        self._submitted = True
        try:
            with contextlib.ExitStack() as undone:
                target = LogFile(job_folders.logs(spec), self.name, spec.log_bytes)
                undone.callback(target.close)
                disk_usage.check_reserve(job_folders.logs(spec))
                message = self._line.pack(self._bootstrap)
                undone.pop_all()
        except CannotStart as error:
            self._emit_for_worker(wire.Raised(error=str(error), permanent=True))
            self._end(wire.Exited(code=None))
            return
        except OSError as error:
            cause = "no-room" if disk_usage.is_full(error) else "not-started"
            self._end(wire.Exited(code=None, cause=cause, detail=self._scrubber.text(str(error))))
            return
        source, sink = make_pipe(spec.uid)
        ours, theirs = socket.socketpair()
        with theirs, os.fdopen(sink, "wb"), contextlib.closing(message):
            self._channel = asyncio.create_task(self._read_channel(ours))
            self._output = LogPump(source, target, self._scrubber)
            self._line.start(message, theirs.fileno(), sink)
        self._bootstrap = msgspec.structs.replace(self._bootstrap, environment={})  # it contains secrets

    # ------------------------------------------------------------ messages

    async def _read_channel(self, channel: socket.socket) -> None:
        channel.setblocking(False)
        self._writer, loop = ChannelWriter(channel), asyncio.get_running_loop()
        if not self._command:
            self._writer.write(b"".join(map(framing.pack, self._unsent)))
        try:
            while data := await loop.sock_recv(channel, 1 << 16):
                async for message in self._stream.messages(data):
                    self._handle_message(message)
                await self._stream.throttle()
                await asyncio.sleep(0)  # sock_recv does not yield while data is queued; other workers have their turn
        except ConnectionResetError:
            pass
        except ValueError as error:  # tenant code is at the other end: do not trust it
            self._emit_for_worker(wire.Raised(error=f"the worker sent an invalid message: {error}"))
            self._line.kill(self.key, signal.SIGKILL)
        finally:
            self._writer.close()
            channel.close()
        if self._command and not self._raised:
            self._emit_for_worker(wire.Ready())
            early, self._unsent = self._unsent, []
            for waiting in early:
                self.tell(waiting)

    def _handle_message(self, message: wire.FromWorker) -> None:
        if isinstance(message, wire.Progress):
            self._last_message_s = time.monotonic()
            self._step_s = silence.usual_step_s(self._step_s, message.step_s)
        elif self._last_message_s is not None:
            self._last_message_s = time.monotonic()
        if isinstance(message, wire.Joined):
            self.generation = message.generation
            self._last_message_s = None  # loading is not limited: silence counts from the first step
        if not self._emit_message(message):
            raise ValueError("it has more unstored messages than the platform keeps")

    def _emit_for_worker(self, message: wire.FromWorker) -> None:
        """Emit a message of the platform on the worker's behalf."""
        self._emit_message(self._scrubber.message(message))

    def _emit_message(self, message: wire.FromWorker) -> bool:
        if isinstance(message, wire.Raised) and message.no_room and self.phase == "starting":
            self._cause, self._detail, self._raised = self._cause or "no-room", message.error, True
            return True
        self.phase = _PHASES.get(type(message), self.phase)
        self._raised = self._raised or isinstance(message, wire.Raised)
        if isinstance(message, wire.Finished) and self._finished_s is None:
            self._finished_s = time.monotonic()
        return self._emit(self, message)

    def tell(self, message: wire.ToWorker) -> None:
        """Send a message to the worker; for a command, act on it and answer on its behalf."""
        if self.phase == "gone":
            return
        if isinstance(message, wire.Join):
            message = self._placed(message)
        if self._writer is None or (self._command and self.phase == "starting"):
            self._unsent.append(message)
        elif not self._command:
            self._writer.write(framing.pack(message))
        elif isinstance(message, wire.Join):
            self.generation = message.generation
            self._emit_for_worker(wire.Joined(generation=message.generation, step=0))
        elif not self._leaving:
            self._leaving, self._handles_sigterm = True, processes.handles_signal(self.pid, signal.SIGTERM)
            self.stop(LEAVE_GRACE_S)

    def _placed(self, join: wire.Join) -> wire.Join:
        """The Join with this machine's rendezvous file."""
        if not join.rendezvous or self._bootstrap is None:
            return join
        return placed_join(join, Path(self._bootstrap.spec.folder))

    # ------------------------------------------------------------ end

    def stop(self, grace_s: float) -> None:
        """End it with SIGTERM, and SIGKILL after the grace period."""
        if self.phase == "gone":
            return
        self._cause = self._cause or "stopped"
        if not self._submitted:
            self._end(wire.Exited(code=None, cause=self._cause))
        elif grace_s <= 0:
            self._line.kill(self.key, signal.SIGKILL)
        else:
            self._line.kill(self.key, signal.SIGTERM)
            asyncio.get_running_loop().call_later(grace_s, self._kill_if_alive)

    def kill_if_lingering(self) -> None:
        """Its device is needed: kill its finished process after LINGER_S."""
        if self.finished and not self._kill_scheduled:
            self._kill_scheduled = True
            asyncio.get_running_loop().call_later(LINGER_S, self._kill_if_alive)

    def _kill_if_alive(self) -> None:
        if not self.gone.is_set():
            self._line.kill(self.key, signal.SIGKILL)

    def check_silence(self, now_s: float) -> None:
        """Kill it when it has trained and then sent nothing for too long."""
        if self.phase != "joined" or self._last_message_s is None or self._bootstrap is None or self._cause:
            return
        if (
            now_s - self._last_message_s
            > silence.limit_s(self._step_s, self._bootstrap.spec.silence_s) + SILENCE_GRACE_S
        ):
            self._cause = "silent"
            self._line.kill(self.key, signal.SIGKILL)

    def kill_over_limit(self, cause: str, detail: str) -> None:
        """Kill it for exceeding a limit."""
        if self._submitted and self._cause is None and not self.gone.is_set():
            self._cause, self._detail = cause, self._scrubber.text(detail)  # may contain names of its files
            self._line.kill(self.key, signal.SIGKILL)

    async def ended(self, end: Ended, cause: str | None = None) -> None:
        """Its process has ended: receive its last messages and output, then report Exited."""
        if self._ending:
            return
        self._ending = True
        self._cause = self._cause or cause
        if end.problem is not None:
            self._cause = self._cause or ("no-room" if end.no_room else "not-started")
            self._detail = self._detail or self._scrubber.text(end.problem)
        if end.out_of_memory and self._cause not in ("silent", "disk-full"):
            self._cause = "out-of-memory"
        if self._channel is not None and self._output is not None:
            last_line = self._closing_log_line(end.signal)
            await asyncio.gather(self._drain_channel(self._channel), self._output.finish(_DRAIN_S, last_line))
        by_itself = self._cause is None or (self._cause == "stopped" and self._leaving and not self._handles_sigterm)
        if self._command and end.code == 0 and by_itself:
            self._emit_for_worker(wire.Finished(generation=self.generation, step=0))
        elif self._command and self._leaving:
            self._emit_for_worker(wire.Left(generation=self.generation, step=0))
        self._end(wire.Exited(end.code, end.signal, self._cause, self._detail, end.cpu_s))

    async def _drain_channel(self, channel: asyncio.Task[None]) -> None:
        """Receive the last messages; waits longer only while a long one is being decoded."""
        self._stream.stop_throttling()
        deadline_s = time.monotonic() + _READ_S
        await asyncio.wait([channel], timeout=_DRAIN_S)
        while not channel.done() and self._stream.reading and time.monotonic() < deadline_s:
            await asyncio.wait([channel], timeout=0.1)
        channel.cancel()

    def _closing_log_line(self, number: int | None) -> str | None:
        """The platform's last line in the log: the cause or signal of its end; None when the worker ended by itself."""
        match self._cause:
            case None if number is not None:
                return f"killed by {_signal_name(number)}"
            case "out-of-memory":
                asked = None if self._bootstrap is None else self._bootstrap.spec.memory_bytes
                limit = f"the requested {shown_size(asked)}" if asked else "its part of the node (none was requested)"
                return f"killed because it used more memory than {limit}; raise resources.memory"
            case "disk-full":
                return f"killed because {self._detail}"
            case "silent":
                return "killed because it reported no progress for too long; raise silence_timeout if that is normal"
            case _:
                return None

    def _end(self, exited: wire.Exited) -> None:
        if not self.gone.is_set():
            self.phase = "gone"
            self._emit(self, exited)
            self.gone.set()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have no name
        return f"signal {number}"
