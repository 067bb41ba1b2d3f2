"""An upgrade arrives although gangs go on: adopted they run to their end, and what starts from then on is new code."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import fairlead
from fairlead import wire
from fairlead.agent.embedded import host_client
from fairlead.agent.embedded.backend import LocalBackend
from fairlead.agent.embedded.node_records import read_host, read_record
from fairlead.agent.node import code_version, processes
from fairlead.agent.protocol import NodeJoined, NodeLost
from fairlead.home import Home
from tests.agent.platforms import Platform, platform, run, until

CHECKOUT = Path(fairlead.__file__).parent.parent

OLDER = """
import asyncio
from pathlib import Path
from tests.agent.platforms import Platform, LocalBackend, parse_nodes, Home, wire
async def main():
    home = Home(Path({home!r}))
    here = Platform(home, LocalBackend(home, parse_nodes("2"), preload=False))
    await here.open(1)
    await here.start("j", ["node-0"], "sleep", "66", cpu=1.0)
    await here.some(wire.Ready)
    await here.warm()
    print("started", flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


@pytest.fixture(params=["of the protocol before", "of this protocol, before a fix"])
def older(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Fairlead that differs from this one as little as can be."""
    folder = tmp_path_factory.mktemp("older")
    folder.chmod(0o755)  # its workers are users of their own
    shutil.copytree(CHECKOUT / "fairlead", folder / "fairlead", ignore=shutil.ignore_patterns("__pycache__"))
    if request.param == "of the protocol before":
        path = folder / "fairlead" / "wire.py"
        now, before = (f"\nPROTOCOL = {number}\n" for number in (wire.PROTOCOL, wire.PROTOCOL - 1))
        path.write_text(path.read_text().replace(now, before))
    else:
        path = folder / "fairlead" / "agent" / "sandbox" / "seccomp.py"
        path.write_text(path.read_text() + "\nHOLE = True\n")
    return folder


def test_what_an_older_version_runs_goes_on_and_nothing_new_is_started_by_it(home: Path, older: Path) -> None:
    async def scene() -> None:
        first = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-c", OLDER.format(home=str(home)), cwd="/", stdout=asyncio.subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": f"{older}:{CHECKOUT}"},
        )  # fmt: skip
        there = Platform(Home(home), LocalBackend(Home(home), preload=False, restart_s=(0.1, 1.0)))
        try:
            assert first.stdout is not None and await first.stdout.readline() == b"started\n"
            first.kill()
            await first.wait()
            host, record = read_host(there.home), read_record(there.home, "node-0")
            assert (
                host is not None
                and record is not None
                and host.build == code_version.package_digest(older / "fairlead")
            )
            await there.open(epoch=2)
            joined = {event.node: event for event in await there.some(NodeJoined, 2)}
            assert [worker.phase for worker in joined["node-0"].workers] == ["ready"]
            assert joined["node-0"].incarnation == record.incarnation and processes.alive(record.process)
            fresh = read_host(there.home)
            assert fresh is not None and fresh.pid != host.pid and fresh.build == code_version.code_digest()
            outdated = {node.name: node.outdated for node in (await there.backend.inventory()).nodes}
            assert outdated == {"node-0": True, "node-1": False}, "the one that was idle is renewed at once"

            await there.backend.stop("j", {"w0": "node-0"}, 0.0)
            await there.some(wire.Exited, job="j")
            keeper, seen = there.backend._supervisors["node-0"], list[bool]()
            await there.backend.release("j", {"w0": "node-0"})
            await until(lambda: seen.append(keeper.outdated) or there.of(NodeLost))  # type: ignore[func-returns-value]
            (lost,) = await there.some(NodeLost)
            assert "another version" in lost.why and all(seen), "nothing new comes to a node that is being ended"
            await there.some(NodeJoined, 3)
            assert not any(node.outdated for node in (await there.backend.inventory()).nodes)
        finally:
            if first.returncode is None:
                first.kill()
                await first.wait()
            await there.backend.shutdown()

    run(scene())


def test_a_version_that_is_installed_under_a_running_platform_does_not_renew_its_nodes_for_ever(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host may be newer than who asks it: what it starts is as new as can be had."""
    monkeypatch.setattr(host_client, "code_digest", lambda: "what this process was started with")

    async def scene() -> None:
        async with platform(home, "1") as here:
            keeper = here.backend._supervisors["node-0"]
            assert (
                keeper.status is not None
                and keeper.status.build == code_version.code_digest() != host_client.code_digest()
            )
            host = read_host(here.home)
            assert host is not None and not keeper.outdated
            processes.kill(host.process)
            await until(lambda: (now := read_host(here.home)) is not None and now.pid != host.pid)
            await until(lambda: keeper._host is not None and keeper._host.pid != host.pid)
            assert not keeper.outdated and here.of(NodeLost) == []

    run(scene())


def test_whatever_a_node_is_made_of_counts_and_the_rooms_above_do_not(tmp_path: Path) -> None:
    load = "import sys, fairlead.agent.zygote.host as host; host.preload(); print(*sys.modules)"
    said = subprocess.run([sys.executable, "-c", load], cwd=CHECKOUT, capture_output=True, text=True, check=True)
    rooms = {name.split(".")[1] for name in said.stdout.split() if name.startswith("fairlead.")}
    assert "training" in rooms and not rooms & code_version.EXCLUDED

    (tmp_path / "cli").mkdir()
    (tmp_path / "wire.py").write_text("PROTOCOL = 1\n")
    before = code_version.package_digest(tmp_path)
    (tmp_path / "cli" / "main.py").write_text("print()\n")
    assert code_version.package_digest(tmp_path) == before
    (tmp_path / "wire.py").write_text("PROTOCOL = 2\n")
    assert code_version.package_digest(tmp_path) != before
