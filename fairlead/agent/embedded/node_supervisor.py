"""Keeps one node: finds or starts it, hears it, and when it dies fences it, says so, and brings it back."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

import msgspec

from fairlead import wire
from fairlead.agent.embedded import host_client
from fairlead.agent.embedded.fencing import fence
from fairlead.agent.embedded.node_link import NodeGone, NodeLink
from fairlead.agent.embedded.node_records import HostRecord, NodeRecord, read_host, read_record, socket_path
from fairlead.agent.embedded.node_records import isolation as isolation_of
from fairlead.agent.embedded.node_shapes import NodeShape
from fairlead.agent.node import processes
from fairlead.agent.node.messages import NodeConfig
from fairlead.agent.protocol import BackendEvent, NodeJoined, NodeLost, NodeSlept, NodeTelemetry, WorkerEvent
from fairlead.errors import FairleadError, LostLeadership, Unavailable
from fairlead.home import Home

FROZEN_S = 10.0
SAME_CLOCK_S = 0.01  # clocks that differ by less are one clock, read at two moments
WAKE_S = 1.0  # before any start was measured
_CONNECT_S = 15.0
_LONG_LIFE_S = 120.0

log = logging.getLogger("fairlead.local")


class NodeSupervisor:
    """One node as the leader sees it."""

    def __init__(
        self, home: Home, shape: NodeShape, epoch: int, emit: Callable[[BackendEvent], None],
        restart_s: tuple[float, float] = (5.0, 60.0), preload: bool = True, isolation: str = "auto",
    ) -> None:  # fmt: skip
        self.shape = shape
        self.link: NodeLink | None = None
        self.status: wire.NodeStatus | None = None
        self.telemetry: wire.Telemetry | None = None
        self.pid = 0  # of its node manager
        self._was_outdated = False  # when it was last reached
        self.isolation = ""  # as of the last change of its fork server
        self.first_attempt_over = asyncio.Event()  # the first attempt is over
        self.failure: FairleadError | None = None
        self._home, self._epoch, self._emit = home, epoch, emit
        self._first_delay_s, self._longest_delay_s = restart_s
        self._delay_s = 0.0
        self._preload, self._isolation = preload, isolation
        self._host: HostRecord | None = None  # that would start it anew
        self._fenced = False  # nothing of it lives: known before it is started anew
        self._loss_reported = False
        self.fencing = False  # it is given up, and it is not certain yet that nothing of it lives
        self._delivered = 0  # the newest event of this incarnation that was passed on
        self.asleep = False  # as it was told; its processes are ended, and start again when it is woken
        self.wake_s = WAKE_S  # how long that takes, as measured when it was last started
        self._woken_s: float | None = None  # since when it is being woken
        self._wanted = asyncio.Event()
        self._wanted.set()
        self._retry_now = asyncio.Event()

    async def run(self) -> None:
        """Look after the node until cancelled, or until another leads."""
        try:
            while True:
                await self._wanted.wait()
                self._retry_now.clear()
                await self._run_once()
                if not self.asleep:
                    await self._pause()
        except LostLeadership as error:
            log.warning("%s: %s", self.shape.name, error)
            self.failure = error
        finally:
            self.first_attempt_over.set()
            await self._close_link()

    async def _run_once(self) -> None:
        try:
            self.status = await self._adopt_or_start()
        except LostLeadership:
            raise
        except (FairleadError, OSError) as error:
            log.error("%s does not come up: %s", self.shape.name, error)
            self.failure = error if isinstance(error, FairleadError) else Unavailable(str(error))
            self.first_attempt_over.set()
            self._report_failed_wake(str(error))
            if self._fenced and not self._loss_reported:  # else its gangs would wait for it
                self._loss_reported = True
                self._emit(NodeLost(self.shape.name, "", f"it does not come up: {error}"))
            return
        self.failure, self._was_outdated, born_s = None, False, time.monotonic()
        incarnation, self.isolation = self.status.incarnation, self.status.isolation
        record = read_record(self._home, self.shape.name)
        self.pid = 0 if record is None else record.process.pid
        self._delivered = 0
        workers, sequence, woken_in_s = tuple(self.status.workers), self.status.sequence, self._finish_wake()
        self._emit(NodeJoined(self.shape.name, incarnation, workers, sequence, woken_in_s))
        self._loss_reported = False
        self._listen(incarnation)
        self.first_attempt_over.set()
        why = await self._wait_until_lost()
        self.fencing = True
        self._was_outdated = self.outdated
        self.status = self.telemetry = None
        await self._fence_until_done()
        name = self.shape.name
        self._emit(NodeSlept(name, incarnation) if self.asleep else NodeLost(name, incarnation, why))
        self._loss_reported, self.fencing = True, False
        if time.monotonic() - born_s > _LONG_LIFE_S:
            self._delay_s = 0.0

    async def _pause(self) -> None:
        """Wait before the next attempt, longer each time, unless somebody asks for the node now. Who lived long, or is
        lost for the first time, comes back at once."""
        try:
            async with asyncio.timeout(self._delay_s):
                await self._retry_now.wait()
        except TimeoutError:
            self._delay_s = min(self._longest_delay_s, max(self._first_delay_s, 2 * self._delay_s))
        self._retry_now.clear()

    # ------------------------------------------------------------ reach

    async def _adopt_or_start(self) -> wire.NodeStatus:
        """Take command of the node that runs, or start it."""
        self._fenced = False
        self.refresh_host()
        record = read_record(self._home, self.shape.name)
        if record is not None and processes.alive(record.process) and self._is_compatible(record):
            try:
                found = await self._connect(record.process)
                if found.workers or not self._runs_other_code(found):
                    return found
                log.info("%s is of another version and idle: it is started anew", self.shape.name)
            except NodeGone:
                log.warning("%s could not be adopted", self.shape.name)
        await self._fence()
        self._fenced = True
        home, began_s = self._home, time.monotonic()
        await host_client.start_node(
            home,
            NodeConfig(
                home=str(home.root), tag=home.memory.name.removeprefix("fairlead-"), name=self.shape.name,
                capacity=self.shape.capacity(), device_type=self.shape.device_type, epoch=self._epoch,
                first_core=self.shape.first_core, isolation=self._isolation, protocol=wire.PROTOCOL,
            ),
            preload=self._preload,
        )  # fmt: skip
        status = await self._connect()
        self.refresh_host()  # which was perhaps started for this
        self.wake_s = time.monotonic() - began_s
        return status

    def require_isolation(self, isolation: str) -> None:
        """From now on the node is started with this level or not at all."""
        self._isolation = isolation

    def _is_compatible(self, record: NodeRecord) -> bool:
        """Whether the node that runs is what is wanted now."""
        less = self._isolation == "none" and record.isolation != "sandbox"
        kept_apart = less or self._isolation in ("auto", record.isolation)
        return kept_apart and record.capacity == self.shape.capacity()

    async def _connect(self, adopted: processes.Process | None = None) -> wire.NodeStatus:
        """Connect and ask who is there, as often as it takes within the time (and as it lives, when it did)."""
        deadline_s = time.monotonic() + _CONNECT_S
        while True:
            try:
                self.link = await NodeLink.connect(socket_path(self._home, self.shape.name), self._epoch)
                reply = await self.link.request(wire.Status(), timeout_s=3.0)
            except (OSError, NodeGone) as error:
                await self._close_link()
                if adopted is not None:
                    self.first_attempt_over.set()  # it lives and does not answer: nobody waits for it
                if time.monotonic() > deadline_s or (adopted is not None and not processes.alive(adopted)):
                    raise NodeGone(f"{self.shape.name}: {error}") from None
                await asyncio.sleep(0.01)
            else:
                assert reply.status is not None
                return reply.status

    def _note_isolation(self, record: NodeRecord | None) -> None:
        """What keeps tenants apart there: known also while it sleeps, when there is no record."""
        if record is not None:
            self.isolation = isolation_of(record.isolation, None if record.fork_server is None else record.version)

    def _listen(self, incarnation: str) -> None:
        name = self.shape.name

        def hear(event: wire.Event) -> None:
            if isinstance(event.body, wire.Telemetry):
                if self.telemetry is None or self.telemetry.warm != event.body.warm:
                    self._note_isolation(read_record(self._home, name))
                self.telemetry = event.body
                self._emit(NodeTelemetry(name, event.body))
                return
            if event.sequence > self._delivered:  # a line that was cut and mended brings everything again
                self._delivered = event.sequence
                time_s, body = self._on_leader_clock(event)
                self._emit(WorkerEvent(name, incarnation, event.sequence, time_s, event.job, event.worker, body))

        if self.link is not None:
            self.link.listen(hear)

    def _on_leader_clock(self, event: wire.Event) -> tuple[float, wire.FromWorker | wire.Exited]:
        """When the event happened, and what it says, with the node's clock replaced by ours."""
        assert not isinstance(event.body, wire.Telemetry)
        age_s = self.link.age_s(event) if self.link is not None else None
        if age_s is None:
            return event.time_s, event.body
        time_s = time.time() - age_s
        return time_s, shift_times(event.body, time_s - event.time_s)

    # ------------------------------------------------------------ lose

    async def _wait_until_lost(self) -> str:
        """Why the node counts as lost, when it does."""
        while self.link is not None:
            silent_s = (
                time.monotonic() - self.link.last_message_s
            )  # it says something every second, so this looks rarely
            await asyncio.wait([self.link.reading], timeout=1.0 if self.outdated else max(1.0, FROZEN_S - silent_s))
            if self.link.reading.done():
                if not await self._reconnect():
                    return "its node manager died"
            elif time.monotonic() - self.link.last_message_s > FROZEN_S and not await self._is_responsive():
                return f"its node manager has been silent for {FROZEN_S:g} s"
            elif self._runs_other_code(self.status) and await self._is_empty():
                self._retry_now.set()
                return "it was of another version, and is started anew now that it is empty"
        return "it was let go"

    async def _reconnect(self) -> bool:
        """The line was cut: whether the same node manager is there all the same."""
        before, deadline_s = self.status, time.monotonic() + FROZEN_S
        while before is not None and time.monotonic() < deadline_s:
            record = read_record(self._home, self.shape.name)
            if record is None or record.incarnation != before.incarnation or not processes.alive(record.process):
                return False
            link = None
            try:
                link = await NodeLink.connect(socket_path(self._home, self.shape.name), self._epoch)
                await link.request(wire.Status(), timeout_s=3.0)
            except (OSError, NodeGone):
                if link is not None:
                    await link.close()
                await asyncio.sleep(0.005)
                if processes.alive(record.process):
                    continue
                return False
            self.link = link
            self._listen(before.incarnation)
            return True
        return False

    @property
    def outdated(self) -> bool:
        """Whether the node manager is of another version: it keeps what runs, and gets nothing new.

        One that is being ended stays so until it is reached anew: its loss may not have been heard of yet.
        """
        if self.status is None:
            return self._was_outdated and not self.asleep
        return self.status.protocol != wire.PROTOCOL or self._runs_other_code(self.status)

    def _runs_other_code(self, status: wire.NodeStatus | None) -> bool:
        """Whether a node manager that was started anew would be another: one as the host would fork it is not.

        Measured by the host, not by this process: else, with yet another version installed meanwhile, every new one
        would be found outdated as well, and be started anew for ever.
        """
        host = self._host
        return status is not None and host is not None and (
            (status.protocol, status.build) != (host.protocol, host.build)
        )  # fmt: skip

    def refresh_host(self) -> None:
        """Know what would be forked from now on; asked for whenever there may be another host."""
        self._host = read_host(self._home)

    async def _is_empty(self) -> bool:
        try:
            reply = await self.link.request(wire.Status(), timeout_s=2.0) if self.link is not None else None
        except NodeGone:
            return False
        return reply is not None and reply.status is not None and not reply.status.workers

    async def _is_responsive(self) -> bool:
        """A paused leader finds old silence; only an unanswered question proves it."""
        try:
            if self.link is not None:
                await self.link.request(wire.Status(), timeout_s=2.0)
        except NodeGone:
            return False
        return True

    async def _fence(self) -> None:
        await self._close_link()
        await asyncio.to_thread(fence, self._home, self.shape.name, self._epoch)

    async def _fence_until_done(self) -> None:
        """Nothing may be said of the node before it is certain that nothing of it lives."""
        while True:
            try:
                return await self._fence()
            except LostLeadership:
                raise
            except (Unavailable, OSError) as error:
                log.error("%s cannot be fenced yet: %s", self.shape.name, error)
                await asyncio.sleep(1.0)

    async def _close_link(self) -> None:
        link, self.link = self.link, None
        if link is not None:
            await link.close()

    # ------------------------------------------------------------ orders

    def start(self) -> None:
        """Bring it back now."""
        self._wanted.set()
        self._retry_now.set()

    async def sleep(self) -> None:
        """End its processes, if nothing runs there; its NodeSlept follows."""
        if self.link is None or self.asleep or not await self._is_empty():
            return
        self.asleep = True
        self._wanted.clear()
        try:
            await self._end_processes()
        except FairleadError:
            self.asleep = False
            self._wanted.set()
            raise

    def wake(self) -> None:
        """Start it again, if it sleeps; its NodeJoined follows, or its NodeLost."""
        if self.asleep and self._woken_s is None:
            self._woken_s = time.monotonic()
            self.start()

    @property
    def waking(self) -> bool:
        return self._woken_s is not None

    def _finish_wake(self) -> float | None:
        """How long it took to wake it, when it has just joined; None if it did not sleep."""
        began_s, self._woken_s, self.asleep = self._woken_s, None, False
        return None if began_s is None else time.monotonic() - began_s

    def _report_failed_wake(self, why: str) -> None:
        if self.asleep and self._finish_wake() is not None:
            self._emit(NodeLost(self.shape.name, "", f"it could not be woken: {why}"))

    async def stop(self, *, stay_down: bool) -> None:
        """Kill it; it comes back by itself unless it is to stay down. Its NodeLost follows."""
        if stay_down:
            self._wanted.clear()
        await self._end_processes()

    async def _end_processes(self) -> None:
        """End all that runs on the node, or say why that did not work."""
        try:
            await asyncio.to_thread(fence, self._home, self.shape.name, self._epoch)
        except OSError as error:
            raise Unavailable(f"{self.shape.name} cannot be fenced: {error}", fix="it is tried again") from error


def shift_times(body: wire.FromWorker | wire.Exited, by_s: float) -> wire.FromWorker | wire.Exited:
    """The message with the times of its steps moved from the node's clock to the leader's."""
    if not isinstance(body, wire.Progress) or abs(by_s) < SAME_CLOCK_S:
        return body
    steps = [step | {"time_s": step["time_s"] + by_s} if "time_s" in step else step for step in body.steps]
    return msgspec.structs.replace(body, steps=steps)
