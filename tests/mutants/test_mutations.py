"""Promises of the sampler: one place is changed at a time, what tells nothing is left alone, and sums are right."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.mutants import __main__ as main
from tests.mutants import coverage_map, sampler
from tests.mutants.coverage_map import Test
from tests.mutants.instrument import instrumented
from tests.mutants.judge import KILLED, SURVIVED, UNDECIDED, Judge, Verdict, chosen, within
from tests.mutants.mutations import Mutant, modules, mutant_of, sites
from tests.mutants.tables import table, wilson
from tests.mutants.trees import CHECKOUT, Tree

SOURCE = '''"""A module."""
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from x import y

__all__ = ["f"]
LIMIT: int | None = 8


class Room:
    def free(self, a: "int | str", b=2) -> list[int]:
        """Says so."""
        log.info("free %d", a + 1)
        if a < b and not self.full:
            self.taken += a * b
        for each in sorted(self.rooms, reverse=True):
            if each in (1, 2):
                continue
            raise ValueError(f"no {a + 1}")
        return min(a, 3.0) if b else [x for x in self.all if x]
'''


def changes(source: str = SOURCE) -> dict[str, Mutant]:
    every = sites("m.py", source)
    made = [mutant_of(site, every, source) for site in every]
    return {mutant.change: mutant for mutant in made if mutant is not None}


def test_each_kind_of_change_is_made_where_it_can_be() -> None:
    found = changes()
    for expected in (
        "8 => 16", "8 => 4", "2 => 3", "a < b => a <= b", "a < b => a >= b", "not self.full => self.full",
        "a < b and (not self.full) => a < b or not self.full", "a < b and (not self.full) => not self.full",
        "a * b => a / b", "self.taken += a * b => self.taken -= a * b", "self.taken += a * b => pass",
        "sorted(self.rooms, reverse=True) => sorted(self.rooms)", "sorted(self.rooms, reverse=True) => self.rooms",
        "True => False", "each in (1, 2) => each not in (1, 2)", "continue => break", "min(a, 3.0) => max(a, 3.0)",
        "3.0 => 6.0", "min(a, 3.0) => a",
    ):  # fmt: skip
        assert expected in found, expected
    assert not any("TYPE_CHECKING" in change or "(2, 1)" in change or "__all__" in change for change in found)
    assert not any("log" in change or "a - 1" in change or "Says so" in change for change in found), "only told"
    assert not any("int" in change.split(" => ")[0] and "|" in change for change in found), "types are no behaviour"


def test_a_mutant_differs_from_its_module_in_one_place_and_is_known_by_its_function() -> None:
    for change, mutant in changes().items():
        before, after = ast.dump(ast.parse(SOURCE)), ast.dump(ast.parse(mutant.text))
        assert before != after, change
        assert mutant.function in ("<module>", "Room.free")
        assert len(mutant.text.splitlines()) == len(SOURCE.splitlines())
    assert changes()["8 => 16"].function == "<module>" and changes()["8 => 16"].line == 8


def test_the_like_of_it_in_one_function_are_told_apart() -> None:
    found = changes("def f(a):\n    return a + 1, a + 1\n")
    assert {"a + 1 => a - 1", "a + 1 => a - 1 (#2)"} <= set(found)
    assert found["a + 1 => a - 1 (#2)"].text.endswith("return a + 1, (a - 1)\n")


def test_a_seed_draws_the_same_mutants_and_all_rooms_alike() -> None:
    first, again = sampler.drawn(7, ("grid", "data"), 10), sampler.drawn(7, ("grid", "data"), 10)
    assert [mutant.key for _, mutant in first] == [mutant.key for _, mutant in again]
    assert [room for room, _ in first].count("grid") == 5
    assert {mutant.key for _, mutant in sampler.drawn(8, ("grid", "data"), 10)} != {mutant.key for _, mutant in first}


def test_every_mutant_that_needs_no_test_exists_and_says_why() -> None:
    listed = sampler.equivalents()
    assert sampler.unknown(listed) == [], "their code has changed: look at them again"
    assert all(len(reason) > 10 for reason in listed.values())


def case(name: str, s: float, *calls: str, passes: bool = True) -> Test:
    return Test(name, s, passes, set(calls))


def test_tests_that_reach_the_function_are_chosen_and_the_closest_within_the_time() -> None:
    tests = [
        case("tests/a/test_far.py::t", 1.0, "m.py:Room.free", "m.py:other", "n.py:x"),
        case("tests/a/test_m.py::t", 3.0, "m.py:Room.free"),
        case("tests/a/test_m.py::red", 0.1, "m.py:Room.free", passes=False),
        case("tests/a/test_n.py::t", 0.1, "m.py:other"),
        case("tests/a/test_d.py::t[postgresql]", 0.1, "m.py:Room.free"),
        case("tests/a/test_d.py::t[sqlite]", 0.2, "m.py:Room.free"),
    ]
    mutant = changes()["a < b => a <= b"]
    names = [test.name for test in chosen(mutant, tests)]
    assert names == ["tests/a/test_m.py::t", "tests/a/test_d.py::t[sqlite]", "tests/a/test_far.py::t"]
    assert [test.name for test in within(3.1, chosen(mutant, tests))] == names[1:], "the closest of those that fit"
    assert [test.name for test in chosen(changes()["8 => 16"], tests)], "a constant is looked at by who uses its module"


@pytest.mark.parametrize(
    ("killed", "of", "low", "high"),
    [(79, 100, 0.700, 0.858), (0, 0, 0.0, 1.0), (10, 10, 0.722, 1.0), (0, 5, 0.0, 0.434)],
)
def test_an_interval_is_wilsons(killed: int, of: int, low: float, high: float) -> None:
    assert wilson(killed, of) == pytest.approx((low, high), abs=0.001)


def test_equivalent_and_undecided_mutants_do_not_count() -> None:
    verdicts = [KILLED] * 3 + [SURVIVED] + ["equivalent"] * 2 + [UNDECIDED]
    row = table(("grid",), [("grid", verdict) for verdict in verdicts]).splitlines()[1].split()
    assert row[:7] == ["grid", "7", "2", "1", "4", "3", "75"]


def test_a_verdict_holds_for_the_same_module_and_the_same_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main, "CACHE", tmp_path)
    (room, mutant), *_ = drawn = main.Run(7, ("recovery",), 3).drawn
    main.Run(7, ("recovery",), 3).write(room, mutant, vars(Verdict(KILLED, "t", 1, 0)))
    again = main.Run(7, ("recovery",), 3)
    assert again.verdict(room, mutant) == KILLED and len(again.open()) == len(drawn) - 1
    again.sources[mutant.module] = "another"
    assert again.verdict(room, mutant) is None
    again = main.Run(7, ("recovery",), 3)
    again.versions[room] = "another"
    assert again.verdict(room, mutant) is None


def test_what_stands_beside_the_tests_of_a_room_counts_as_part_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coverage_map, "CHECKOUT", tmp_path)
    beside = [tmp_path / "tests" / name for name in ("a/test_x.py", "a/puppets.py", "a/deep/stores.py", "conftest.py")]
    for path in beside:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("before")
    for path in beside:
        before = coverage_map.version("a")
        path.write_text("after")
        assert coverage_map.version("a") != before, path
    (tmp_path / "tests/b").mkdir()
    (tmp_path / "tests/b/test_y.py").write_text("of another room")
    before = coverage_map.version("a")
    (tmp_path / "tests/b/test_y.py").write_text("and changed")
    assert coverage_map.version("a") == before


def test_every_function_tells_that_it_is_called_and_does_what_it_did() -> None:
    source = '''"""A module."""
from __future__ import annotations

def plain(a): return a + 1

class Room:
    """A class."""

    @property
    def size(self) -> int:
        """Says so."""
        return 7

    def nested(self):
        @staticmethod
        def inner():
            for each in (1, 2):
                yield each
        return list(inner())
'''
    text, names = instrumented(source, 40)
    assert names == ["plain", "Room.size", "Room.nested", "Room.nested.<locals>.inner"]
    hit: list[int] = []
    module: dict[str, Any] = {"_hit": hit.append}
    exec(text.replace("from fairlead._recorder import hit as _hit\n", ""), module)
    assert (module["plain"](1), module["Room"]().size, module["Room"]().nested()) == (2, 7, [1, 2])
    assert hit == [40, 41, 42, 43]
    for path in modules(CHECKOUT, "recovery"):
        compile(instrumented((CHECKOUT / path).read_text(), 0)[0], path, "exec")


def test_tests_that_were_not_seen_to_their_end_count_as_reaching_what_their_file_imports() -> None:
    text = "from fairlead.recovery import policy\nimport fairlead.recovery.silence as s\nfrom tests import x\n"
    found = coverage_map._imported(text, "recovery")
    assert found == {"fairlead/recovery/__init__.py", "fairlead/recovery/policy.py", "fairlead/recovery/silence.py"}
    tests = [case("tests/a/test_x.py::t", 10.0, "m.py:*"), case("tests/a/test_y.py::t", 1.0, "n.py:f")]
    assert [test.name for test in chosen(changes()["a < b => a <= b"], tests)] == ["tests/a/test_x.py::t"]


@pytest.mark.skipif(
    shutil.which("unshare") is None
    or os.getuid() != 0
    or subprocess.run(["unshare", "--mount", "true"]).returncode != 0,
    reason="needs a mount namespace",
)
@pytest.mark.timeout(180)
def test_a_mutant_is_seen_by_the_tests_alone_and_a_test_that_fails_without_it_kills_nothing() -> None:
    module = Path("fairlead/grid/values.py")
    before = (CHECKOUT / module).read_bytes()
    tree = Tree.free()
    try:
        judge = Judge(tree, {}, threading.Lock())
        found = sites(str(module), before.decode())
        site = next(each for each in found if each.function == "aligned" and each.kind == "operator")
        mutant = mutant_of(site, found, before.decode())
        assert mutant is not None
        extents = "tests/grid/test_reserved_room.py::test_an_arena_that_grows_to_where_it_ends_has_no_more_room"
        good = case(extents, 0.1, f"{module}:aligned")
        assert judge.judge("grid", mutant, [good]).verdict == KILLED
        same = Mutant(mutant.module, mutant.function, mutant.line, "a", "b", before.decode() + "\n")
        assert judge.judge("grid", same, [good]).verdict == SURVIVED
        broken = case("tests/grid/test_reserved_room.py::no_such_test", 0.1, f"{module}:aligned")
        assert judge.judge("grid", mutant, [broken]).verdict == UNDECIDED
    finally:
        tree.close()
    assert (CHECKOUT / module).read_bytes() == before
