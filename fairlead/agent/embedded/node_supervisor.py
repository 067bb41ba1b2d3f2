"""Supervises one node: adopts or starts it, forwards its events, fences it when it dies, and restarts it."""

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
SAME_CLOCK_S = 0.01  # clocks that differ by less are the same clock
WAKE_S = 1.0  # estimate before any start was measured
_CONNECT_S = 15.0
_LONG_LIFE_S = 120.0

log = logging.getLogger("fairlead.local")


class NodeSupervisor:
    """One node, from the leader's side."""

    def __init__(
        self, home: Home, shape: NodeShape, epoch: int, emit: Callable[[BackendEvent], None],
        restart_s: tuple[float, float] = (5.0, 60.0), preload: bool = True, isolation: str = "auto",
    ) -> None:  # fmt: skip
        self.shape = shape
        self.link: NodeLink | None = None
        self.status: wire.NodeStatus | None = None
        self.telemetry: wire.Telemetry | None = None
        self.pid = 0  # of its node manager
        self._was_outdated = False  # when last connected
        self.isolation = ""  # as of its last fork server
        self.first_attempt_over = asyncio.Event()  # set after the first attempt to reach the node
        self.failure: FairleadError | None = None
        self._home, self._epoch, self._emit = home, epoch, emit
        self._first_delay_s, self._longest_delay_s = restart_s
        self._delay_s = 0.0
        self._preload, self._isolation = preload, isolation
        self._host: HostRecord | None = None  # the host that would restart it
        self._fenced = False  # certain that none of its processes lives
        self._loss_reported = False
        self.fencing = False  # lost, and not yet certain that none of its processes lives
        self._delivered = 0  # the newest event of this incarnation that was emitted
        self.asleep = False  # its processes are ended on request, until wake()
        self.wake_s = WAKE_S  # duration of its last start
        self._woken_s: float | None = None  # when wake() was called
        self._wanted = asyncio.Event()
        self._wanted.set()
        self._retry_now = asyncio.Event()

    async def run(self) -> None:
        """Supervise the node until cancelled, or until another control plane leads."""
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
            if self._fenced and not self._loss_reported:  # or its gangs would wait for it
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
        """Back off before the next attempt, unless the node is requested now. A node that ran long, or is lost for the
        first time, is restarted at once."""
        try:
            async with asyncio.timeout(self._delay_s):
                await self._retry_now.wait()
        except TimeoutError:
            self._delay_s = min(self._longest_delay_s, max(self._first_delay_s, 2 * self._delay_s))
        self._retry_now.clear()

    # ------------------------------------------------------------ adopt or start

    async def _adopt_or_start(self) -> wire.NodeStatus:
        """Connect to the running node manager if it fits; otherwise fence the node and start it."""
        self._fenced = False
        self.refresh_host()
        record = read_record(self._home, self.shape.name)
        if record is not None and processes.alive(record.process) and self._is_compatible(record):
            try:
                found = await self._connect(record.process)
                if found.workers or not self._runs_other_code(found):
                    return found
                log.info("%s runs another version and is idle: restarting it", self.shape.name)
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
        self.refresh_host()  # it may have been started just now
        self.wake_s = time.monotonic() - began_s
        return status

    def require_isolation(self, isolation: str) -> None:
        """Start the node only with this isolation from now on."""
        self._isolation = isolation

    def _is_compatible(self, record: NodeRecord) -> bool:
        """True when the running node has the wanted capacity and isolation."""
        less = self._isolation == "none" and record.isolation != "sandbox"
        kept_apart = less or self._isolation in ("auto", record.isolation)
        return kept_apart and record.capacity == self.shape.capacity()

    async def _connect(self, adopted: processes.Process | None = None) -> wire.NodeStatus:
        """Connect and request the status; retries until the time is over or the adopted process has died."""
        deadline_s = time.monotonic() + _CONNECT_S
        while True:
            try:
                self.link = await NodeLink.connect(socket_path(self._home, self.shape.name), self._epoch)
                reply = await self.link.request(wire.Status(), timeout_s=3.0)
            except (OSError, NodeGone) as error:
                await self._close_link()
                if adopted is not None:
                    self.first_attempt_over.set()  # it lives but does not answer: do not hold up open()
                if time.monotonic() > deadline_s or (adopted is not None and not processes.alive(adopted)):
                    raise NodeGone(f"{self.shape.name}: {error}") from None
                await asyncio.sleep(0.01)
            else:
                assert reply.status is not None
                return reply.status

    def _note_isolation(self, record: NodeRecord | None) -> None:
        """Remember the isolation for while the node sleeps and has no record."""
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
            if event.sequence > self._delivered:  # a reconnected line repeats unacknowledged events
                self._delivered = event.sequence
                time_s, body = self._on_leader_clock(event)
                self._emit(WorkerEvent(name, incarnation, event.sequence, time_s, event.job, event.worker, body))

        if self.link is not None:
            self.link.listen(hear)

    def _on_leader_clock(self, event: wire.Event) -> tuple[float, wire.FromWorker | wire.Exited]:
        """The event's time and body, converted from the node's clock to the leader's."""
        assert not isinstance(event.body, wire.Telemetry)
        age_s = self.link.age_s(event) if self.link is not None else None
        if age_s is None:
            return event.time_s, event.body
        time_s = time.time() - age_s
        return time_s, shift_times(event.body, time_s - event.time_s)

    # ------------------------------------------------------------ loss

    async def _wait_until_lost(self) -> str:
        """Wait until the node is lost; returns the reason."""
        while self.link is not None:
            silent_s = time.monotonic() - self.link.last_message_s  # telemetry arrives every second
            await asyncio.wait([self.link.reading], timeout=1.0 if self.outdated else max(1.0, FROZEN_S - silent_s))
            if self.link.reading.done():
                if not await self._reconnect():
                    return "its node manager died"
            elif time.monotonic() - self.link.last_message_s > FROZEN_S and not await self._is_responsive():
                return f"its node manager has been silent for {FROZEN_S:g} s"
            elif self._runs_other_code(self.status) and await self._is_empty():
                self._retry_now.set()
                return "it ran another version and is restarted now that it is empty"
        return "it was disconnected"

    async def _reconnect(self) -> bool:
        """Reconnect to the same node manager; False when it is gone."""
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
        """True when the node manager runs another version: it keeps its workers and gets no new ones.

        Stays true while such a node is being restarted: its loss may not have been processed yet.
        """
        if self.status is None:
            return self._was_outdated and not self.asleep
        return self.status.protocol != wire.PROTOCOL or self._runs_other_code(self.status)

    def _runs_other_code(self, status: wire.NodeStatus | None) -> bool:
        """True when a restarted node manager would run other code.

        Compared with the host, which forks it, not with this process: with a third version installed meanwhile every
        new node manager would differ from this process and be restarted for ever.
        """
        host = self._host
        return status is not None and host is not None and (
            (status.protocol, status.build) != (host.protocol, host.build)
        )  # fmt: skip

    def refresh_host(self) -> None:
        """Read the record of the current host; call it whenever the host may have changed."""
        self._host = read_host(self._home)

    async def _is_empty(self) -> bool:
        try:
            reply = await self.link.request(wire.Status(), timeout_s=2.0) if self.link is not None else None
        except NodeGone:
            return False
        return reply is not None and reply.status is not None and not reply.status.workers

    async def _is_responsive(self) -> bool:
        """Probe the node: after a pause of the leader only an unanswered request proves that the node is silent."""
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
        """Fence the node, retrying until it succeeds: its loss must not be reported before."""
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

    # ------------------------------------------------------------ commands

    def start(self) -> None:
        """Start the node now, without back-off."""
        self._wanted.set()
        self._retry_now.set()

    async def sleep(self) -> None:
        """End the node's processes if no worker runs there; NodeSlept follows."""
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
        """Start a sleeping node; NodeJoined or NodeLost follows."""
        if self.asleep and self._woken_s is None:
            self._woken_s = time.monotonic()
            self.start()

    @property
    def waking(self) -> bool:
        return self._woken_s is not None

    def _finish_wake(self) -> float | None:
        """Seconds that waking took; None if the node did not sleep. Clears the sleep state."""
        began_s, self._woken_s, self.asleep = self._woken_s, None, False
        return None if began_s is None else time.monotonic() - began_s

    def _report_failed_wake(self, why: str) -> None:
        if self.asleep and self._finish_wake() is not None:
            self._emit(NodeLost(self.shape.name, "", f"it could not be woken: {why}"))

    async def stop(self, *, stay_down: bool) -> None:
        """Kill the node; it restarts unless ``stay_down``. NodeLost follows."""
        if stay_down:
            self._wanted.clear()
        await self._end_processes()

    async def _end_processes(self) -> None:
        """End the node's processes; raises Unavailable when that fails."""
        try:
            await asyncio.to_thread(fence, self._home, self.shape.name, self._epoch)
        except OSError as error:
            raise Unavailable(f"{self.shape.name} cannot be fenced: {error}", fix="the platform retries it") from error


def shift_times(body: wire.FromWorker | wire.Exited, by_s: float) -> wire.FromWorker | wire.Exited:
    """Progress with its step times moved by ``by_s``; other messages and tiny shifts are returned unchanged."""
    if not isinstance(body, wire.Progress) or abs(by_s) < SAME_CLOCK_S:
        return body
    steps = [step | {"time_s": step["time_s"] + by_s} if "time_s" in step else step for step in body.steps]
    return msgspec.structs.replace(body, steps=steps)
