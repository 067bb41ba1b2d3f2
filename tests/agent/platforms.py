"""Real platforms on this machine for tests, each in its own home, each leaving nothing behind."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from fairlead import wire
from fairlead.agent.embedded.backend import LocalBackend, parse_nodes
from fairlead.agent.embedded.node_records import read_record
from fairlead.agent.embedded.node_shapes import NodeShape
from fairlead.agent.protocol import BackendEvent, LaunchOrder, NodeTelemetry, NotStarted, WorkerEvent
from fairlead.cluster import Gang, Member
from fairlead.home import Home

ROOT = os.geteuid() == 0
UID = 64101 if ROOT else None
OTHER_UID = 64102 if ROOT else None
needs_root = pytest.mark.skipif(not ROOT, reason="needs root: users and cgroups")
needs_sandbox = pytest.mark.skipif(
    shutil.which("bwrap") is None and not os.environ.get("FAIRLEAD_REQUIRE_ALL"),
    reason="needs bubblewrap (Debian package bubblewrap)",
)

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T], timeout_s: float = 60.0) -> T:
    return asyncio.run(asyncio.wait_for(work, timeout_s))


async def until(condition: Callable[[], T], timeout_s: float = 20.0) -> T:
    """The first true value of the condition."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"did not become true within {timeout_s} s")
        await asyncio.sleep(0.005)
    return value


class Platform:
    """A backend with its events gathered, and short words for what tests do with it."""

    def __init__(self, home: Home, backend: LocalBackend) -> None:
        self.home, self.backend = home, backend
        self.seen: list[BackendEvent] = []
        self.seen_at: list[float] = []
        self._task: asyncio.Task[None] | None = None

    async def open(self, epoch: int = 1) -> None:
        await self.backend.open(epoch)
        self._task = asyncio.create_task(self._gather())

    async def _gather(self) -> None:
        async for event in self.backend.events():
            if not isinstance(event, NodeTelemetry):
                self.seen.append(event)
                self.seen_at.append(time.monotonic())

    async def warm(self) -> None:
        await until(lambda: all(fact.get("warm") for fact in self.backend.facts().values()), 60.0)

    def of(self, kind: type[T], job: str | None = None) -> list[T]:
        """What has been said of this kind, by nodes or by workers."""
        found: list[Any] = [event for event in self.seen if isinstance(event, kind)]
        said = [event for event in self.seen if isinstance(event, WorkerEvent) and job in (None, event.job)]
        return found + [event.body for event in said if isinstance(event.body, kind)]

    async def some(self, kind: type[T], count: int = 1, job: str | None = None, timeout_s: float = 20.0) -> list[T]:
        return await until(lambda: self.of(kind, job) if len(self.of(kind, job)) >= count else None, timeout_s) or []

    def spec(self, job: str, *command: str, **changes: Any) -> wire.WorkerSpec:
        fields: dict[str, Any] = {
            "job": job, "tenant": "vision", "uid": UID, "run": None, "command": list(command), "params": {}, "env": {},
            "venv": None, "bundle": None, "cpu": 0.5,
        }  # fmt: skip
        return wire.WorkerSpec(**(fields | changes))

    async def sleepers(self, job: str, nodes: list[str], within_s: float = 0.0, **demand: float) -> NotStarted | None:
        """Start a gang of commands that sleep; why not, if it does not fit."""
        order = LaunchOrder(self.spec(job, "sleep", "60"))
        return await self.backend.start(gang(job, nodes, **demand), order, within_s)

    async def start(
        self, job: str, nodes: list[str], *command: str, environment: Mapping[str, Mapping[str, str]] | None = None,
        **changes: Any,
    ) -> Gang:  # fmt: skip
        """Start a gang that fits."""
        members = gang(job, nodes)
        order = LaunchOrder(self.spec(job, *command, **changes), environment or {})
        assert await self.backend.start(members, order, 0.0) is None
        return members

    async def tell(self, members: Gang, message: wire.ToWorker) -> None:
        await self.backend.tell(members.job, members.nodes, message)

    async def workers(self) -> list[wire.WorkerStatus]:
        """All that the nodes know of."""
        replies = [await self.backend._ask(name, wire.Status()) for name in self.backend.facts()]
        return [worker for reply in replies if reply and reply.status for worker in reply.status.workers]

    def pid(self, node: str, job: str, worker: str = "w0") -> int:
        record = read_record(self.home, node)
        assert record is not None
        return record.workers[f"{job}/{worker}"].process.pid

    async def log(self, job: str) -> str:
        return "".join(chunk.text for chunk in await self.backend.logs(job, {}))


def gang(job: str, nodes: list[str], **demand: float) -> Gang:
    """One worker on the first device of each node."""
    members = tuple(Member(f"w{rank}", rank, node, 0) for rank, node in enumerate(nodes))
    return Gang(job, "vision", 1, members, demand)


@asynccontextmanager
async def platform(
    root: Path, nodes: str | tuple[NodeShape, ...] = "2", *, preload: bool = False, **options: Any
) -> AsyncIterator[Platform]:
    """A platform that is there for one test; without torch unless asked, since commands do not need it."""
    home = Home(root)
    shapes = parse_nodes(nodes) if isinstance(nodes, str) else nodes
    one = Platform(home, LocalBackend(home, shapes, preload=preload, **options))
    try:
        await one.open()
        yield one
    finally:
        await one.backend.close()
        await LocalBackend(home, preload=False).shutdown()  # whoever leads by now: a test that failed leaves nothing


def how(exited: wire.Exited) -> wire.Exited:
    """How a worker ended, without what it used until then."""
    return msgspec.structs.replace(exited, cpu_s=0.0)


def python(code: str) -> tuple[str, str, str]:
    return ("python", "-c", code)


def traces(root: Path) -> list[str]:
    """Whatever a platform with this home has left on the machine: processes, cgroups, shared memory, sockets."""
    home = Home(root)
    tag = home.memory.name
    groups = os.walk("/sys/fs/cgroup")  # unlike a glob, it takes no offence at groups of others that end meanwhile
    left = [str(Path(folder, tag)) for folder, names, _ in groups if tag in names]
    left += [str(path) for path in (home.memory,) if path.exists()]
    left += [str(path) for path in home.run.glob("*") if path.name != "nodes.json"]
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            except OSError:
                continue
            if str(root).encode() in words:
                left.append(f"process {entry.name}: {words[:200]!r}")
    return left


TELL = "import json, os, sys; tell = lambda **facts: print(json.dumps(facts), flush=True)\n"


async def told(here: Platform, job: str, code: str, **changes: Any) -> dict[str, Any]:
    """What a job says of itself in one line, and that it ended well."""
    await here.start(job, ["node-0"], *python(TELL + code), **changes)
    end = (await here.some(wire.Exited, job=job))[0]
    log = await here.log(job)
    assert end.code == 0, (end, log, here.of(wire.Raised, job))
    await here.backend.release(job, {"w0": "node-0"}, forget_memory=True)
    facts: dict[str, Any] = json.loads(log.splitlines()[-1])
    return facts
