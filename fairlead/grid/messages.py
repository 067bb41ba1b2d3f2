"""The messages between workers, grid processes and node managers."""

from __future__ import annotations

import msgspec

from fairlead.grid.values import BlockInfo, Usage

INLINE_BYTES = 64 << 10
"""Blocks up to this size travel inside the request: one round trip, cheaper than writing into the arena."""
LONGEST = 8 << 20  # of a message

# ---------------------------------------------------------------- from a worker


class Hello(msgspec.Struct, tag="hello", frozen=True):
    """First message. The session id is the worker's secret, by which a restarted grid process recognises it."""

    token: str
    session: str
    held: list[str] = []  # blocks that it has open or writes; replaces requests lost with the grid process


class Writer(msgspec.Struct, tag="writer", frozen=True):
    """Asks for a writable descriptor of the arena."""


class Reserve(msgspec.Struct, tag="reserve", frozen=True):
    """Reserves a range to write into; idempotent."""

    id: str
    nbytes: int


class Commit(msgspec.Struct, tag="commit", frozen=True):
    """The reserved range is written and becomes an immutable block."""

    id: str
    header: int  # bytes of the header at the end
    kind: str
    label: str = ""
    cost_s: float = 0.0


class PutSmall(msgspec.Struct, tag="small", frozen=True):
    """A small block with its bytes."""

    id: str
    data: bytes
    header: int
    kind: str
    label: str = ""
    cost_s: float = 0.0


class Open(msgspec.Struct, tag="open", frozen=True):
    """Pin a block, from memory, disk or another node."""

    id: str


class Release(msgspec.Struct, tag="release", frozen=True):
    """Unpin a block or free a reservation; not answered."""

    id: str


class Drop(msgspec.Struct, tag="drop", frozen=True):
    id: str


class Goodbye(msgspec.Struct, tag="goodbye", frozen=True):
    """Ends the session for good; a connection that closes without it is expected to come back."""


class AskUsage(msgspec.Struct, tag="usage", frozen=True):
    pass


class AskBlocks(msgspec.Struct, tag="blocks", frozen=True):
    after: str = ""  # id; pages are in the order of ids


FromClient = Hello | Writer | Reserve | Commit | PutSmall | Open | Release | Drop | Goodbye | AskUsage | AskBlocks

# ---------------------------------------------------------------- to a worker


class Welcome(msgspec.Struct, tag="welcome", frozen=True):
    """Comes with the read-only arena, and its key where memory is encrypted."""

    tenant: str
    size: int
    warm: int
    memory_key: bytes = b""


class Placed(msgspec.Struct, tag="placed", frozen=True):
    """Where a block lies; also the answer to requests that only need an acknowledgement."""

    offset: int = 0
    nbytes: int = 0
    header: int = 0
    kind: str = ""
    warm: int = 0
    digest: str = ""  # of the bytes in the arena; empty until computed


class Blocks(msgspec.Struct, tag="blocks", frozen=True):
    blocks: list[BlockInfo]
    more: bool = False


class UsageAnswer(msgspec.Struct, tag="told", frozen=True):
    usage: Usage


class Problem(msgspec.Struct, tag="problem", frozen=True):
    """An error: one line, a code of fairlead.errors and a fix."""

    error: str
    code: str = "refused"
    fix: str = ""


ToClient = Welcome | Placed | Blocks | UsageAnswer | Problem

# ---------------------------------------------------------------- from the supervisor


class Admit(msgspec.Struct, tag="admit", frozen=True):
    """Serve this tenant; comes with the descriptors of arena and journal. Repeated, it changes the quotas."""

    tenant: str
    quota: int
    key: bytes = b""  # empty: no spilling
    encrypted: bool = False  # in memory, too
    spill_bytes: int = 0  # at most, on disk

    def __repr__(self) -> str:
        return f"Admit({self.tenant!r}, {self.quota})"


class Listen(msgspec.Struct, tag="listen", frozen=True):
    """Accept workers of this job; comes with the socket that listens in its sandbox."""

    job: str
    tenant: str
    token: str
    uid: int | None  # required user of the connecting process


class Forget(msgspec.Struct, tag="forget", frozen=True):
    """Stop listening for this job."""

    job: str


class Discard(msgspec.Struct, tag="discard", frozen=True):
    """Drop all blocks of this label that are not open."""

    label: str
    tenant: str = ""  # empty: of all tenants


class Ping(msgspec.Struct, tag="ping", frozen=True):
    """Liveness probe; answered by Pong."""

    number: int = 0


class Peer(msgspec.Struct, tag="peer", frozen=True):
    """Answer to AskPeers: comes with a connection to another node's grid process; without one, it is the last."""

    node: str
    tenant: str = ""  # the request, as AskPeers named it


class PeerListener(msgspec.Struct, tag="peer-door", frozen=True):
    """Comes with the socket on which grid processes of other nodes connect."""

    uid: int  # of the supervisors of other nodes
    key: bytes

    def __repr__(self) -> str:
        return "PeerDoor()"


class Report(msgspec.Struct, tag="report", frozen=True):
    """Usage by tenant, sent at most once a second and only when it changed."""

    tenants: dict[str, Usage]


class AskPeers(msgspec.Struct, tag="ask-peers", frozen=True):
    """Asks for connections to the grid processes of the other nodes."""

    tenant: str = ""  # tenant and number of the request, repeated in the answer


class Pong(msgspec.Struct, tag="pong", frozen=True):
    """Answer to Ping."""

    number: int = 0


FromSupervisor = Admit | Listen | Forget | Discard | Peer | PeerListener | Ping
ToSupervisor = Report | AskPeers | Pong

# ---------------------------------------------------------------- between grid processes


class Fetch(msgspec.Struct, tag="fetch", frozen=True):
    tenant: str
    id: str


class Found(msgspec.Struct, tag="found", frozen=True):
    """The block's facts; its bytes follow."""

    nbytes: int
    header: int
    kind: str
    label: str
    cost_s: float
    digest: str = ""


class Missing(msgspec.Struct, tag="missing", frozen=True):
    pass
