"""The small parts that hold no process: events kept, room checked, silence judged, logs cut, cgroups found."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead import wire
from fairlead.agent.embedded.host_client import host_environment
from fairlead.agent.embedded.worker_logs import read_logs, whole_characters
from fairlead.agent.node import cgroups
from fairlead.agent.node.device_slots import NoRoom, cards_of, check_room, memory_limit
from fairlead.agent.node.fork_bomb_throttle import MANY_TASKS, SLACK_S, ForkBombThrottle
from fairlead.agent.node.outbox import Outbox
from fairlead.agent.sandbox.rlimits import process_limit
from fairlead.agent.zygote.worker_bootstrap import WorkerBootstrap, worker_environment
from fairlead.errors import Unavailable
from fairlead.home import Home
from fairlead.local_wire import PlacedSpec

CAPACITY = {"cpu": 1.0, "memory": 100.0, "device": 2.0}


def beat(step: int, *steps: dict[str, float]) -> wire.Progress:
    return wire.Progress(generation=1, step=step, total_steps=9, steps=list(steps))


# ---------------------------------------------------------------- outbox


def test_events_are_numbered_and_kept_until_acknowledged() -> None:
    box = Outbox()
    for _ in range(5):
        box.add(0.0, "j", "w0", wire.Ready())
    box.acknowledge(3)
    assert [event.sequence for event in box.pending()] == [4, 5]
    box.acknowledge(5)
    assert list(box.pending()) == [] and box.last == 5
    assert box.add(0.0, "j", "w0", wire.Ready()).sequence == 6


def test_only_the_newest_sign_of_life_of_each_worker_is_kept() -> None:
    box = Outbox()
    for step in range(1000):
        box.add(0.0, "j", "w0", beat(step))
        box.add(0.0, "j", "w1", beat(step))
    box.add(0.0, "j", "w0", beat(7, {"step": 7.0, "loss": 1.0}))
    assert [(event.worker, event.sequence) for event in box.pending()] == [("w0", 1999), ("w1", 2000), ("w0", 2001)]


def test_history_is_kept_whole_until_it_grows_too_long_and_then_stays_bounded() -> None:
    box = Outbox(most_steps=100)
    for step in range(100):
        box.add(0.0, "j", "w0", beat(step, {"step": float(step)}))
    assert len(list(box.pending())) == 100
    for step in range(100, 5000):
        box.add(0.0, "j", "w0", beat(step, {"step": float(step)}))
    kept = [line["step"] for event in box.pending() for line in getattr(event.body, "steps", [])]
    assert len(kept) <= 101 and kept == sorted(kept) and kept[-1] == 4999.0


def test_nothing_but_progress_is_ever_dropped() -> None:
    box = Outbox(most_steps=10)
    for step in range(500):
        box.add(0.0, "j", "w0", beat(step, {"step": 1.0}, {"step": 2.0}))
        box.add(0.0, "j", "w0", wire.Snapshot(1, step, "disk", 1, 0.1))
    assert sum(isinstance(event.body, wire.Snapshot) for event in box.pending()) == 500


def test_history_stays_within_its_bytes_however_long_a_step_is() -> None:
    box = Outbox(most_history_bytes=1 << 20)
    for step in range(200):
        box.add(0.0, "j", "w0", beat(step, {f"{step}-figure-{number}": 1.0 for number in range(2000)}))
    assert sum(len(msgspec.msgpack.encode(event)) for event in box.pending()) <= 1 << 20


def test_the_history_of_whoever_says_most_is_thinned_first() -> None:
    box = Outbox(most_steps=100)
    for step in range(20):
        box.add(0.0, "quiet", "w0", beat(step, {"step": float(step)}))
    for step in range(1000):
        box.add(0.0, "loud", "w0", beat(step, {"step": float(step)}))
    assert sum(event.job == "quiet" for event in box.pending()) == 20


def test_a_worker_that_says_more_than_is_kept_of_it_is_known() -> None:
    box = Outbox(most_bytes_each=10_000)
    last = [box.add(0.0, "loud", "w0", wire.Raised(error="x" * 900)).sequence for _ in range(12)][-1]
    box.add(0.0, "quiet", "w0", wire.Ready())
    assert (
        box.is_over_limit("loud", "w0")
        and not box.is_over_limit("quiet", "w0")
        and not box.is_over_limit("unknown", "w0")
    )
    box.acknowledge(last)
    assert not box.is_over_limit("loud", "w0")


# ---------------------------------------------------------------- room


def holder(device: int, **demand: float) -> SimpleNamespace:
    return SimpleNamespace(device=device, demand={"device": 1.0, **demand})


def test_who_asked_for_no_memory_is_bound_by_its_devices_part_where_there_are_several() -> None:
    assert memory_limit(None, {"memory": 100.0, "device": 2.0}) == 48
    assert memory_limit(70, {"memory": 100.0, "device": 2.0}) == 70
    assert memory_limit(None, {"memory": 100.0, "device": 1.0}) is None, "the node's own size binds"


def test_room_is_judged_by_device_cores_and_memory() -> None:
    check_room(CAPACITY, [holder(0, cpu=0.5)], {"w1": 1}, {"cpu": 0.5, "memory": 100.0})
    bad = [({"cpu": 0.6}, 1, "cpu"), ({"memory": 101.0}, 1, "memory"), ({}, 0, "taken"), ({}, 2, "no device")]
    for demand, device, word in bad:
        with pytest.raises(NoRoom, match=word):
            check_room(CAPACITY, [holder(0, cpu=0.5)], {"w1": device}, demand)


def test_two_workers_of_one_gang_do_not_share_a_device() -> None:
    with pytest.raises(NoRoom):
        check_room(CAPACITY, [], {"w0": 1, "w1": 1}, {})


def test_cores_that_were_not_asked_for_are_the_devices_part_of_the_node() -> None:
    check_room(CAPACITY, [], {"w0": 0, "w1": 1}, {})
    with pytest.raises(NoRoom, match="cpu"):
        check_room(CAPACITY, [holder(0, cpu=0.7)], {"w1": 1}, {})


# ---------------------------------------------------------------- logs


@given(st.text(min_size=1), st.integers(1, 200))
def test_a_log_read_in_pieces_is_the_same_text(tmp_path_factory: pytest.TempPathFactory, text: str, size: int) -> None:
    folder = tmp_path_factory.mktemp("job")
    (folder / "logs").mkdir()
    (folder / "logs" / "w0.log").write_bytes(text.encode())
    offsets: dict[str, int] = {}
    pieces = []
    while chunks := read_logs(folder, offsets, max(4, size)):
        pieces.append(chunks[0].text)
        offsets["w0"] = chunks[0].offset
    assert "".join(pieces) == text


def test_bytes_that_are_no_text_do_not_stop_the_reader() -> None:
    assert whole_characters(b"\xff\xfe\x80\x80\x80\x80\x80") != b""
    assert whole_characters("ab€".encode()[:-1]) == b"ab"
    assert whole_characters(b"") == b""


def test_logs_of_a_job_without_any_are_empty(tmp_path: Path) -> None:
    assert read_logs(tmp_path, {}, 100) == []


# ---------------------------------------------------------------- cgroups


def test_version_one_is_found_per_controller_below_our_own_group(tmp_path: Path) -> None:
    for controller in ("cpu,cpuacct", "memory"):
        (tmp_path / controller / "mine").mkdir(parents=True)
    mounts = "\n".join(
        f"30 25 0:26 / {tmp_path}/{name} rw,nosuid shared:9 - cgroup cgroup rw,{name}"
        for name in ("cpu,cpuacct", "memory")
    )
    (found,) = cgroups.detect(mounts, "4:memory:/mine\n2:cpu,cpuacct:/mine\n0::/\n")
    assert found.version == 1
    assert found.folders == (tmp_path / "cpu,cpuacct" / "mine", tmp_path / "memory" / "mine")


def test_version_two_is_our_own_group_first_and_the_root_of_the_tree_after(tmp_path: Path) -> None:
    (tmp_path / "user.slice").mkdir()
    mounts = f"30 25 0:26 / {tmp_path} rw shared:9 - cgroup2 cgroup2 rw,nsdelegate"
    found = cgroups.detect(mounts, "0::/user.slice\n")
    assert [(one.version, one.folders) for one in found] == [(2, (tmp_path / "user.slice",)), (2, (tmp_path,))]


def test_a_mounted_part_of_the_tree_is_taken_relative_to_it(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    mounts = f"30 25 0:26 /docker/x {tmp_path} rw - cgroup2 cgroup2 rw"
    assert cgroups.detect(mounts, "0::/docker/x/inner\n")[0].folders == (tmp_path / "inner",)


def test_version_two_limits_are_written_and_read(tmp_path: Path) -> None:
    for name in ("cpu.max", "memory.max", "memory.swap.max", "cgroup.subtree_control"):
        (tmp_path / name).touch()
    (tmp_path / "memory.events").write_text("low 0\noom 2\noom_kill 1\n")
    (tmp_path / "cpu.stat").write_text("usage_usec 1500000\nuser_usec 1\n")
    (tmp_path / "memory.current").write_text("77\n")
    group = cgroups.Group(2, (tmp_path,))
    group.create(0.5, 1000)
    group.delegate()
    assert (tmp_path / "cpu.max").read_text() == "5000 10000" and (tmp_path / "memory.max").read_text() == "1000"
    assert (group.out_of_memory(), group.cpu_s(), group.memory_bytes()) == (True, 1.5, 77)


@pytest.mark.parametrize(
    ("cpu", "expected"),
    [(0.5, (5000, 10000)), (2.0, (20000, 10000)), (0.05, (5000, 100000)), (0.001, (1000, 100000))],
)
def test_a_quota_has_a_short_period_where_the_kernel_allows_it(cpu: float, expected: tuple[int, int]) -> None:
    assert cgroups.quota(cpu) == expected


def test_a_crowd_makes_way_and_has_its_part_again_when_it_is_gone(tmp_path: Path) -> None:
    def group(name: str, tasks: int) -> cgroups.Group:
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "cpu.shares").touch()
        (tmp_path / name / "pids.current").write_text(str(tasks))
        return cgroups.Group(1, (tmp_path / name,))

    def shares() -> list[str]:
        return [(tmp_path / name / "cpu.shares").read_text() for name in ("node", "crowd", "quiet")]

    crowds, node = ForkBombThrottle(), group("node", 0)
    crowds.update(node, [group("crowd", MANY_TASKS + 1), group("quiet", 3), cgroups.Group(0)])
    assert shares() == ["", "2", ""], "its neighbours on the node need the node's part"
    crowds.update(node, [group("crowd", MANY_TASKS + 1)])
    assert shares() == ["2", "2", ""]
    crowds.update(node, [group("crowd", 5)])
    assert shares() == ["1024", "1024", ""]


def test_those_of_a_crowd_wake_up_together_and_as_usual_when_it_is_gone(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        slack = Path(f"/proc/{sleeper.pid}/timerslack_ns")
        usual = slack.read_text()
        (tmp_path / "tasks").write_text(f"{sleeper.pid}\n999999999\n")
        (tmp_path / "cpu.shares").touch()
        crowds, worker = ForkBombThrottle(), cgroups.Group(1, (tmp_path,))
        (tmp_path / "pids.current").write_text(str(MANY_TASKS + 1))
        crowds.update(cgroups.Group(0), [worker])
        assert int(slack.read_text()) == SLACK_S * 1e9
        (tmp_path / "pids.current").write_text("2")
        crowds.update(cgroups.Group(0), [worker])
        assert slack.read_text() == usual
        sleeper.kill()


# ---------------------------------------------------------------- limits


@pytest.mark.parametrize(("kernel", "sandboxed", "grouped", "bound"), [
    ("6.8.0-45-generic", True, True, True),
    ("6.8.0-45-generic", True, False, True),
    ("5.14.0-503.el9", True, True, True),
    ("5.10.0-32-amd64", True, True, False),  # it would count the tenant's other workers
    ("5.10.0-32-amd64", True, False, True),  # and yet nothing else would bound it
    ("6.8.0-45-generic", False, True, False),
    ("unknown", True, True, False),
])  # fmt: skip
def test_a_worker_has_a_limit_of_processes_of_its_own_where_only_its_own_are_counted(
    kernel: str, sandboxed: bool, grouped: bool, bound: bool
) -> None:
    assert process_limit(77, sandboxed=sandboxed, grouped=grouped, kernel=kernel) == (77 if bound else None)


# ---------------------------------------------------------------- environment


def bootstrap(**changes: object) -> WorkerBootstrap:
    fields = {
        "job": "j", "tenant": "t", "uid": 1, "run": None, "command": ["x"], "params": {}, "env": {}, "venv": None,
        "bundle": None, "folder": "/f", "memory_folder": "/m", "cpu": 2.0,
    }  # fmt: skip
    return WorkerBootstrap("w0", 0, PlacedSpec(**(fields | changes)), {"RANK": "3"})  # type: ignore[arg-type]


def test_the_platforms_variables_are_nobodys_to_override_and_its_secrets_nobodys_to_see() -> None:
    env = {"FAIRLEAD_JOB": "other", "FAIRLEAD_TOKEN": "x", "RANK": "9", "COLOR": "red"}
    outer = {"FAIRLEAD_TOKEN": "secret", "FAIRLEAD_DATA": "/data", "AWS_SECRET": "s"}
    variables = worker_environment(bootstrap(env=env), outer)
    assert variables["FAIRLEAD_JOB"] == "j" and variables["RANK"] == "3" and variables["COLOR"] == "red"
    assert variables["FAIRLEAD_DATA"] == "/data" and variables["OMP_NUM_THREADS"] == "2"
    assert "AWS_SECRET" not in variables and "FAIRLEAD_TOKEN" not in variables


def test_workers_on_one_node_of_cards_see_one_card_each() -> None:
    assert [cards_of("a100", device, {})["CUDA_VISIBLE_DEVICES"] for device in (0, 1)] == ["0", "1"]
    given = {"CUDA_VISIBLE_DEVICES": "4,GPU-8f"}  # the node's part of the machine
    assert [cards_of("a100", device, given)["CUDA_VISIBLE_DEVICES"] for device in (0, 1)] == ["4", "GPU-8f"]
    assert cards_of("cpu", 1, given) == {}
    theirs = bootstrap(env={"CUDA_VISIBLE_DEVICES": "0,1,2,3"})
    seated = msgspec.structs.replace(theirs, environment=theirs.environment | cards_of("a100", 1, {}))
    assert worker_environment(seated, {})["CUDA_VISIBLE_DEVICES"] == "1"  # nobody takes another's card


def test_a_virtual_environment_comes_first_in_the_path() -> None:
    assert worker_environment(bootstrap(venv="/v"), {})["PATH"].startswith("/v/bin:")


def test_the_host_is_started_without_the_platforms_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRLEAD_TOKEN", "secret")
    assert "secret" not in host_environment().values()


# ---------------------------------------------------------------- memory


def test_a_folder_for_snapshots_that_somebody_else_made_is_refused(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    home.memory.symlink_to(elsewhere)
    try:
        with pytest.raises(Unavailable, match="not a folder of this user"):
            home.create_memory()
        assert elsewhere.stat().st_mode & 0o777 == 0o700
    finally:
        home.memory.unlink()


def test_a_sandbox_shows_the_platforms_data_folder_by_grant_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fairlead.agent.sandbox import bwrap_args

    data, home = tmp_path / "data", Home(tmp_path / "home")
    data.mkdir()
    home.create()
    monkeypatch.setenv("FAIRLEAD_DATA", str(data))
    for granted in ([], [str(data)], [str(tmp_path / "elsewhere")]):
        spec = bootstrap(folders=granted, folder=str(home.job("j")), memory_folder=str(home.memory / "j" / "n")).spec
        words = bwrap_args.view(spec, home, 1 << 30).arguments.decode().split("\0")
        assert (str(data) in words) == (granted == [str(data)])
