"""Tells the scheduler which nodes hold a job's data sets in memory, so that it prefers them (M8). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import msgspec

from fairlead.scheduling.state import JobState, Reason
from fairlead.units import shown_size

Resident = Mapping[str, Mapping[str, int]]
"""Bytes in the memory of each node's grid, by tenant and label, such as ``vision/dataset/bank@3f2a9c01``."""

Labels = Mapping[tuple[str, str], Sequence[str]]
"""The labels of a version's blocks, by tenant and ``NAME@VERSION``: one for each load it comes from."""

HOLDS_AT_LEAST = 0.5
"""A node holds the data if it has this fraction of what the fullest node has: the rest is fetched during the run."""


def bytes_held(resident: Resident, tenant: str, labels: Iterable[str]) -> dict[str, int]:
    """The bytes under these labels that each node holds in memory."""
    names = {f"{tenant}/{label}" for label in labels}
    found = {node: sum(sizes.get(each, 0) for each in names) for node, sizes in resident.items()}
    return {node: size for node, size in sorted(found.items()) if size > 0}


def nodes_holding(resident: Resident, tenant: str, labels: Iterable[str]) -> dict[str, int]:
    """The nodes that hold these data sets in memory, with the bytes that need not be moved there."""
    found = bytes_held(resident, tenant, labels)
    fullest = max(found.values(), default=0)
    return {node: size for node, size in found.items() if size >= HOLDS_AT_LEAST * fullest}


def prefer_nodes_with_data(jobs: Sequence[JobState], resident: Resident, labels: Labels) -> tuple[JobState, ...]:
    """The jobs, each with the nodes it prefers because of its data, and the bytes there."""
    if not any(resident.values()):
        return tuple(jobs)
    return tuple(_near(job, resident, labels) if "data" in job.facts else job for job in jobs)


def _near(job: JobState, resident: Resident, labels: Labels) -> JobState:
    read = [each for ref in job.facts["data"] for each in labels.get((job.tenant, ref), ())]
    where = nodes_holding(resident, job.tenant, read)
    if not where:
        return job
    return replace(job, near=job.near.union(where), facts={**job.facts, "data_bytes": where})


def explain_data_locality(reason: Reason, job: JobState, seats: Sequence[str]) -> Reason:
    """The reason for a placement, extended by what it has to do with the job's data."""
    where: Mapping[str, int] = job.facts.get("data_bytes", {})
    if not where:
        return reason
    names = " and ".join(ref.partition("@")[0] for ref in job.facts["data"])
    here, size = sorted(set(seats) & where.keys()), shown_size(max(where.values()))
    if here:
        text = f"{', '.join(here)} {'holds' if len(here) == 1 else 'hold'} its data in memory ({names}, {size})"
    else:
        text = f"its data ({names}, {size}) is brought there from {', '.join(where)}"
    return msgspec.structs.replace(
        reason, text=f"{reason.text}; {text}", facts={**reason.facts, "data": dict(where), "data_here": here}
    )
