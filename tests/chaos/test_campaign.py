"""A few faults of the campaign on a real platform; and its judges see what they are there to see."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.chaos.campaign import own_logs, state_file, table
from tests.chaos.campaign.campaign import Campaign, Pace
from tests.chaos.campaign.faults import Fault, Stopped
from tests.chaos.campaign.held_devices import Held
from tests.chaos.campaign.own_logs import Run, Step
from tests.chaos.campaign.work import Size
from tests.chaos.crashable import wait_until

FAULTS, SEED = 6, 157
SHORT, PACE = Size(steps=100, pause_s=0.2, ticks=20), Pace(live=4, pause_s=(0.1, 1.0), repeated=1)


@pytest.mark.timeout(300)
def test_a_few_faults_lose_nothing_double_nothing_and_leave_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    file = tmp_path / "campaign"

    def say(text: str) -> None:
        said.append(text)
        if f"fault {FAULTS // 2}:" in text and state_file.read(file).interrupted == 0:  # type: ignore[union-attr]
            raise InterruptedError  # whatever ends it, on the way

    with pytest.raises(InterruptedError):
        Campaign(file, SEED, 3, SHORT, say, PACE).run(FAULTS)
    assert Campaign(file, SEED, 3, SHORT, say, PACE).run(FAULTS), "\n".join(said)
    state = state_file.read(file)
    assert state is not None and len(state.faults) == FAULTS and state.interrupted == 1
    kinds = {fault.kind for fault in state.faults}
    assert len(kinds) >= 4, kinds
    assert all(entry.verdict is not None for entry in state.entries)


def test_what_stands_still_goes_on_after_its_time_and_at_once_when_all_is_over() -> None:
    stopped, sleepers = Stopped(), [subprocess.Popen(["sleep", "60"]) for _ in range(2)]
    try:
        for at, (sleeper, for_s) in enumerate(zip(sleepers, (0.2, 50.0), strict=True)):
            stopped.stop(str(at), sleeper.pid, for_s)
            wait_until(lambda sleeper=sleeper: _stands(sleeper.pid), 20, "it stands still")  # type: ignore[misc]
        wait_until(lambda: not _stands(sleepers[0].pid), 20, "the first one goes on by itself")
        assert _stands(sleepers[1].pid) and stopped.names == {"1"}
        stopped.continue_all()
        wait_until(lambda: not _stands(sleepers[1].pid), 20, "and the other one when all is over")
        assert not stopped.names
    finally:
        for sleeper in sleepers:
            sleeper.kill()
            sleeper.wait()


def _stands(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


# ---------------------------------------------------------------- the judges


def log(*lines: tuple[float, int, str]) -> list[Step]:
    return sorted(Step(time_s, number, life.partition("-")[0], life) for time_s, number, life in lines)


def test_a_history_that_began_again_from_a_snapshot_has_each_step_once() -> None:
    made = log((1, 1, "w0-a"), (2, 2, "w0-a"), (3, 3, "w0-a"), (5, 2, "w1-b"), (6, 3, "w1-b"), (7, 4, "w1-b"))
    assert own_logs.missing(made, 4) == [] and own_logs.doubled(made) == []


def test_a_step_that_nobody_made_is_missed() -> None:
    assert own_logs.missing(log((1, 1, "w0-a"), (2, 3, "w0-a")), 4) == [2, 4]


def test_two_histories_at_a_time_are_seen() -> None:
    one = [(1.0 + step, step, "w0-a") for step in range(1, 8)]
    other = [(3.5 + step, step, "w1-b") for step in range(2, 12)]
    assert own_logs.doubled(log(*one)) == []
    assert own_logs.doubled(log(*one, *other)), "although the second one made each step last, in order"
    assert own_logs.doubled(log((1, 1, "w0-a"), (2, 2, "w0-a"), (3, 3, "w0-a"), (4, 2, "w1-b"))) == [2]


def test_ranks_of_one_gang_are_one_history() -> None:
    ranks = [(step + late, step, life) for step in range(1, 9) for late, life in ((0.0, "w0-a"), (0.3, "w1-b"))]
    joined = [(step + 0.6, step, "w2-c") for step in range(5, 9)]
    assert own_logs.doubled(log(*ranks, *joined)) == []


def test_the_step_that_a_stopped_worker_was_about_to_note_does_not_count() -> None:
    made = log((1, 1, "w0-a"), (2, 2, "w1-b"), (3, 3, "w1-b"), (20, 2, "w0-a"))
    assert own_logs.doubled(made) == [2, 3] and own_logs.doubled(made, {"w0"}) == []


def test_lives_of_a_command_beside_each_other_are_seen() -> None:
    apart = [Run("a", 1, 2, False), Run("b", 3, 4, True)]
    assert own_logs.beside_each_other(apart) == []
    assert own_logs.beside_each_other([Run("a", 1, 3.5, False), Run("b", 3, 4, True)]) == [("a", "b")]


def test_a_command_that_began_again_after_its_end_is_seen_and_excused_where_a_fault_hid_the_end() -> None:
    done, again = Run("w0-b", 30, 44, True), Run("w1-c", 50, 66, True)
    lived = [Run("w0-a", 1, 20, False), done, again]
    assert own_logs.begun_after_done(lived) == [done] and own_logs.begun_after_done(lived[:2]) == []
    assert own_logs.unexcused([done], []) == [done]
    assert own_logs.unexcused([done], [("w0", 29.0), ("w1", 40.0), ("w0", 49.5)]) == [done]
    assert own_logs.unexcused([done], [("w0", 31.0)]) == own_logs.unexcused([done], [("w0", 48.5)]) == []


def test_a_recovery_is_the_first_step_that_was_made_without_the_lost_worker() -> None:
    made = log((1, 1, "w0-a"), (1, 1, "w1-b"), (2.1, 2, "w0-a"), (4, 3, "w0-a"))
    assert own_logs.recovered_s(made, {"w1"}, 2.0) == pytest.approx(2.0)
    again = log((1, 1, "w0-a"), (2, 2, "w0-a"), (5, 2, "w1-b"))
    assert own_logs.recovered_s(again, {"w0"}, 2.5) == pytest.approx(2.5)
    assert own_logs.recovered_s(made, {"w7"}, 2.0) is None


def test_a_ledger_that_books_other_than_was_held_is_wrong() -> None:
    held = {"a": Held(100.0, 110.0, {"w0 1", "w1 2"}), "b": Held(10.0, 10.0, {"w0 3"})}
    assert table.ledger(held, {"a": 118.0, "b": 8.5}, (), 3).right
    free = table.ledger(held, {"a": 110.0, "b": 6.8, "others": 1e6}, (), 3)
    assert not free.right and free.free == pytest.approx({"b": 1.0})
    booked = {"a": 125.0, "b": 11.0}
    assert not table.ledger(held, booked, (), 3).right
    assert table.ledger(held, booked, [Fault(0, "control plane killed", "control plane", 0.0, back_s=3.0)], 3).right
