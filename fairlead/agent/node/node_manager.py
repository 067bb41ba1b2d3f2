"""The node manager: reserves the devices of one virtual node, starts and watches its workers, reports to the leader."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
import uuid
from collections.abc import Coroutine
from pathlib import Path

from fairlead import unix_sockets, wire
from fairlead.agent.embedded import gang_network
from fairlead.agent.embedded.node_records import (
    NodeRecord,
    WorkerRecord,
    forget_node,
    isolation,
    record_path,
    socket_path,
    write_record,
)
from fairlead.agent.node import cgroups, messages, processes
from fairlead.agent.node.code_version import code_digest
from fairlead.agent.node.device_slots import NoRoom, cards_of, check_room, full_demand, has_room
from fairlead.agent.node.disk_watch import DiskWatch
from fairlead.agent.node.fork_bomb_throttle import ForkBombThrottle
from fairlead.agent.node.leader_line import LeaderLine
from fairlead.agent.node.messages import NodeConfig
from fairlead.agent.node.node_grid import NodeGrid
from fairlead.agent.node.outbox import Outbox
from fairlead.agent.node.worker import Worker
from fairlead.agent.node.worker_usage import Meter
from fairlead.agent.sandbox import linux
from fairlead.agent.zygote.fork_server_line import ForkServerLine
from fairlead.home import Home
from fairlead.local_wire import PlacedSpec

TELEMETRY_S = 1.0
IDLE_EXIT_S = 600.0
_IDLE_EXIT_UNACKNOWLEDGED_S = 86_400.0  # while it has unacknowledged events
_RELEASE_S = 10.0

log = logging.getLogger("fairlead.node")


class NodeManager:
    """Manages one virtual node. It outlives leaders: events are kept until a leader acknowledges them."""

    def __init__(self, config: NodeConfig) -> None:
        self._config = config
        self._home = Home(Path(config.home))
        self._incarnation = uuid.uuid4().hex[:12]
        self._workers: dict[str, Worker] = {}
        self._outbox = Outbox()
        self._line = ForkServerLine(self._home, config, self._from_fork_server)
        self._control = LeaderLine(config.epoch, self._answer, self._outbox, self._write_record)
        self._tasks: set[asyncio.Task[None]] = set()
        self._end = asyncio.Event()
        self._used_s = time.monotonic()
        self._disk = DiskWatch(self._home.run)
        self._throttle = ForkBombThrottle()
        self._grid = NodeGrid(self._home, config)

    async def run(self) -> None:
        """Serve until told to end, or until the node has been unused for a while."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end.set)
        self._write_record()
        listener = unix_sockets.listen(socket_path(self._home, self._config.name))
        server = await asyncio.start_unix_server(self._control.serve, sock=listener)
        supply = asyncio.create_task(self._line.run())
        watch = asyncio.create_task(self._watch())
        await self._end.wait()
        watch.cancel()
        await self._stop_all()
        await self._control.flush()
        server.close()
        supply.cancel()
        await asyncio.wait([supply])
        self._clean_up()

    def _clean_up(self) -> None:
        fork_server = self._line.process
        if fork_server is not None:
            processes.wait_gone(lambda: not processes.alive(fork_server), 5.0)
        group = self._line.group
        processes.wait_gone(lambda: cgroups.discard(group), 2.0)
        self._grid.close()
        self._home.forget_node_memory(self._config.name)
        forget_node(self._home, self._config.name)

    async def _watch(self) -> None:
        """Every second: check for silent workers and disk limits, exit when unused, send telemetry."""
        meter = Meter(self._config.capacity.get("cpu", 1.0), self._config.name)
        while True:
            await asyncio.sleep(TELEMETRY_S)
            now_s = time.monotonic()
            for worker in self._workers.values():
                worker.check_silence(now_s)
            living = [worker for worker in self._workers.values() if worker.phase != "gone"]
            self._disk.check([worker for worker in living if worker.pid])
            self._throttle.update(self._line.group, [worker.group for worker in living])
            if self._control.connected or living:
                self._used_s = now_s
            elif now_s - self._used_s > (_IDLE_EXIT_UNACKNOWLEDGED_S if self._outbox else IDLE_EXIT_S):
                self._end.set()
            if not record_path(self._home, self._config.name).exists():
                log.warning("ending: the home of this node was removed")
                self._end.set()
            if self._control.connected:
                telemetry = self._grid.tell(meter.read(self._workers.values(), warm=self._line.warm))
                self._grid.tidy({worker.job for worker in self._workers.values()})
                self._control.push(wire.Event(sequence=0, time_s=time.time(), body=telemetry))

    # ------------------------------------------------------------ requests of the leader

    def _answer(self, request: wire.Request) -> wire.Reply | asyncio.Future[wire.Reply]:
        body = request.body
        match body:
            case wire.Start():
                return self._start(request.id, body)
            case wire.Tell():
                for worker in self._named(body.job, body.workers):
                    worker.tell(body.message)
            case wire.Stop():
                for worker in self._named(body.job, body.workers):
                    worker.stop(body.grace_s)
            case wire.Release():
                return asyncio.ensure_future(self._release(request.id, body))
            case wire.Discard():
                self._grid.drop(body.tenant, body.labels)
            case wire.Acknowledge():
                self._outbox.acknowledge(body.sequence)
            case wire.Status():
                return wire.Reply(request.id, status=self._status(), sent_s=time.monotonic())
            case wire.Shutdown():
                self._end.set()
        return wire.Reply(request.id)

    def _named(self, job: str, names: list[str]) -> list[Worker]:
        keys = (f"{job}/{name}" for name in names)
        return [self._workers[key] for key in keys if key in self._workers]

    def _start(self, number: int, body: wire.Start) -> wire.Reply:
        """Start the workers that do not exist yet, all of them or none."""
        new = {name: device for name, device in body.workers.items() if f"{body.job}/{name}" not in self._workers}
        capacity = self._config.capacity
        try:
            staying = [worker for worker in self._workers.values() if not worker.finished]
            check_room(capacity, staying, new, body.demand)
        except NoRoom as error:
            return wire.Reply(number, error=str(error), code="no-room")
        grid = self._grid.admit(body.worker, body.grid) if new else {}
        for name, device in new.items():
            worker = Worker(body.job, name, device, full_demand(body.demand, capacity), self._line, self._emit)
            card = cards_of(self._config.device_type, device, os.environ)
            variables = body.environment.get(name, {}) | grid | card
            worker.prepare(self._placed(body.worker), variables, body.generation, body.secrets.values)
            self._workers[worker.key] = worker
        self._start_waiting()
        return wire.Reply(number)

    def _placed(self, spec: wire.WorkerSpec) -> PlacedSpec:
        """The worker spec with the job's folders on this machine."""
        memory = self._home.job_memory(self._config.name, spec.pool or spec.job)
        given = {name: getattr(spec, name) for name in wire.WorkerSpec.__struct_fields__}
        return PlacedSpec(**given, folder=str(self._home.job(spec.job)), memory_folder=str(memory))

    def _start_waiting(self) -> None:
        """Start the waiting workers whose device is free; finished workers on a needed device are killed soon."""
        if self._line.hello is None:
            return
        for worker in self._workers.values():
            if worker.phase == "starting" and not worker.started:
                at_work = [other for other in self._workers.values() if other.started and not other.gone.is_set()]
                if not has_room(self._config.capacity, at_work, worker.device, worker.demand):
                    for other in at_work:
                        other.kill_if_lingering()
                elif self._line.hello.problem is None:
                    worker.submit()
                else:
                    end = messages.Ended(worker.key, None, None, problem=self._line.hello.problem)
                    self._spawn(worker.ended(end))

    async def _release(self, number: int, body: wire.Release) -> wire.Reply:
        workers = self._named(body.job, body.workers)
        living = [worker for worker in workers if worker.phase != "gone"]
        for worker in living:
            worker.stop(0.0)
        if living:
            await asyncio.wait([asyncio.create_task(worker.gone.wait()) for worker in living], timeout=_RELEASE_S)
        stuck = [worker.name for worker in living if not worker.gone.is_set()]
        for worker in workers:
            if worker.name not in stuck:
                self._workers.pop(worker.key, None)
        if body.forget_memory and not stuck:
            gang_network.forget(self._home.gangs, body.job)
            await asyncio.to_thread(self._home.forget_job_memory, self._config.name, body.job)
            self._grid.discard(body.job)
        if not any(worker.job == body.job for worker in self._workers.values()):
            self._grid.forget(body.job)
        error = f"still alive: {', '.join(stuck)}" if stuck else None
        return wire.Reply(number, error=error, code="failed" if stuck else None)

    def _status(self) -> wire.NodeStatus:
        hello = self._line.last
        return wire.NodeStatus(
            node=self._config.name,
            incarnation=self._incarnation,
            epoch=self._control.epoch,
            capacity=self._config.capacity,
            device_type=self._config.device_type,
            workers=[worker.status() for worker in self._workers.values()],
            warm=self._line.warm,
            isolation=isolation(self._config.isolation, None if hello is None else hello.version),
            sequence=self._outbox.last,
            protocol=wire.PROTOCOL,
            build=code_digest(),
        )

    # ------------------------------------------------------------ messages of the fork server

    def _from_fork_server(self, message: messages.FromForkServer | None) -> None:
        match message:
            case messages.Hello():
                log.info("fork server %d is ready, cgroups v%d", message.pid, message.version)
                self._start_waiting()
            case messages.Started():
                worker = self._workers.get(message.key)
                if worker is not None:
                    version = self._line.hello.version if self._line.hello is not None else 0
                    worker.pid = message.pid
                    worker.sandbox = processes.identify(message.sandbox) if message.sandbox else None
                    worker.group = cgroups.Group(version, tuple(Path(folder) for folder in message.groups))
            case messages.Ended():
                worker = self._workers.get(message.key)
                if worker is not None:
                    self._spawn(self._handle_exit(worker, message))
            case None:
                self._handle_fork_server_loss()
        self._write_record()

    async def _handle_exit(self, worker: Worker, end: messages.Ended) -> None:
        await worker.ended(end)
        self._start_waiting()

    def _handle_fork_server_loss(self) -> None:
        """The fork server and its workers are dead: kill what they started and report the ends."""
        log.warning("the fork server ended")
        self._line.group.kill()  # includes sandboxes that were being built
        for worker in self._workers.values():
            if worker.started and not worker.gone.is_set():
                worker.group.kill()
                if worker.sandbox is not None:
                    processes.kill(worker.sandbox)
                if worker.pid:
                    processes.kill_group(worker.pid)
                end = messages.Ended(worker.key, None, signal.SIGKILL)
                self._spawn(worker.ended(end, "fork-server-lost"))

    def _emit(self, worker: Worker, body: wire.FromWorker | wire.Exited) -> bool:
        self._control.push(self._outbox.add(time.time(), worker.job, worker.name, body, time.monotonic()))
        return not self._outbox.is_over_limit(worker.job, worker.name)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _stop_all(self) -> None:
        living = [worker for worker in self._workers.values() if worker.phase != "gone"]
        for worker in living:
            worker.stop(0.0)
        if living:
            await asyncio.wait([asyncio.create_task(worker.gone.wait()) for worker in living], timeout=_RELEASE_S)

    def _write_record(self) -> None:
        me = processes.identify(os.getpid())
        hello = self._line.last
        found = {
            worker.key: WorkerRecord(process, worker.job, worker.sandbox)
            for worker in self._workers.values()
            if worker.pid and (process := processes.identify(worker.pid)) is not None
        }
        if me is None:
            return
        record = NodeRecord(
            node=self._config.name, incarnation=self._incarnation, epoch=self._control.epoch, process=me,
            capacity=self._config.capacity, fork_server=self._line.process,
            version=hello.version if hello else 0, groups=hello.groups if hello else [], workers=found,
            isolation=self._config.isolation,
        )  # fmt: skip
        try:
            write_record(self._home, record)
        except OSError as error:  # a full disk: workers go on
            log.error("the node's record could not be written: %s", error)


def main(config: NodeConfig) -> None:
    """Run a node manager in this process; returns when it ends."""
    if processes.lock(Path(config.home) / "run" / f"{config.name}.lock") is None:
        log.info("%s has a node manager already", config.name)
        return
    linux.set_process_name(f"fl-{config.name}")
    asyncio.run(NodeManager(config).run())
