"""What tests of deaths share: every process of a node, and of its host."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from fairlead.agent.embedded.node_records import NodeRecord, read_record
from fairlead.agent.node import processes
from fairlead.home import Home
from tests.agent.platforms import Platform, python, until

FAMILY = "import subprocess as s, time; s.Popen(['sleep', '63'], start_new_session=True); print('up'); time.sleep(64)"


def family_of(record: NodeRecord) -> list[processes.Process]:
    """Every process of the node: manager, fork server, workers and what these started.

    Not the one that waits outside of a sandbox for its end: no code of a tenant is in it.
    """
    assert record.fork_server is not None
    found = processes.descendants(record.fork_server.pid)
    below = [processes.identify(pid) for pid in found if Path(f"/proc/{pid}/comm").read_text() != "bwrap\n"]
    return [record.process, record.fork_server, *(one for one in below if one is not None)]


def lives(process: processes.Process) -> bool:
    """Whether it can still do anything; the first of a sandbox stays until all in it were reaped."""
    return processes.alive(process) and not processes.has_released_memory(process)


async def running(here: Platform, node: str = "node-0", job: str = "j") -> tuple[NodeRecord, list[processes.Process]]:
    await here.start(job, [node], *python(FAMILY))
    while "up" not in await here.log(job):
        await asyncio.sleep(0.01)
    record = await until(lambda: next(r for r in [read_record(here.home, node)] if r and r.workers))
    family = family_of(record)
    assert len(family) in (4, 5, 6), "manager, fork server, worker, child; holders of its sandbox and a spare"
    return record, family


def host_of(home: Home, *, or_none: bool = False) -> processes.Process:
    try:
        return msgspec.json.decode((home.run / "host.pid").read_bytes(), type=processes.Process)
    except (FileNotFoundError, msgspec.DecodeError):
        if or_none:
            return None  # type: ignore[return-value]
        raise
