"""Where data lies, for the scheduler: a job would rather run on nodes that hold its data sets in memory (M8). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import msgspec

from fairlead.scheduling.state import JobState, Reason
from fairlead.units import shown_size

Resident = Mapping[str, Mapping[str, int]]
"""Of each node: bytes in the memory of its grid, by tenant and label, such as ``vision/dataset/bank@3f2a9c01``."""

Labels = Mapping[tuple[str, str], Sequence[str]]
"""Under which labels the blocks of a version lie, by tenant and ``NAME@VERSION``: one for each load it comes from."""

MOST_OF_IT = 0.5
"""A node that holds so much of what the fullest one does counts as holding it: the rest is brought there as it runs."""


def held(resident: Resident, tenant: str, labels: Iterable[str]) -> dict[str, int]:
    """The bytes under these labels that each node holds in memory."""
    names = {f"{tenant}/{label}" for label in labels}
    found = {node: sum(sizes.get(each, 0) for each in names) for node, sizes in resident.items()}
    return {node: size for node, size in sorted(found.items()) if size > 0}


def holders(resident: Resident, tenant: str, labels: Iterable[str]) -> dict[str, int]:
    """The nodes that hold these data sets in memory, with the bytes that need not be moved there."""
    found = held(resident, tenant, labels)
    fullest = max(found.values(), default=0)
    return {node: size for node, size in found.items() if size >= MOST_OF_IT * fullest}


def near_data(jobs: Sequence[JobState], resident: Resident, labels: Labels) -> tuple[JobState, ...]:
    """The jobs, each with the nodes that it would rather run on because of its data, and what lies there."""
    if not any(resident.values()):
        return tuple(jobs)
    return tuple(_near(job, resident, labels) if "data" in job.facts else job for job in jobs)


def _near(job: JobState, resident: Resident, labels: Labels) -> JobState:
    read = [each for ref in job.facts["data"] for each in labels.get((job.tenant, ref), ())]
    where = holders(resident, job.tenant, read)
    if not where:
        return job
    return replace(job, near=job.near.union(where), facts={**job.facts, "data_bytes": where})


def with_data(reason: Reason, job: JobState, seats: Sequence[str]) -> Reason:
    """Why it runs where it does, and what that has to do with its data."""
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
