"""What the grid tells about itself: ids, blocks, usage; and the sizes that it is built on."""

from __future__ import annotations

import re
from typing import NewType

import msgspec

BlockId = NewType("BlockId", str)

ALIGN = 64
"""Of every part: what Arrow and vector units like to find."""
SEGMENT = 64 << 20
"""Memory is taken from the machine in pieces of this size, touched once, and kept warm."""
DEFAULT_QUOTA = 2 << 30
"""Of a tenant on one node, where nobody has said anything."""
LONGEST_LABEL = 200
"""Characters of a label, and of a kind."""
_SNAPSHOT = "snapshot/"
_JOB_OF = re.compile(f"{_SNAPSHOT}([A-Za-z0-9][A-Za-z0-9_.-]*)")
VARIABLE, TOKEN_VARIABLE = "FAIRLEAD_GRID", "FAIRLEAD_GRID_TOKEN"


def snapshot_label(job: str) -> str:
    """Of the blocks that hold a job's state."""
    return f"{_SNAPSHOT}{job}"


def is_snapshot(label: str) -> bool:
    """Whether blocks of this label hold the state of some job."""
    return label.startswith(_SNAPSHOT)


def snapshot_job(label: str) -> str | None:
    """The job whose state has this label; None: it is the label of something else. Tenants write what they like."""
    found = _JOB_OF.fullmatch(label)
    return None if found is None else found[1]


def aligned(nbytes: int, to: int = ALIGN) -> int:
    """Rounded up."""
    return -(-nbytes // to) * to


class BlockInfo(msgspec.Struct, frozen=True):
    """One block as its tenant sees it."""

    id: BlockId
    kind: str
    nbytes: int
    label: str = ""
    digest: str = ""  # of its bytes, once the grid process has had the time
    where: str = "resident"  # or spilled
    pins: int = 0
    cost_s: float = 0.0


class Usage(msgspec.Struct, frozen=True):
    """What one tenant has on one node. A block counts once, however many use it; by job, those who use it share it."""

    quota: int
    used: int = 0
    pinned: int = 0
    spilled: int = 0
    warm: int = 0  # taken from the machine
    blocks: int = 0
    evictions: int = 0
    by_label: dict[str, int] = {}  # resident bytes
    by_job: dict[str, int] = {}
