"""Graphs as values: wiring, refusals with stage, field and fix, and fingerprints that change when they should."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.errors import InvalidSpec
from fairlead.pipelines import argument_refs
from fairlead.pipelines.fingerprints import cacheable_stages, fingerprints
from fairlead.pipelines.graph import behind, cycle, order, parse_pipeline, stage_job
from fairlead.sdk.pipeline_specs import prepare

PROGRAMS = Path(__file__).parent / "programs"
RUN = {"run": "flow.py:one"}


def spec(**stages: dict[str, Any]) -> dict[str, Any]:
    return {"name": "flow", "stages": stages}


def refused(data: Any) -> str:
    with pytest.raises(InvalidSpec) as found:
        parse_pipeline(data, source="flow.yaml")
    assert found.value.fix
    text = f"{found.value} (fix: {found.value.fix})"
    assert "\n" not in text
    return text


def test_arguments_name_the_stages_that_come_before() -> None:
    made = parse_pipeline(
        spec(load=RUN, fit={**RUN, "args": {"data": ["$load[x][0]", 3], "text": "$$5"}}, tell={**RUN, "after": ["fit"]})
    )
    assert made.upstream == {"load": frozenset(), "fit": {"load"}, "tell": {"fit"}}
    assert order(made.upstream) == ["load", "fit", "tell"]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (spec(fit={**RUN, "args": {"x": "$laod"}}, load=RUN), ["stages.fit", "$laod", "did you mean $load"]),
        (spec(a={**RUN, "args": {"x": "$b"}}, b={**RUN, "args": {"x": "$a"}}), ["waits for itself", "a -> b -> a"]),
        (spec(a={**RUN, "args": {"x": "$a"}}), ["stages.a", "waits for itself: a -> a"]),
        (spec(a={}), ["stages.a.run", "a stage runs one thing"]),
        (spec(a={**RUN, "workers": 2}), ["stages.a.workers", "runs in one worker"]),
        (spec(a={**RUN, "args": {"x": "$no such"}}), ["stages.a.args.x", "names no stage", "$$"]),
        (spec(a={**RUN, "wrokers": 2}), ["stages.a.wrokers", "unknown field"]),
        (spec(a={"run": "nothing"}), ["run", "is not a function"]),
        ({"name": "flow", "stages": {}}, ["stages"]),
        ({"name": "Not A Name", "stages": {"a": RUN}}, ["name", "not-a-name"]),
        ("text", ["is a mapping of fields"]),
    ],
)
def test_what_is_wrong_is_said_in_one_line_with_stage_field_and_fix(data: Any, words: list[str]) -> None:
    said = refused(data)
    assert not [word for word in words if word not in said], said


def test_a_fingerprint_changes_with_code_arguments_and_what_comes_before_and_with_nothing_else() -> None:
    source = "sha256:" + "0" * 64

    def mark(**changes: Any) -> dict[str, str]:
        first = {**RUN, "source": source, "args": {"n": 1}, **changes}
        second = {**RUN, "source": source, "args": {"x": "$load"}}
        return dict(fingerprints(parse_pipeline(spec(load=first, fit=second))))

    usual = mark()
    for same in ({"resources": {"cpu": 2}}, {"retries": 3}, {"takes": 60}):
        assert mark(**same) == usual
    for other in ({"args": {"n": 2}}, {"source": "sha256:" + "1" * 64}, {"run": "flow.py:two"}, {"env": {"A": "b"}}):
        found = mark(**other)
        assert found["load"] != usual["load"] and found["fit"] != usual["fit"]


def test_a_training_that_reads_another_version_of_its_data_is_run_again() -> None:
    def mark(versions: dict[str, str] | None = None, **changes: Any) -> str:
        return fingerprints(parse_pipeline(spec(fit={**RUN, "trains": True, **changes})), versions or {})["fit"]

    assert mark(data=["people@aaaaaa"]) != mark(data=["people@bbbbbb"])
    told = {"args": {"data": "people"}}  # Training(data=data)
    assert mark({"people": "aaaaaa"}, **told) != mark({"people": "bbbbbb"}, **told)
    assert mark({"people": "aaaaaa", "other": "1"}, **told) == mark({"people": "aaaaaa", "other": "2"}, **told)
    assert mark({"people": "aaaaaa"}) == mark({"people": "bbbbbb"})


def test_the_data_sets_of_a_training_are_found_in_its_text(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text("import more\ndef fit() -> 'Training': return Training(data='people')\n")
    (tmp_path / "more.py").write_text("from fairlead.data import dataset\nJUDGED = dataset('people-test')\n")
    (tmp_path / "flow.yaml").write_text(
        "name: flow\nstages:\n  fit: {run: flow.py:fit, trains: true}\n  plain: {run: flow.py:fit}\n"
    )
    stages = prepare(str(tmp_path / "flow.yaml"), tmp_path, {}, {}).spec.stages
    assert stages["fit"].data == ["people", "people-test"]
    assert not stages["plain"].data


PLAIN = st.recursive(
    st.text() | st.integers() | st.none(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(PLAIN)
def test_plain_values_come_through_as_they_are(value: Any) -> None:
    def written(each: Any) -> Any:
        if isinstance(each, dict):
            return {key: written(inner) for key, inner in each.items()}
        if isinstance(each, list):
            return [written(inner) for inner in each]
        return argument_refs.escape(each) if isinstance(each, str) else each

    assert not list(argument_refs.references(written(value)))
    assert argument_refs.resolve(written(value), lambda reference: None) == value


@given(st.dictionaries(st.sampled_from("abcdef"), st.sets(st.sampled_from("abcdef"), max_size=3), max_size=6))
def test_a_circle_is_found_if_and_only_if_there_is_no_order(graph: dict[str, set[str]]) -> None:
    inside = {name: others & graph.keys() for name, others in graph.items()}
    circle = cycle(inside)
    if not circle:
        placed = order(inside)
        assert all(placed.index(other) < placed.index(name) for name, others in inside.items() for other in others)
    else:
        for before, after in zip(circle, circle[1:] + circle[:1], strict=True):
            assert before in inside[after]
        with pytest.raises(ValueError, match="cycle"):
            order(inside)


def test_a_stage_by_another_name_is_the_same_code_of_the_same_file() -> None:
    """A pickle of it may differ from process to process, and then it would be run again for nothing."""
    prepared = prepare(f"{PROGRAMS / 'flow.py'}:chain", PROGRAMS, {}, {})
    assert prepared.spec.stages["last"].run == "flow.py:judge"
    assert not prepared.extra


def test_nothing_stands_for_what_follows_from_a_stage_that_is_always_run() -> None:
    flow = spec(
        read={**RUN, "cache": False}, fit={**RUN, "args": {"data": "$read"}}, tell={**RUN, "after": ["fit"]}, other=RUN
    )
    assert cacheable_stages(parse_pipeline(flow)) == {"other"}


@pytest.mark.parametrize("key", ["1", 1, "-2", '"1"', '"', "a", "a b"])
def test_a_key_is_read_as_it_was_written(key: str | int) -> None:
    reference = argument_refs.Reference("load", (key, "x"))
    assert argument_refs.parse(str(reference)) == reference


def test_the_longest_way_behind_a_stage_counts() -> None:
    upstream = {"a": set(), "b": {"a"}, "c": {"b"}, "d": {"a"}, "e": {"c", "d"}, "f": set()}
    assert behind(upstream) == {"a": 3, "b": 2, "c": 1, "d": 1, "e": 0, "f": 0}


def test_a_graph_with_too_many_edges_is_refused_before_anything_is_reckoned_of_it() -> None:
    names = [f"s{n}" for n in range(500)]
    stages = {name: {**RUN, "after": names[:at]} for at, name in enumerate(names)}
    assert "stages: have 124750 dependencies" in refused({"name": "flow", "stages": stages})


class Counted(frozenset[str]):
    """Upstream of a stage that counts how often somebody walks through it."""

    walks = 0

    def __iter__(self) -> Iterator[str]:
        Counted.walks += 1
        return super().__iter__()


def test_what_is_known_of_a_graph_takes_one_look_at_each_edge_however_long_it_is() -> None:
    names = [f"s{n:04}" for n in range(2000)]
    chain = {name: Counted(names[at - 1 : at] if at else []) for at, name in enumerate(names)}
    Counted.walks = 0
    assert order(chain) == names and cycle(chain) == []
    assert behind(chain)["s0000"] == 1999
    assert Counted.walks <= 6 * len(names)


def test_a_long_circle_is_told_in_one_short_line() -> None:
    names = [f"s{n:03}" for n in range(400)]
    circle = {name: {**RUN, "after": [names[at - 1]]} for at, name in enumerate(names)}
    assert len(refused({"name": "flow", "stages": circle})) < 300


def test_what_a_stage_gave_fails_the_stage_that_cannot_take_it_and_nothing_else() -> None:
    made = parse_pipeline(spec(a=RUN, b={**RUN, "args": {"x": "$a"}}))
    deep: Any = 1
    for _ in range(300):
        deep = [deep]
    with pytest.raises(InvalidSpec, match="nested more than"):
        stage_job(made, "b", "flow-x", {"args": {}, "inputs": {"a": {"plain": deep}}})
