"""The supervisor of a grid process: when it starts one, when it restarts it, and what survives a restart."""

from __future__ import annotations

import gc
import os
import select
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlead.grid import messages as m
from fairlead.grid import process_supervisor as module
from fairlead.grid.process_supervisor import CHECK_S, GridSupervisor
from fairlead.unix_sockets import receive_packet
from tests.grid.conftest import MB
from tests.waiting import until

SLEEPS = 5.0


@dataclass
class Clock:
    """Time of the supervisor; sleeping moves it on."""

    now_s: float = 1000.0
    slept: list[float] = field(default_factory=list)

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds


@dataclass
class World:
    """A supervisor whose grid process is a ``sleep`` that reads nothing; the test holds the other end of its line."""

    supervisor: GridSupervisor
    clock: Clock
    lines: list[socket.socket] = field(default_factory=list)

    def spawn(self, control: int) -> subprocess.Popen[bytes]:
        self.lines.append(socket.socket(fileno=os.dup(control)))
        return subprocess.Popen(["sleep", "600"], start_new_session=True)

    def received(self) -> list[Any]:
        """The messages to the newest process so far; their descriptors are closed."""
        found = []
        while select.select([self.lines[-1]], [], [], 0)[0]:
            data, descriptors = receive_packet(self.lines[-1])
            if not data:
                break
            for descriptor in descriptors:
                os.close(descriptor)
            found.append((msgspec.msgpack.decode(data, type=m.FromSupervisor), len(descriptors)))
        return found

    def says(self, message: m.ToSupervisor) -> None:
        self.lines[-1].send(msgspec.msgpack.encode(message))
        self.supervisor.handle_events()

    def ends(self) -> None:
        """Kill the process and let the supervisor see it."""
        process = self.supervisor._process
        assert process is not None
        process.kill()
        select.select([self.supervisor._pidfd], [], [], 30.0)
        self.supervisor.handle_events()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    supervisor = GridSupervisor(tmp_path / "spill", silence_s=3 * CHECK_S)
    made = World(supervisor, clock)
    monkeypatch.setattr(GridSupervisor, "_spawn", lambda _, control: made.spawn(control))
    yield made
    supervisor.close()
    for line in made.lines:
        line.close()


def descriptors() -> int:
    gc.collect()  # what earlier tests have left
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def test_the_first_connection_of_a_worker_starts_the_process_and_later_ones_none(world: World, tmp_path: Path) -> None:
    world.supervisor.admit(m.Admit("t", 8 * MB))
    token = world.supervisor.listen("job", "t", tmp_path / "job.sock")
    world.supervisor.handle_events()
    world.supervisor.check()
    assert world.supervisor.pid is None and not world.lines, "nobody has connected yet"
    for _ in range(2):
        with socket.socket(socket.AF_UNIX) as worker:
            worker.connect(str(tmp_path / "job.sock"))
            world.supervisor.handle_events()
    assert world.supervisor.pid is not None and len(world.lines) == 1
    assert world.received() == [(m.Admit("t", 8 * MB), 3), (m.Listen("job", "t", token, None), 1)]
    world.supervisor.start()
    assert len(world.lines) == 1, "it runs already"


def test_a_process_that_ends_is_restarted_with_all_tenants_and_listeners(world: World, tmp_path: Path) -> None:
    world.supervisor.start()
    world.supervisor.admit(m.Admit("t", 8 * MB))
    token = world.supervisor.listen("job", "t", tmp_path / "job.sock")
    world.supervisor.listen("over", "t", tmp_path / "over.sock")
    world.supervisor.forget("over")
    first = world.supervisor.pid
    world.ends()
    assert world.supervisor.pid not in (None, first)
    assert world.received() == [(m.Admit("t", 8 * MB), 3), (m.Listen("job", "t", token, None), 1)]
    assert world.supervisor.trouble == "its grid process was restarted 0 s ago: it ended with code -9"


def test_a_restart_is_reported_for_ten_minutes(world: World) -> None:
    world.supervisor.start()
    assert world.supervisor.trouble == "", "a first start is no restart"
    world.ends()
    world.clock.now_s += 599.0
    assert "was restarted 599 s ago" in world.supervisor.trouble
    world.clock.now_s += 1.0
    assert world.supervisor.trouble == ""


def test_a_process_is_restarted_when_it_has_answered_no_ping_for_the_time_of_silence(world: World) -> None:
    world.supervisor.start()
    first = world.supervisor.pid
    for number in (1, 2, 3):
        world.supervisor.check()
        assert world.received() == [(m.Ping(number), 0)]
    assert world.supervisor.pid == first, "the third answer is not late yet"
    world.supervisor.check()
    assert world.supervisor.pid not in (None, first)
    assert world.supervisor.trouble == "its grid process was restarted 0 s ago: it answered no ping for 3 s"
    assert world.received() == [], "its pings are counted from the start"
    world.supervisor.check()
    assert world.received() == [(m.Ping(1), 0)]


def test_one_answer_is_enough_and_a_stopped_supervisor_blames_nobody(world: World) -> None:
    """What counts is pings without an answer, not how late it is."""
    world.supervisor.start()
    first = world.supervisor.pid
    for _ in range(20):
        world.supervisor.check()
        world.supervisor.check()
        world.clock.now_s += 10_000.0
        world.says(m.Pong(2))
    assert world.supervisor.pid == first and world.supervisor.trouble == ""


def test_a_process_that_cannot_live_is_started_five_times_a_second_at_most(world: World) -> None:
    world.supervisor.start()
    assert world.clock.slept == [0.0], "the first start waits for nothing"
    world.ends()
    assert world.clock.slept[1:] == [pytest.approx(0.2)]
    world.clock.now_s += 0.15
    world.ends()
    assert world.clock.slept[2:] == [pytest.approx(0.05)]
    world.clock.now_s += SLEEPS
    world.ends()
    assert world.clock.slept[3:] == [0.0]


def test_messages_that_a_dead_process_did_not_read_are_dropped_with_their_descriptors(world: World) -> None:
    world.supervisor.start()
    world.supervisor.admit(m.Admit("t", 8 * MB))
    world.received()
    before = descriptors()
    for number in range(1000):
        world.supervisor._tell(m.Ping(number))
    world.supervisor.admit(m.Admit("t", 9 * MB))
    assert descriptors() == before + 3, "duplicates wait for the process to read"
    world.ends()
    assert not world.supervisor._unsent and [each for each, _ in world.received()] == [m.Admit("t", 9 * MB)]
    assert descriptors() == before + 1, "the test's end of the second line"


def test_nothing_is_sent_to_a_process_that_does_not_run(world: World) -> None:
    world.supervisor.admit(m.Admit("t", 8 * MB))
    world.supervisor.discard("label")
    world.supervisor.forget("unknown")
    assert not world.supervisor._unsent
    world.supervisor.start()
    assert [each for each, _ in world.received()] == [m.Admit("t", 8 * MB)], "there is nothing to discard in a new one"


def test_a_tenant_keeps_its_arena_when_its_quotas_change(world: World) -> None:
    world.supervisor.start()
    world.supervisor.admit(m.Admit("t", 8 * MB, spill_bytes=1))
    kept = world.supervisor._tenants["t"].descriptors
    world.supervisor.admit(m.Admit("t", 8 * MB, spill_bytes=1))
    world.supervisor.admit(m.Admit("t", 8 * MB, spill_bytes=2))
    assert world.supervisor._tenants["t"].descriptors == kept
    assert [each.spill_bytes for each, _ in world.received()] == [1, 2], "the same again is no news"


def test_usage_stays_known_while_the_process_is_restarted(world: World) -> None:
    world.supervisor.start()
    world.says(m.Report({"t": m.Usage(1, 2)}))
    world.ends()
    assert world.supervisor.usage == {"t": m.Usage(1, 2)}


def test_a_line_that_closes_before_its_process_ends_does_not_keep_the_supervisor_busy(world: World) -> None:
    world.supervisor.start()
    control = world.supervisor._control
    assert control is not None
    world.lines[-1].shutdown(socket.SHUT_RDWR)
    until(lambda: (world.supervisor.handle_events(), not select.select([world.supervisor.fileno()], [], [], 0)[0])[1])
    first = world.supervisor.pid
    world.ends()
    assert world.supervisor.pid not in (None, first)


def test_closing_ends_the_process_and_leaves_no_descriptor_socket_or_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = descriptors()
    supervisor = GridSupervisor(tmp_path / "spill", peer_path=tmp_path / "n0.grid", peer_key=b"k")
    made = World(supervisor, Clock())
    monkeypatch.setattr(GridSupervisor, "_spawn", lambda _, control: made.spawn(control))
    supervisor.admit(m.Admit("t", 8 * MB))
    supervisor.listen("job", "t", tmp_path / "job.sock")
    supervisor.start()
    (tmp_path / "spill" / "block").touch()
    assert (tmp_path / "n0.grid").exists() and (tmp_path / "spill").stat().st_mode & 0o777 == 0o700
    pid = supervisor.pid
    supervisor.close()
    made.lines[0].close()
    assert list(tmp_path.iterdir()) == [] and descriptors() == before
    with pytest.raises(ProcessLookupError):
        os.kill(pid or 0, 0)
