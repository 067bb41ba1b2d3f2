"""Meters running generations: writes the devices that each holds to the append-only ledger, until it ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from sqlalchemy import Connection

from fairlead import wire
from fairlead.cluster import Node, Placement
from fairlead.control.records import Generation, Job, Usage
from fairlead.control.store import generations, jobs
from fairlead.control.store import ledger as lines


class CpuMeter:
    """CPU time of workers since they were last metered, from the nodes' telemetry (about once a second).

    A worker adopted after a restart counts from its adoption on: earlier CPU time may be in the ledger already, and
    nothing may be counted twice.
    """

    def __init__(self) -> None:
        self._used: dict[str, dict[str, float]] = {}  # by job and worker
        self._metered: dict[str, dict[str, float]] = {}
        self._adopted: dict[str, set[str]] = {}

    def adopt(self, job: str, worker: str) -> None:
        self._adopted.setdefault(job, set()).add(worker)

    def observe(self, telemetry: wire.Telemetry) -> None:
        for usage in telemetry.workers:
            self.observe_total(usage.job, usage.worker, usage.cpu_s)

    def observe_total(self, job: str, worker: str, cpu_s: float) -> None:
        """Record a worker's total CPU time; at its end, too, as a short worker may never appear in telemetry."""
        adopted = self._adopted.get(job)
        if adopted and worker in adopted:
            adopted.discard(worker)
            self._metered.setdefault(job, {})[worker] = cpu_s
        used = self._used.setdefault(job, {})
        used[worker] = max(cpu_s, used.get(worker, 0.0))

    def take_usage(self, generation: Generation) -> dict[str, float]:
        """CPU seconds by node since the last call."""
        taken: dict[str, float] = {}
        all_used = self._used.get(generation.job, {})
        metered = self._metered.setdefault(generation.job, {}) if all_used else {}
        for member in generation.members:
            used, before = all_used.get(member.worker, 0.0), metered.get(member.worker, 0.0)
            taken[member.node] = taken.get(member.node, 0.0) + max(0.0, used - before)
            metered[member.worker] = max(used, before)
        return taken

    def forget(self, job: str) -> None:
        for memory in (self._used, self._metered, self._adopted):
            memory.pop(job, None)


def usage_lines(
    job: Job, generation: Generation, nodes: Mapping[str, Node], until_s: float, cpu_s: Mapping[str, float]
) -> list[Usage]:
    """The ledger lines of one generation since it was last metered: one per node."""
    since_s = generation.metered_s
    if since_s is None or until_s <= since_s:
        return []
    per_node = Counter(member.node for member in generation.members)
    return [
        Usage(
            job=job.id, tenant=job.tenant, submitted_by=job.submitted_by, generation=generation.number, node=node,
            device_type=nodes[node].device_type if node in nodes else "unknown", devices=devices,
            speed=nodes[node].speed if node in nodes else 1.0, from_s=since_s, to_s=until_s,
            cpu_s=cpu_s.get(node, 0.0),
        )
        for node, devices in sorted(per_node.items())
    ]  # fmt: skip


def meter_ended_generation(
    connection: Connection,
    job: Job,
    generation: Generation,
    nodes: Mapping[str, Node],
    now_s: float,
    cpu_s: Mapping[str, float],
) -> None:
    """Write the remaining usage of a generation, from the last metering that the store records.

    A generation that ended before its rendezvous held its devices all the same: newcomers since it was planned, the
    others since the previous generation ended.
    """
    stored = generations.get(connection, job.id, generation.number)
    assert stored is not None
    if stored.metered_s is None:
        former = generations.previous(connection, job.id, generation.number) if generation.number > 1 else None
        charge_newcomers(connection, job, stored, former, nodes, now_s)
        since_s = None if former is None else former.ended_s
        stored = replace(stored, metered_s=since_s, members=_continuing_members(stored, former))
    lines.append(connection, usage_lines(job, stored, nodes, now_s, cpu_s))


def charge_newcomers(
    connection: Connection, job: Job, generation: Generation, former: Generation | None, nodes: Mapping[str, Node],
    until_s: float,
) -> None:  # fmt: skip
    """Write what the newcomers of a planned generation have held since it was planned: they were starting meanwhile."""
    staying = _continuing_members(generation, former)
    fresh = tuple(member for member in generation.members if member not in staying)
    since = replace(generation, metered_s=generation.created_s, members=fresh)
    lines.append(connection, usage_lines(job, since, nodes, until_s, {}))


def _continuing_members(generation: Generation, former: Generation | None) -> Placement:
    """The members that kept their devices from the previous generation, which was live when this one was planned."""
    if former is None or (former.ended_s is not None and former.ended_s <= generation.created_s):
        return ()
    before = {member.worker for member in former.members}
    return tuple(member for member in generation.members if member.worker in before)


def generations_to_meter(connection: Connection, live: Collection[str]) -> list[tuple[Job, Generation]]:
    """The running generations of these jobs."""
    current = generations.live_by_job(connection, live)
    running = [g for of_job in current.values() for g in of_job if g.running_s is not None and g.broken_s is None]
    known = jobs.get_many(connection, [generation.job for generation in running])
    return [(known[generation.job], generation) for generation in running if generation.job in known]


def meter_generations(
    connection: Connection,
    running: Iterable[tuple[Job, Generation]],
    nodes: Mapping[str, Node],
    now_s: float,
    cpu_s: Mapping[str, Mapping[str, float]],
) -> None:
    """Write the usage of running generations so far; the same transaction records up to when."""
    written: list[Usage] = []
    metered: list[tuple[str, int]] = []
    for job, generation in running:
        used = usage_lines(job, generation, nodes, now_s, cpu_s.get(job.id, {}))
        written += used
        if used:
            metered.append((job.id, generation.number))
    lines.append(connection, written)
    generations.mark_metered(connection, metered, now_s)
