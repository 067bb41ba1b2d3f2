"""Where data lies, for the scheduler: a job would rather run on nodes that hold its data sets in memory (M8). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import msgspec

from fairlead.scheduling.state import JobState, Reason
from fairlead.units import shown_size

Resident = Mapping[str, Mapping[str, int]]
"""Of each node: bytes in the memory of its grid, by tenant and label, such as ``vision/dataset/bank``."""

MOST_OF_IT = 0.5
"""A node that holds so much of what the fullest one does counts as holding it: the rest is brought there as it runs."""


def label(tenant: str, name: str) -> str:
    """Under which a data set is counted by the nodes."""
    return f"{tenant}/dataset/{name}"


def holders(resident: Resident, tenant: str, names: Iterable[str]) -> dict[str, int]:
    """The nodes that hold these data sets in memory, with the bytes that need not be moved there."""
    labels = [label(tenant, name) for name in names]
    held = {node: sum(sizes.get(each, 0) for each in labels) for node, sizes in resident.items()}
    fullest = max(held.values(), default=0)
    return {node: size for node, size in sorted(held.items()) if size > 0 and size >= MOST_OF_IT * fullest}


def near_data(jobs: Sequence[JobState], resident: Resident) -> tuple[JobState, ...]:
    """The jobs, each with the nodes that it would rather run on because of its data, and what lies there."""
    if not any(resident.values()):
        return tuple(jobs)
    return tuple(_near(job, resident) if "data" in job.facts else job for job in jobs)


def _near(job: JobState, resident: Resident) -> JobState:
    where = holders(resident, job.tenant, job.facts["data"])
    if not where:
        return job
    return replace(job, near=job.near.union(where), facts={**job.facts, "data_bytes": where})


def with_data(reason: Reason, job: JobState, seats: Sequence[str]) -> Reason:
    """Why it runs where it does, and what that has to do with its data."""
    where: Mapping[str, int] = job.facts.get("data_bytes", {})
    if not where:
        return reason
    names = " and ".join(job.facts["data"])
    here, size = sorted(set(seats) & where.keys()), shown_size(max(where.values()))
    if here:
        text = f"{', '.join(here)} {'holds' if len(here) == 1 else 'hold'} its data in memory ({names}, {size})"
    else:
        text = f"its data ({names}, {size}) is brought there from {', '.join(where)}"
    return msgspec.structs.replace(
        reason, text=f"{reason.text}; {text}", facts={**reason.facts, "data": dict(where), "data_here": here}
    )
