"""Plans that take turns: every window of every one is told, and one that fails holds up nobody."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from fairlead import wire
from fairlead.planning.plan import SINGLE, Plan
from fairlead.training import plan_benchmark
from fairlead.training.parallel import direct_sums
from fairlead.training.plan_benchmark import (
    PlanBenchmark,
    PlanTimings,
    _Gang,
    _Gate,
    _one_turn,
    _read_line,
    measure_plans,
)
from fairlead.training.plan_measurement import Question, WorkerPlace
from tests.training.programs import SMALL


def test_plans_take_turns_and_one_that_cannot_run_says_why(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SMALL)
    two = Plan(data=2, sync="allreduce")
    bad = Plan(data=2, sync="local-sgd", period=2)
    single, together, refused = measure_plans(
        PlanBenchmark("train.py:training", [SINGLE, two, bad], rounds=2, window_s=0.01, folder=str(tmp_path))
    )
    assert single.error == together.error == "" and len(single.step_s) == len(together.step_s) == 2
    assert [len(ranks) for ranks in together.cpu_s] == [2, 2] and min(single.step_s) > 0
    for step_s, ranks in zip(together.step_s, together.cpu_s, strict=True):
        assert all(0 < cpu_s <= 4 * step_s + 0.01 for cpu_s in ranks), "of one step"
    assert "changes the maths" in refused.error and refused.step_s == []


def test_how_long_ranks_compute_is_told_and_shares_can_be_held(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SMALL)
    two = Plan(data=2, sync="allreduce", shares=(0.75, 0.25))
    asked = PlanBenchmark(
        "train.py:training", [two, two], rounds=1, window_s=1.0, params={"samples": 48, "slow": 0.01}, held=[1],
        folder=str(tmp_path),
    )  # fmt: skip
    free, held = measure_plans(asked)
    assert free.error == held.error == ""
    assert len(free.compute_s[0]) == 2 and min(free.compute_s[0]) >= 0.01 and sum(free.shares[0]) > 0.99
    assert held.shares[0] == [0.5, 0.5] or max(held.shares[0]) < 0.75


def test_a_worker_is_measured_while_another_trains_apart_from_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SMALL)
    asked = PlanBenchmark(
        "train.py:training", [SINGLE, SINGLE], rounds=2, window_s=0.05, folder=str(tmp_path),
        params={"samples": 48, "slow": 0.01}, places=[WorkerPlace(), WorkerPlace()], accompanied=[1],
    )  # fmt: skip
    alone, beside = measure_plans(asked)
    assert alone.error == beside.error == "" and len(alone.step_s) == len(beside.step_s) == 2


def test_small_sums_are_direct_and_come_to_the_same_bits_everywhere() -> None:
    mine, other = torch.randn(3, 5), torch.randn(3, 5)
    assert direct_sums.is_small_sum(mine, 2) and not direct_sums.is_small_sum(torch.ones(1 << 20), 2)
    assert not direct_sums.is_small_sum(torch.ones(3, dtype=torch.int64), 2) and not direct_sums.is_small_sum(
        mine.t(), 2
    )
    room, sent = direct_sums.direct_buffers(mine, 2)
    assert room.shape == (2, 15) and torch.equal(sent[0], sent[1])
    room[0], room[1] = mine.flatten(), other.flatten()
    direct_sums.sum_rows(room, mine)
    assert torch.equal(mine.flatten(), room[0] + room[1])


# ---------------------------------------------------------------- between a gang and its ranks


def test_a_line_comes_whole_or_not_at_all() -> None:
    source, sink = os.pipe()
    begun_s = time.monotonic()
    assert _read_line(source, begun_s + 0.2) is None and 0.2 <= time.monotonic() - begun_s < 5.0
    os.write(sink, b'{"a": ')
    assert _read_line(source, time.monotonic() + 0.1) is None, "half a line is none"
    threading.Timer(0.05, os.write, (sink, b"1}\n")).start()
    os.write(sink, b'{"b": ')
    assert _read_line(source, time.monotonic() + 20.0) == b'{"b": 1}\n'
    os.close(sink)
    assert _read_line(source, time.monotonic() + 20.0) == b""
    os.close(source)


class Ranks:
    """A gang of which the test is the ranks: each tells what it has when it is told to begin, or at once."""

    def __init__(self, *answers: Any, ready: bool = False, silence_s: float = 20.0) -> None:
        self.told: list[list[bytes]] = []
        self.gang = object.__new__(_Gang)
        self.gang.step_s, self.gang._silence_s, self.gang._children = None, silence_s, []
        self._ends = []
        for lines in answers:
            (hears, tells), (source, sink) = os.pipe(), os.pipe()
            self.gang._children.append((-1, tells, source))
            self._ends += [tells, source]
            self.told.append([])
            threading.Thread(target=self._live, args=(hears, sink, list(lines), self.told[-1], ready)).start()

    def _live(self, hears: int, sink: int, lines: list[Any], told: list[bytes], ready: bool) -> None:
        while True:
            if lines and (ready or told):
                os.write(sink, json.dumps(lines.pop(0)).encode() + b"\n")
                if lines and lines[0] is None:
                    break
            ready = False
            if not (word := os.read(hears, 100)):
                break
            told.append(word)
        os.close(hears)
        os.close(sink)

    def close(self) -> None:
        for end in self._ends:
            os.close(end)


def window(wall_s: float, **more: float) -> dict[str, Any]:
    return {"wall_s": wall_s, "cpu_s": 1.0, "compute_s": 0.1, "share": 0.5, "peak_bytes": 7} | more


def test_a_gang_is_ready_when_all_ranks_are_and_as_fast_as_the_slowest() -> None:
    ranks = Ranks([{"ready": True}, window(3.0)], [{"ready": True}, window(6.0)], ready=True)
    assert ranks.gang.warm_up(3) == "" and ranks.gang.step_s == 2.0
    assert ranks.told == [[b"3\n"], [b"3\n"]]
    ranks.close()
    broken = Ranks(
        [{"ready": True}, {"error": "echo", "lost": True}], [{"ready": True}, {"error": "cause", "lost": False}],
        ready=True,
    )  # fmt: skip
    assert broken.gang.warm_up(3) == "cause" and broken.gang.step_s is None
    broken.close()


def test_what_went_wrong_is_told_before_its_echoes_and_silence_is_no_echo() -> None:
    lost = {"error": "rank 0: gone", "lost": True}
    ranks = Ranks([lost], [{"error": "mine", "lost": False}], ready=True)
    assert ranks.gang._read_answers() == ([lost, {"error": "mine", "lost": False}], "mine")
    ranks.close()
    ranks = Ranks([window(1.0)], [], ready=True, silence_s=0.3)
    answers, error = ranks.gang._read_answers()
    assert error == "rank 1 did not answer in time" and answers[0]["wall_s"] == 1.0
    ranks.close()
    ranks = Ranks([window(1.0), None], [window(1.0), None], ready=True)
    ranks.gang._read_answers()
    answers, error = ranks.gang._read_answers()
    assert error == "rank 0 has ended" and [answer["lost"] for answer in answers] == [True, True]
    ranks.gang.begin(5)
    ranks.close()


@pytest.mark.parametrize(
    ("step_s", "asked", "steps"),
    [
        (None, {}, 2), (0.1, {}, 4), (0.25, {}, 2), (9.0, {}, 2), (0.0001, {}, 400), (0.1, {"steps": 7}, 7),
        (0.1, {"window_s": 1.0}, 10),
    ],
)  # fmt: skip
def test_a_window_is_as_many_steps_as_fit_within_bounds(
    step_s: float | None, asked: dict[str, Any], steps: int
) -> None:
    ranks, taken = Ranks([window(2.0 * steps, cpu_s=steps)], [window(1.0 * steps)]), PlanTimings()
    ranks.gang.step_s = step_s
    _one_turn(ranks.gang, taken, PlanBenchmark("f:g", [], **asked), keep=True)
    assert ranks.told == [[f"{steps}\n".encode()]] * 2
    assert (taken.step_s, taken.peak_bytes, taken.error) == ([2.0], [7, 7], "") and ranks.gang.step_s == 2.0
    assert taken.cpu_s == [[1.0, 1.0 / steps]] and taken.compute_s == [[0.1, 0.1]] and taken.shares == [[0.5, 0.5]]
    ranks.close()


def test_the_first_turn_is_not_kept_and_an_error_ends_the_turns_of_its_plan() -> None:
    ranks, taken = Ranks([window(4.0), {"error": "no", "lost": False}]), PlanTimings()
    _one_turn(ranks.gang, taken, PlanBenchmark("f:g", []), keep=False)
    assert taken.step_s == [] and ranks.gang.step_s == 2.0
    _one_turn(ranks.gang, taken, PlanBenchmark("f:g", []), keep=True)
    assert (taken.error, taken.step_s, ranks.gang.step_s) == ("no", [], 2.0)
    ranks.close()


def test_what_is_asked_when_nothing_is_said() -> None:
    asked = PlanBenchmark("f:g", [])
    assert (asked.rounds, asked.window_s, asked.steps, asked.silence_s, asked.folder) == (7, 0.4, 0, 120.0, ".")
    question = Question("f:g", SINGLE)
    assert (question.steps, question.silence_s, question.meet, question.folder) == (20, 60.0, None, ".")


def test_a_gate_lets_so_many_steps_pass_and_counts_all_but_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    (listens, tells), (hears, answers) = os.pipe(), os.pipe()
    now = [10.0, 100.0]
    monkeypatch.setattr(plan_benchmark, "_now", lambda: tuple(now))
    monkeypatch.setattr(plan_benchmark.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(plan_benchmark.time, "process_time", lambda: now[1])
    gate = _Gate(listens, answers, None)
    os.write(tells, b"3\n")

    def step() -> None:
        assert not gate.pending()
        now[0] += 2.0
        now[1] += 1.0

    for _ in range(4):
        step()
    assert os.read(hears, 100) == b'{"ready": true}\n'
    gate.send(wire.Progress(1, 1, 9, compute_s=0.5, share=0.25))
    gate.send(wire.Ready())
    os.write(tells, b"2\n")
    for _ in range(3):
        step()
    first = json.loads(os.read(hears, 500))
    assert (first["wall_s"], first["cpu_s"], first["compute_s"], first["share"]) == (6.0, 3.0, 0.5, 0.25)
    assert first["peak_bytes"] > 1 << 20
    os.write(tells, b"2\n")
    step()
    second = json.loads(os.read(hears, 500))
    assert (second["wall_s"], second["cpu_s"]) == (4.0, 2.0) and gate.take() is None
    for end in (listens, tells, hears, answers):
        os.close(end)
