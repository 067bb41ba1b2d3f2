"""A job of another tenant that knows everything about the owner's block, and tries to get at it."""

import ctypes
import hashlib
import json
import mmap
import os
import socket
from pathlib import Path

from fairlead.errors import FairleadError
from fairlead.grid import Grid
from fairlead.grid.mapping import Mapping
from fairlead.grid.messages import PutSmall
from fairlead.unix_sockets import connect

known = json.loads(Path("known.json").read_text())
own = Grid.of_this_worker()
assert own is not None
mine = own.put([os.urandom(1 << 20)], kind="mine", meta={})
found = {}


def tries(name, attempt):
    try:
        found[name] = f"got {attempt()!r}"
    except (OSError, FairleadError, ValueError) as error:
        found[name] = f"refused: {type(error).__name__}: {error}"


def knock():
    """At the owner's socket."""
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(known["socket"])


def with_its_token():
    return Grid(os.environ["FAIRLEAD_GRID"], known["token"], wait_s=1).usage()


def by_its_id():
    return bytes(own.open(known["block"]).parts()[0][:64])


def by_a_path():
    """As the name of a file among the owner's spilled blocks."""
    folder = hashlib.sha256(b"owner").hexdigest()[:16]
    return own._line.ask(PutSmall(f"../{folder}/{known['block']}", b"mine now", 0, "mine"))


def through_proc():
    """Every descriptor of every process that can be seen."""
    hits = []
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if "memfd:fairlead" in str(link.readlink()) and link.parts[2] != str(os.getpid()):
                hits.append(str(link))
        except OSError:
            continue
    if not hits:
        raise OSError("no such descriptor in sight")
    return hits


def peers():
    return [connect(Path(path)) for path in known["peers"]]


def in_the_own_arena():
    """Nothing of the owner's lies in what this tenant can map, not even where nobody has written yet."""
    arena = own._line.reading()
    usage = own.usage()
    whole = bytes(arena.view(0, usage.warm))
    if bytes.fromhex(known["canary"]) not in whole:
        raise OSError("not there")
    return "the owner's bytes"


def write_to_what_is_to_read():
    libc = ctypes.CDLL(None, use_errno=True)
    arena = own._line.reading()
    if libc.mprotect(ctypes.c_void_p(arena.address), 4096, mmap.PROT_READ | mmap.PROT_WRITE) != 0:
        raise OSError(ctypes.get_errno(), "it stays to read")
    return "a mapping that can be written"


attempts = (
    knock,
    with_its_token,
    by_its_id,
    by_a_path,
    through_proc,
    peers,
    in_the_own_arena,
    write_to_what_is_to_read,
)
for attempt in attempts:
    tries(attempt.__name__, attempt)
assert Mapping and bytes(own.open(mine).parts()[0][:1])  # the own ones can be had, of course
Path(os.environ["FAIRLEAD_OUTPUT"], "found.json").write_text(json.dumps(found))
