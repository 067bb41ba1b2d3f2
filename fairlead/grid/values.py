"""Values of the grid: block ids, block facts, usage, and the sizes that it is built on."""

from __future__ import annotations

import re
from typing import NewType

import msgspec

BlockId = NewType("BlockId", str)

ALIGN = 64
"""Alignment of every part, in bytes, as Arrow and SIMD code expect."""
SEGMENT = 64 << 20
"""Arenas grow in steps of this size; the memory is touched once and kept."""
DEFAULT_QUOTA = 2 << 30
"""Quota of a tenant on one node, unless configured."""
LONGEST_LABEL = 200
"""In characters, of a label and of a kind."""
_SNAPSHOT = "snapshot/"
_JOB_OF = re.compile(f"{_SNAPSHOT}([A-Za-z0-9][A-Za-z0-9_.-]*)")
VARIABLE, TOKEN_VARIABLE = "FAIRLEAD_GRID", "FAIRLEAD_GRID_TOKEN"


def snapshot_label(job: str) -> str:
    """The label of a job's snapshots."""
    return f"{_SNAPSHOT}{job}"


def is_snapshot(label: str) -> bool:
    """True when this is the label of a job's snapshots."""
    return label.startswith(_SNAPSHOT)


def snapshot_job(label: str) -> str | None:
    """The job of a snapshot label; None for any other label (tenants choose labels freely)."""
    found = _JOB_OF.fullmatch(label)
    return None if found is None else found[1]


def aligned(nbytes: int, to: int = ALIGN) -> int:
    """Round up to a multiple."""
    return -(-nbytes // to) * to


class BlockInfo(msgspec.Struct, frozen=True):
    """One block, as reported to its tenant."""

    id: BlockId
    kind: str
    nbytes: int
    label: str = ""
    digest: str = ""  # of its bytes; computed in the background
    where: str = "resident"  # or spilled
    pins: int = 0
    cost_s: float = 0.0


class Usage(msgspec.Struct, frozen=True):
    """One tenant's usage on one node. A block counts once; ``by_job`` splits it among the jobs that use it."""

    quota: int
    used: int = 0
    pinned: int = 0
    spilled: int = 0
    warm: int = 0  # bytes allocated from the machine
    blocks: int = 0
    evictions: int = 0
    by_label: dict[str, int] = {}  # resident bytes
    by_job: dict[str, int] = {}
