"""A process is told apart for certain before it is signalled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from fairlead.agent.embedded.fencing import fence
from fairlead.agent.embedded.node_records import NodeRecord, WorkerRecord, read_record, write_record
from fairlead.agent.node import processes
from fairlead.errors import LostLeadership
from fairlead.home import Home


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


def known(child: subprocess.Popen[bytes]) -> processes.Process:
    found = processes.identify(child.pid)
    assert found is not None
    return found


def test_a_reused_pid_and_one_of_another_boot_are_not_hit(child: subprocess.Popen[bytes]) -> None:
    me = known(child)
    for other in (msgspec.structs.replace(me, started=me.started - 1), msgspec.structs.replace(me, boot="before")):
        assert not processes.alive(other) and not processes.kill(other)
    assert child.poll() is None
    assert processes.kill(me) and child.wait(10) == -signal.SIGKILL
    assert not processes.kill(me)


def test_a_zombie_counts_as_gone(child: subprocess.Popen[bytes]) -> None:
    me = known(child)
    child.kill()
    assert processes.wait_gone(lambda: not processes.alive(me), 10.0)


def test_descendants_are_found_through_generations() -> None:
    code = "import subprocess; subprocess.run(['sh', '-c', 'sleep 60 & echo up; wait'])"
    top = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert top.stdout is not None and top.stdout.readline() == b"up\n"
        assert len(processes.descendants(top.pid)) == 2
    finally:
        os.killpg(top.pid, signal.SIGKILL)
        top.wait()
        assert top.stdout is not None
        top.stdout.close()


def test_a_fence_kills_what_a_record_names_and_what_its_workers_left(
    tmp_path: Path, child: subprocess.Popen[bytes]
) -> None:
    """The worker itself is dead and its number free; its child in the same session is known by its environment."""
    home = Home(tmp_path)
    home.create()
    script = "sleep 60 & echo $!"
    with subprocess.Popen(
        ["sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True, env=os.environ | {"FAIRLEAD_JOB": "j"}
    ) as leader:
        assert leader.stdout is not None
        left = processes.identify(int(leader.stdout.readline()))
    assert left is not None
    gone = processes.Process(leader.pid, 1)
    record = NodeRecord("n", "i", 3, known(child), {}, workers={"j/w0": WorkerRecord(gone, "j")})
    write_record(home, record)
    with pytest.raises(LostLeadership):
        fence(home, "n", epoch=2)
    assert processes.alive(left) and child.poll() is None
    fence(home, "n", epoch=3)
    assert not processes.alive(left) and child.wait(10) == -signal.SIGKILL
    assert read_record(home, "n") is None


def test_a_session_number_that_was_given_to_a_stranger_is_left_alone(
    tmp_path: Path, child: subprocess.Popen[bytes]
) -> None:
    home = Home(tmp_path)
    home.create()
    stranger = known(child)
    dead = processes.Process(1 << 22, 1)
    before = WorkerRecord(msgspec.structs.replace(stranger, started=1), "j")
    write_record(home, NodeRecord("n", "i", 1, dead, {}, workers={"j/w0": before}))
    fence(home, "n", epoch=1)
    assert child.poll() is None


def test_a_lock_is_held_once(tmp_path: Path) -> None:
    held = processes.lock(tmp_path / "lock")
    assert held is not None and processes.lock(tmp_path / "lock") is None
    os.close(held)
    again = processes.lock(tmp_path / "lock")
    assert again is not None
    os.close(again)
