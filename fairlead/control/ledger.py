"""Metering: what every running generation holds goes into the append-only ledger, up to the second it ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from sqlalchemy import Connection

from fairlead.cluster import Node
from fairlead.control.records import Generation, Job, Usage
from fairlead.control.store import generations
from fairlead.control.store import ledger as lines


def usage_lines(job: Job, generation: Generation, nodes: Mapping[str, Node], until_s: float) -> list[Usage]:
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
        )
        for node, devices in sorted(per_node.items())
    ]  # fmt: skip


def end_generation(
    connection: Connection, job: Job, generation: Generation, nodes: Mapping[str, Node], now_s: float
) -> None:
    """Write the rest of what a generation used, from what the store says was metered last."""
    stored = next(g for g in generations.of_job(connection, job.id) if g.number == generation.number)
    lines.append(connection, usage_lines(job, stored, nodes, now_s))


def meter(
    connection: Connection, running: Iterable[tuple[Job, Generation]], nodes: Mapping[str, Node], now_s: float
) -> None:
    """Write what the running generations have used so far; the same transaction remembers up to when."""
    for job, generation in running:
        written = usage_lines(job, generation, nodes, now_s)
        if written:
            lines.append(connection, written)
            generations.update(connection, job.id, generation.number, metered_s=now_s)
