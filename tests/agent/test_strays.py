"""Without cgroups, too, nothing of a worker outlives it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.agent.platforms import needs_root, traces

AS_NOBODY = """
import asyncio, os, sys
from pathlib import Path
from fairlead.agent.node import processes
from fairlead.agent.sandbox import tenant_access as reach
root = Path(sys.argv[1])
reach.make_reachable([*reach.needed(root), Path.cwd()])
os.setgroups([]); os.setgid(65534); os.setuid(65534)
os.environ.pop("FAIRLEAD_DATA", None)
from fairlead.agent.embedded.node_records import read_record
from tests.agent.platforms import platform, until, wire
START = "import subprocess as s; s.Popen(['sleep', '67'], start_new_session=True)"
async def scene():
    async with platform(root / "home", "2", isolation="none") as here:
        below = lambda node: processes.descendants(read_record(here.home, node).fork_server.pid)
        await here.start("other", ["node-0"], "python", "-c", START + "; import time; time.sleep(68)", uid=None)
        await here.some(wire.Ready, job="other")
        await until(lambda: len(below("node-0")) == 2)
        await here.start("j", ["node-1"], "python", "-c", START, uid=None)
        await here.some(wire.Exited, job="j")
        await until(lambda: below("node-1") == [])
        assert len(below("node-0")) == 2
        print("the other worker and its child live on")
asyncio.run(scene())
"""


@needs_root
def test_a_process_in_a_session_of_its_own_ends_with_its_worker(tmp_path: Path) -> None:
    root = tmp_path / "nobody"
    root.mkdir()
    os.chown(root, 65534, 65534)
    done = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, str(root)], capture_output=True, text=True, timeout=60, check=False,
        cwd=Path(__file__).parent.parent.parent,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "the other worker and its child live on\n"
    assert traces(root / "home") == []
