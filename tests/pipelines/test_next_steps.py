"""What comes next for a pipeline: over random graphs and random fates, every stage ends once, and for a reason."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from fairlead.pipelines.next_steps import (
    DONE,
    OVER,
    JobFact,
    PipelineEnd,
    Rebuild,
    Reuse,
    Settle,
    StagePhase,
    StageState,
    Start,
    Step,
    Stop,
    next_steps,
)

GIVEN = {"kind": "plain", "plain": 1}


def waiting(*names: str) -> dict[str, StageState]:
    return {name: StageState(name) for name in names}


def test_only_what_has_its_inputs_starts() -> None:
    graph = {"load": frozenset[str](), "fit": frozenset({"load"}), "look": frozenset[str]()}
    assert next_steps(graph, waiting("load", "fit", "look"), {}) == [Start("load"), Start("look")]


def test_a_failed_stage_takes_its_descendants_with_it_and_nobody_else() -> None:
    none = frozenset[str]()
    graph = {"fit": none, "score": frozenset({"fit"}), "tell": frozenset({"score"}), "other": none}
    states = waiting("fit", "score", "tell", "other")
    states["fit"] = replace(states["fit"], phase=StagePhase.FAILED, message="no good")
    states["other"] = replace(states["other"], phase=StagePhase.ACTIVE)
    assert next_steps(graph, states, {"other": JobFact(None)}) == [
        Settle("score", StagePhase.SKIPPED, "upstream fit failed"),
        Settle("tell", StagePhase.SKIPPED, "upstream fit failed"),  # in the same pass, however long the row is
    ]
    states["score"] = replace(states["score"], phase=StagePhase.SKIPPED, message="upstream fit failed")
    assert next_steps(graph, states, {"other": JobFact(None)}) == [
        Settle("tell", StagePhase.SKIPPED, "upstream fit failed")
    ]


def test_a_result_that_is_gone_is_made_anew_a_few_times_and_then_it_is_a_failure() -> None:
    graph = {"load": frozenset[str](), "fit": frozenset({"load"})}
    states = waiting("load", "fit")
    states["load"] = replace(states["load"], phase=StagePhase.CACHED)
    states["fit"] = replace(states["fit"], phase=StagePhase.ACTIVE)
    lost = {"fit": JobFact("failed", "gone", missing=("load",))}
    assert next_steps(graph, states, lost) == [Rebuild("load", "fit")]
    states["load"] = replace(states["load"], rebuilds=3)
    assert next_steps(graph, states, lost) == [Settle("fit", StagePhase.FAILED, "gone")]


def test_a_cancelled_pipeline_ends_what_runs_and_starts_nothing() -> None:
    graph = {"load": frozenset[str](), "fit": frozenset({"load"})}
    states = waiting("load", "fit")
    states["load"] = replace(states["load"], phase=StagePhase.ACTIVE)
    steps = next_steps(graph, states, {"load": JobFact(None)}, cancelled=True)
    assert steps == [Settle("fit", StagePhase.CANCELLED), Stop("load")]
    states["fit"] = replace(states["fit"], phase=StagePhase.CANCELLED)
    assert next_steps(graph, states, {"load": JobFact(None, stopping=True)}, cancelled=True) == []


@st.composite
def stories(draw: st.DrawFn) -> tuple[dict[str, frozenset[str]], dict[str, str], frozenset[str], int | None]:
    """A graph, the fate of each stage, what is known of before, and after how many steps somebody cancels."""
    names = [f"s{number}" for number in range(draw(st.integers(1, 8)))]
    graph = {
        name: frozenset(draw(st.sets(st.sampled_from(names[:index]), max_size=3)) if index else ())
        for index, name in enumerate(names)
    }
    ends = st.sampled_from(["succeeded", "succeeded", "failed", "cancelled", "missing"])
    fates = {name: draw(ends) for name in names}
    known = frozenset(draw(st.sets(st.sampled_from(names), max_size=2)))
    return graph, fates, known, draw(st.none() | st.integers(0, 10))


def _apply(states: dict[str, StageState], jobs: dict[str, JobFact], step: Step, fates: dict[str, str],
           graph: dict[str, frozenset[str]]) -> None:  # fmt: skip
    match step:
        case Start(name):
            assert all(states[other].phase in DONE for other in graph[name])
            states[name] = replace(states[name], phase=StagePhase.ACTIVE, job=name)
            gone = tuple(sorted(graph[name])) if fates[name] == "missing" else ()
            jobs[name] = JobFact("failed" if fates[name] == "missing" else fates[name], "said", GIVEN, gone)
        case Reuse(name):
            states[name] = replace(states[name], phase=StagePhase.CACHED)
        case Settle(name, phase, message):
            states[name] = replace(states[name], phase=phase, message=message)
        case Rebuild(name, for_stage):
            again = states[name].rebuilds + 1
            states[name] = replace(states[name], phase=StagePhase.WAITING, rebuilds=again, fresh=True)
            states[for_stage] = replace(states[for_stage], phase=StagePhase.WAITING)
        case Stop(name):
            jobs[name] = JobFact("cancelled", "told to")
        case PipelineEnd():
            raise AssertionError("an end comes alone")


@given(stories())
def test_every_story_ends_and_ends_as_its_stages_did(
    story: tuple[dict[str, frozenset[str]], dict[str, str], frozenset[str], int | None],
) -> None:
    graph, fates, known, cancels_at = story
    states, jobs = waiting(*graph), dict[str, JobFact]()
    for turn in range(500):
        cancelled = cancels_at is not None and turn >= cancels_at
        steps = next_steps(graph, states, jobs, known, cancelled=cancelled)
        assert steps == next_steps(dict(reversed(graph.items())), dict(reversed(states.items())), jobs, known,
                                   cancelled=cancelled), "the order of what is given does not matter"  # fmt: skip
        assert steps, "nothing runs for ever in this story, so there is always something to do"
        if isinstance(steps[0], PipelineEnd):
            break
        for step in steps:
            _apply(states, jobs, step, fates, graph)
    else:
        raise AssertionError("it never ends")
    assert all(state.phase in OVER for state in states.values())
    end = steps[0]
    assert isinstance(end, PipelineEnd)
    if end.phase == "succeeded":
        assert all(state.phase in DONE for state in states.values())
    if end.phase == "failed":
        assert any(state.phase is StagePhase.FAILED for state in states.values())
