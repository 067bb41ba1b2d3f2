"""Fences a node: kills all its processes, so that two generations of a job can never run at once."""

from __future__ import annotations

from pathlib import Path

from fairlead.agent.embedded.node_records import NodeRecord, forget_node, read_record
from fairlead.agent.node import cgroups, node_grid, processes
from fairlead.agent.node.processes import Process
from fairlead.errors import LostLeadership, Unavailable
from fairlead.home import Home

_GONE_S = 10.0


def fence(home: Home, node: str, epoch: int | None) -> None:
    """Kill the node's processes and remove its files; raises LostLeadership when a newer leader has the node."""
    record = read_record(home, node)
    if record is not None:
        if epoch is not None and record.epoch > epoch:
            raise LostLeadership(f"{node} is led by epoch {record.epoch}, not {epoch}")
        group = cgroups.Group(record.version, tuple(Path(folder) for folder in record.groups))
        if not processes.wait_gone(lambda: _kill_once(record, group), _GONE_S):
            raise Unavailable(f"{node}: some of its processes cannot be killed", fix="restart the machine")
        processes.wait_gone(lambda: cgroups.discard(group), 2.0)
    home.forget_node_memory(node)
    node_grid.forget(home, node)
    forget_node(home, node)


def _kill_once(record: NodeRecord, group: cgroups.Group) -> bool:
    """One round of killing; True when nothing was left."""
    group.kill()
    left = [
        process for process in _all(record) if processes.kill(process) and not processes.has_released_memory(process)
    ]
    return not left and not group.pids()


def _all(record: NodeRecord) -> list[Process]:
    first = [record.process, *([record.fork_server] if record.fork_server else ())]
    first += [worker.sandbox for worker in record.workers.values() if worker.sandbox is not None]
    workers = {worker.process.pid: worker for worker in record.workers.values()}

    def belongs(pid: int) -> bool:
        """True for a process in a worker's session; guards against a reused session id."""
        worker = workers.get(processes.session_of(pid) or 0)
        return worker is not None and (processes.alive(worker.process) or _of_job(pid, worker.job))

    return [*first, *(worker.process for worker in workers.values()), *processes.session_members(workers, belongs)]


def _of_job(pid: int, job: str) -> bool:
    try:
        return f"FAIRLEAD_JOB={job}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
