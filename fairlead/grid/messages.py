"""What workers, grid processes and node managers say to each other about blocks."""

from __future__ import annotations

import msgspec

from fairlead.grid.values import BlockInfo, Usage

INLINE_BYTES = 64 << 10
"""Up to here the bytes of a block go with the request: one round trip, and less work than writing them oneself."""
LONGEST = 8 << 20  # of a message

# ---------------------------------------------------------------- from a worker


class Hello(msgspec.Struct, tag="hello", frozen=True):
    """The first word. The session is a secret of the worker, by which it is known again after the grid's death."""

    token: str
    session: str
    held: list[str] = []  # what it has open or writes: words that died with the grid process are made up for


class Writer(msgspec.Struct, tag="writer", frozen=True):
    """Asks for a descriptor that can be written to."""


class Reserve(msgspec.Struct, tag="reserve", frozen=True):
    """Asks for room, to write into. Said twice it is the same room."""

    id: str
    nbytes: int


class Commit(msgspec.Struct, tag="commit", frozen=True):
    """What was reserved is written, and will not change any more."""

    id: str
    header: int  # bytes at the end of it that say what lies where
    kind: str
    label: str = ""
    cost_s: float = 0.0


class PutSmall(msgspec.Struct, tag="small", frozen=True):
    """A small block, whole."""

    id: str
    data: bytes
    header: int
    kind: str
    label: str = ""
    cost_s: float = 0.0


class Open(msgspec.Struct, tag="open", frozen=True):
    """Pin it, wherever it comes from."""

    id: str


class Release(msgspec.Struct, tag="release", frozen=True):
    """Unpin it, or give back what was reserved; nobody answers."""

    id: str


class Drop(msgspec.Struct, tag="drop", frozen=True):
    id: str


class Goodbye(msgspec.Struct, tag="goodbye", frozen=True):
    """The last word of a session, which holds nothing any more: a line that ends without it may only have been cut."""


class AskUsage(msgspec.Struct, tag="usage", frozen=True):
    pass


class AskBlocks(msgspec.Struct, tag="blocks", frozen=True):
    after: str = ""  # in the order of ids: a list may be long


FromClient = Hello | Writer | Reserve | Commit | PutSmall | Open | Release | Drop | Goodbye | AskUsage | AskBlocks

# ---------------------------------------------------------------- to a worker


class Welcome(msgspec.Struct, tag="welcome", frozen=True):
    """With the arena to read, and with its key where memory is encrypted, too."""

    tenant: str
    size: int
    warm: int
    memory_key: bytes = b""


class Placed(msgspec.Struct, tag="placed", frozen=True):
    """Where a block lies; also the answer to whatever only has to be acknowledged."""

    offset: int = 0
    nbytes: int = 0
    header: int = 0
    kind: str = ""
    warm: int = 0
    digest: str = ""  # of its bytes in the arena, once it is known


class Blocks(msgspec.Struct, tag="blocks", frozen=True):
    blocks: list[BlockInfo]
    more: bool = False


class UsageAnswer(msgspec.Struct, tag="told", frozen=True):
    usage: Usage


class Problem(msgspec.Struct, tag="problem", frozen=True):
    """Why not: one line, and the code of an error that a user may see."""

    error: str
    code: str = "refused"
    fix: str = ""


ToClient = Welcome | Placed | Blocks | UsageAnswer | Problem

# ---------------------------------------------------------------- from the keeper: the node manager, or a test


class Admit(msgspec.Struct, tag="admit", frozen=True):
    """A tenant; comes with the descriptors of its arena and its journal. Said again it changes the quota."""

    tenant: str
    quota: int
    key: bytes = b""  # empty: nothing is spilled
    encrypted: bool = False  # in memory, too
    spill_bytes: int = 0  # at most, on disk

    def __repr__(self) -> str:
        return f"Admit({self.tenant!r}, {self.quota})"


class Listen(msgspec.Struct, tag="listen", frozen=True):
    """A job of the tenant's may connect; comes with the socket that listens in its sandbox."""

    job: str
    tenant: str
    token: str
    uid: int | None  # whoever connects must be this user


class Forget(msgspec.Struct, tag="forget", frozen=True):
    """Nobody of this job will connect any more."""

    job: str


class Discard(msgspec.Struct, tag="discard", frozen=True):
    """Whoever made the blocks of this label is gone for good, and nobody will ask for them."""

    label: str
    tenant: str = ""  # empty: of whoever has it


class Ping(msgspec.Struct, tag="ping", frozen=True):
    """Asks the grid process for a sign of life."""

    number: int = 0


class Peer(msgspec.Struct, tag="peer", frozen=True):
    """Comes with a connection to the grid process of another node, as asked for, or with none."""

    node: str
    tenant: str = ""  # who asked, in its own words


class PeerListener(msgspec.Struct, tag="peer-door", frozen=True):
    """Comes with the socket at which the grid processes of other nodes knock."""

    uid: int  # that their keepers run as
    key: bytes

    def __repr__(self) -> str:
        return "PeerDoor()"


class Report(msgspec.Struct, tag="report", frozen=True):
    """From the grid process, every second in which something changed: usage by tenant."""

    tenants: dict[str, Usage]


class AskPeers(msgspec.Struct, tag="ask-peers", frozen=True):
    """From the grid process: connections to the others, please."""

    tenant: str = ""  # said again in the answer: whose they are to be, and for what


class Pong(msgspec.Struct, tag="pong", frozen=True):
    """From the grid process: it lives."""

    number: int = 0


FromSupervisor = Admit | Listen | Forget | Discard | Peer | PeerListener | Ping
ToSupervisor = Report | AskPeers | Pong

# ---------------------------------------------------------------- between grid processes


class Fetch(msgspec.Struct, tag="fetch", frozen=True):
    tenant: str
    id: str


class Found(msgspec.Struct, tag="found", frozen=True):
    """The bytes follow."""

    nbytes: int
    header: int
    kind: str
    label: str
    cost_s: float
    digest: str = ""


class Missing(msgspec.Struct, tag="missing", frozen=True):
    pass
