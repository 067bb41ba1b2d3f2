"""Growing, shrinking, preempting and losing workers: the loss curve is that of an undisturbed run."""

from __future__ import annotations

import os
import random
import signal
import socket
import time
from collections.abc import Iterator

import pytest

from fairlead import wire
from fairlead.local_wire import PlacedJoin
from tests.training.conftest import MakeGang
from tests.training.gang import Gang
from tests.training.programs import SMALL
from tests.training.test_exactness import assert_same_result, train

STEPS = {"layers": "both", "epochs": 12}  # 5 steps an epoch
SILENCE_S = 30.0  # as gangs are told here, unless it is said otherwise


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gang]:
    gang = Gang(tmp_path_factory.mktemp("undisturbed"), SMALL, STEPS)
    try:
        yield train(gang, 1)
    finally:
        gang.close()


def disturbed(make_gang: MakeGang, slow: float = 0.01) -> Gang:
    return make_gang(SMALL, STEPS | {"slow": slow}, folder="disturbed")


def test_growing_from_one_to_three_and_back_in_flight(make_gang: MakeGang, undisturbed: Gang) -> None:
    gang = disturbed(make_gang)
    gang.start("w0", "w1", "w2")
    gang.ready("w0", "w1", "w2")
    gang.join("w0")
    gang.reach(5)
    gang.leave()
    gang.join("w0", "w1", "w2", shares=[0.5, 0.2, 0.3])
    gang.reach(20)
    gang.leave(exits=["w0", "w2"])
    gang.join("w1")
    gang.finish()
    assert gang.workers["w0"].code == gang.workers["w2"].code == 0
    assert_same_result(undisturbed, gang)


def test_survivors_of_a_kill_go_on_with_the_same_curve(make_gang: MakeGang, undisturbed: Gang) -> None:
    gang = disturbed(make_gang)
    gang.start("w0", "w1", "w2")
    gang.ready("w0", "w1", "w2")
    gang.join("w0", "w1", "w2")
    gang.reach(12)
    pids = [gang.workers[name].pid for name in ("w1", "w2")]
    gang.kill("w0")
    gang.until(lambda: all(gang.said(name, wire.Broken) for name in ("w1", "w2")), "the survivors said Broken")
    gang.join("w1", "w2")
    gang.finish()
    assert [gang.workers[name].pid for name in ("w1", "w2")] == pids
    assert_same_result(undisturbed, gang)


def test_a_replacement_takes_over_the_state_of_the_survivors(make_gang: MakeGang, undisturbed: Gang) -> None:
    gang = disturbed(make_gang)
    gang.start("w0", "w1")
    gang.ready("w0", "w1")
    gang.join("w0", "w1")
    gang.reach(7)
    gang.kill("w1")
    gang.start("w2")
    gang.until(lambda: gang.said("w0", wire.Broken), "the survivor said Broken")
    gang.ready("w2")
    gang.join("w2", "w0")
    assert gang.workers["w2"].last(wire.Joined).step >= 7
    gang.finish()
    assert_same_result(undisturbed, gang)


def test_kills_in_a_row_are_survived(make_gang: MakeGang, undisturbed: Gang) -> None:
    gang = disturbed(make_gang)
    gang.start("w0", "w1")
    gang.ready("w0", "w1")
    gang.join("w0", "w1")
    for round_ in range(4):
        gang.reach(6 * (round_ + 1))
        lost, kept = gang.members[round_ % 2], gang.members[1 - round_ % 2]
        gang.kill(lost)
        newcomer = f"n{round_}"
        gang.start(newcomer)
        gang.ready(newcomer)
        gang.until(lambda kept=kept: gang.said(kept, wire.Broken), "the survivor said Broken")
        gang.join(newcomer, kept)
    gang.finish()
    assert_same_result(undisturbed, gang)


@pytest.mark.parametrize("seed", [1, 2])
def test_kills_at_random_moments_also_while_the_ranks_meet(make_gang: MakeGang, undisturbed: Gang, seed: int) -> None:
    moments = random.Random(seed)
    gang = disturbed(make_gang)
    members = ["a", "b", "c"]
    gang.start(*members)
    gang.ready(*members)
    for round_ in range(8):
        gang.join(*members, wait=False)
        gang.listen_for(moments.choice([moments.uniform(0, 0.02), moments.uniform(0, 0.15)]))
        lost = moments.choice(members)
        gang.kill(lost)
        newcomer = f"n{round_}"
        gang.start(newcomer)
        gang.ready(newcomer)
        members = moments.sample([newcomer, *(name for name in members if name != lost)], 3)
    called_s = time.monotonic()
    gang.join(*members)
    assert time.monotonic() - called_s < SILENCE_S, "nobody waited until a dead peer had been silent for long enough"
    gang.finish()
    assert_same_result(undisturbed, gang)


def test_a_preempted_job_resumes_from_its_snapshot(make_gang: MakeGang, undisturbed: Gang) -> None:
    gang = disturbed(make_gang)
    gang.start("w0", "w1")
    gang.ready("w0", "w1")
    gang.join("w0", "w1")
    gang.reach(8)
    gang.leave(snapshot=True)
    step = gang.workers["w0"].last(wire.Left).step
    gang.finish()
    assert {s.where for s in gang.workers["w0"].heard(wire.Snapshot)} == {"memory", "disk"}
    gang.start("w2", node="n1")
    gang.ready("w2")
    assert gang.workers["w2"].last(wire.Ready).resumable_step == step
    gang.join("w2")
    assert gang.workers["w2"].last(wire.Joined).step == step
    gang.finish()
    assert_same_result(undisturbed, gang)


def test_a_damaged_snapshot_gives_way_to_an_older_one(make_gang: MakeGang, undisturbed: Gang) -> None:
    gang = disturbed(make_gang)
    for name, step in (("w0", 6), ("w1", 14)):
        gang.start(name)
        gang.ready(name)
        gang.join(name)
        gang.reach(step)
        gang.leave(snapshot=True)
        gang.finish()
    newest = gang.workers["w1"].last(wire.Left).step
    for path in gang.root.rglob(f"snapshot-{newest}.pt"):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 0xFF
        path.write_bytes(bytes(data) if path.parent.name == "snapshots" else bytes(data[: len(data) // 3]))
    gang.start("w2", "w3")
    gang.ready("w2", "w3")
    gang.join("w2", "w3")
    assert gang.workers["w3"].last(wire.Joined).step == gang.workers["w0"].last(wire.Left).step
    assert "damaged" in gang.log("w2")
    gang.finish()
    assert_same_result(undisturbed, gang)


def test_a_silent_peer_breaks_the_generation_after_its_silence(make_gang: MakeGang) -> None:
    gang = disturbed(make_gang)
    gang.start("w0", "w1")
    gang.ready("w0", "w1")
    gang.join("w0", "w1", silence_s=2.0)
    gang.reach(3)
    gang.kill("w1", signal.SIGSTOP)
    start = time.monotonic()
    gang.until(lambda: gang.said("w0", wire.Broken), "the survivor said Broken", SILENCE_S)
    assert time.monotonic() - start > 1.5
    gang.join("w0")
    gang.finish()


def test_a_call_to_the_next_generation_frees_a_worker_that_waits_for_a_silent_peer(make_gang: MakeGang) -> None:
    gang = disturbed(make_gang)
    gang.start("w0", "w1")
    gang.ready("w0", "w1")
    gang.join("w0", "w1", silence_s=60)
    gang.reach(3)
    gang.kill("w1", signal.SIGSTOP)
    gang.join("w0")
    kinds = [type(m).__name__ for _, m in gang.workers["w0"].said if not isinstance(m, wire.Progress | wire.Snapshot)]
    assert kinds == ["Ready", "Joined", "Broken", "Joined"]
    gang.finish()


def test_a_meeting_that_nobody_comes_to_can_be_called_off(make_gang: MakeGang) -> None:
    gang = disturbed(make_gang, slow=0.0)
    gang.start("w0", "w1")
    gang.ready("w0", "w1")
    gang.kill("w1")
    gang.join("w0", "w1", wait=False)
    gang.join("w0")
    assert gang.workers["w0"].heard(wire.Broken)[0].generation == 1
    gang.finish()


def test_survivors_told_to_leave_with_a_snapshot_after_a_loss_write_it(make_gang: MakeGang) -> None:
    gang = disturbed(make_gang)
    gang.start("w0", "w1")
    gang.ready("w0", "w1")
    gang.join("w0", "w1")
    gang.reach(5)
    gang.kill("w0")
    gang.until(lambda: gang.said("w1", wire.Broken), "the survivor said Broken")
    gang.tell(wire.Leave(gang.generation, snapshot=True), "w1")
    gang.until(lambda: gang.workers["w1"].code is not None, "the survivor ended")
    left = gang.workers["w1"].last(wire.Left)
    assert left.snapshot and (gang.root / "snapshots" / f"snapshot-{left.step}.pt").exists()


def test_a_waiting_worker_quits_when_told_and_ends_with_its_node_manager(make_gang: MakeGang) -> None:
    gang = disturbed(make_gang)
    gang.start("w0", "w1")
    gang.ready("w0", "w1")
    gang.tell(wire.Quit(), "w0")
    gang.until(lambda: gang.workers["w0"].code == 0, "it quit")
    gang.join("w1")
    gang.reach(2)
    gang.workers["w1"].stream.shutdown(1)
    gang.until(lambda: gang.workers["w1"].code is not None, "the orphan ended")
    assert gang.workers["w1"].code == 3


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def call_over_tcp(port: int, secret: str) -> PlacedJoin:
    network = wire.Network("127.0.0.1", port, secret)
    return PlacedJoin(1, {"w0": 0, "w1": 1}, silence_s=4.0, network=network, init_method=f"tcp://127.0.0.1:{port}")


def test_meeting_over_tcp_works_like_over_a_file(make_gang: MakeGang) -> None:
    gang = disturbed(make_gang, slow=0.0)
    gang.start("w0", "w1")
    gang.ready("w0", "w1")
    gang.generation, gang.members = 1, ["w0", "w1"]
    gang.tell(call_over_tcp(free_port(), "f00d"), "w0", "w1")
    gang.finish()
    assert os.path.exists(gang.root / "output" / "model.safetensors")  # noqa: PTH110


def test_who_was_told_another_secret_meets_nobody_over_tcp(make_gang: MakeGang) -> None:
    gang, port = disturbed(make_gang, slow=0.0), free_port()
    gang.start("w0", "w1")
    gang.ready("w0", "w1")
    gang.generation, gang.members = 1, ["w0", "w1"]
    gang.tell(call_over_tcp(port, "f00d"), "w0")
    gang.tell(call_over_tcp(port, "beef"), "w1")
    gang.until(lambda: all(gang.said(name, wire.Broken) for name in ("w0", "w1")), "neither finds the other")
    assert "f00d" not in repr(call_over_tcp(port, "f00d"))


def test_a_step_follows_a_kill_within_two_seconds(make_gang: MakeGang) -> None:
    gang = disturbed(make_gang)
    gang.start("w0", "w1", "w2")
    gang.ready("w0", "w1", "w2")
    gang.join("w0", "w1", "w2")
    gang.reach(4)
    took_s = []
    for lost, left in (("w2", ("w0", "w1")), ("w1", ("w0",))):
        killed_s = time.monotonic()
        gang.kill(lost)
        gang.until(lambda lost=lost: gang.workers[lost].code is not None, "it is dead")
        gang.join(*left)
        gang.until(lambda left=left: all(gang.said(name, wire.Progress) for name in left), "they made a step")
        took_s.append(time.monotonic() - killed_s)
    assert min(took_s) < 2, "the better of two: others use this machine, too"


def test_a_loss_in_the_middle_of_an_evaluation_repeats_only_the_evaluation(make_gang: MakeGang) -> None:
    code = SMALL.replace(
        "        return x\n",
        "        if not self.training and x.shape[0] < 20:\n"
        "            open('evaluating', 'a').close()\n            time.sleep(0.3)\n        return x\n", 1,
    )  # fmt: skip
    gang = make_gang(code, {"layers": "both", "epochs": 2})
    gang.start("w0", "w1")
    gang.ready("w0", "w1")
    marker = gang.root / "code" / "evaluating"
    marker.unlink(missing_ok=True)  # the probe evaluates, too
    gang.join("w0", "w1")
    gang.until(marker.exists, "an evaluation is under way")
    gang.kill("w0")
    gang.until(lambda: gang.said("w1", wire.Broken), "the survivor said Broken")
    assert gang.workers["w1"].last(wire.Broken).step == 5
    gang.join("w1")
    gang.finish()
    assert_same_result(train(make_gang(SMALL, {"layers": "both", "epochs": 2}), 1), gang)


def test_snapshots_are_taken_on_the_way_and_survive_the_death_of_everybody(make_gang: MakeGang) -> None:
    params = {"layers": "both", "epochs": 12}
    gang = make_gang(SMALL, params | {"slow": 0.05}, folder="disturbed")
    gang.start("w0", "w1")
    gang.ready("w0", "w1")
    gang.join("w0", "w1")
    on_disk = lambda: [s for s in gang.workers["w0"].heard(wire.Snapshot) if s.where == "disk"]  # noqa: E731
    gang.until(lambda: bool(on_disk()), "a snapshot is on disk")
    gang.kill("w0")
    gang.kill("w1")
    gang.until(lambda: all(gang.workers[name].code is not None for name in ("w0", "w1")), "everybody is dead")
    gang.start("w2", "w3", node="n1")
    gang.ready("w2", "w3")
    gang.join("w2", "w3")
    assert gang.workers["w3"].last(wire.Joined).step >= on_disk()[0].step > 0
    gang.finish()
    assert_same_result(train(make_gang(SMALL, params), 1), gang)
