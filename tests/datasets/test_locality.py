"""Jobs would rather run where their data lies: a wish, said with its reason, and no way to another tenant's data."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fairlead.cluster import Node
from fairlead.control.reconcile.data_locality import explain_data_locality, nodes_holding, prefer_nodes_with_data
from fairlead.scheduling.decide import decide
from fairlead.scheduling.state import ClusterState, JobState, Reason, Start, TenantState

MB = 10**6
HELD = {
    "node-0": {"vision/stage/x": 5 * MB, "vision/dataset/bank@01": 9 * MB},
    "node-1": {"vision/dataset/bank@02": 6 * MB, "vision/dataset/bank@03": 3 * MB},
    "node-2": {},
}
LABELS = {
    ("vision", "bank@new"): ["dataset/bank@02", "dataset/bank@03"],
    ("vision", "bank@old"): ["dataset/bank@01"],
    ("text", "bank@new"): ["dataset/bank@09"],
}


def job(name: str = "j", tenant: str = "vision", **fields: Any) -> JobState:
    return JobState(name, tenant, 0.0, **{"facts": {"data": ["bank@new"]}, **fields})


def cluster(*jobs: JobState, nodes: int = 3) -> ClusterState:
    there = [Node(f"node-{n}", {"device": 1.0, "cpu": 1.0, "memory": 1e9}) for n in range(nodes)]
    return ClusterState(
        10.0, there, [TenantState("vision"), TenantState("text")], prefer_nodes_with_data(jobs, HELD, LABELS)
    )


def starts(state: ClusterState) -> dict[str, tuple[str, ...]]:
    return {each.job: each.seats for each in decide(state).decisions if isinstance(each, Start)}


def test_a_job_starts_on_the_node_that_holds_its_data() -> None:
    assert starts(cluster(job()))["j"] == ("node-1",)


def test_a_job_starts_where_its_version_lies_and_not_where_another_of_that_name_does() -> None:
    assert starts(cluster(job(facts={"data": ["bank@old"]})))["j"] == ("node-0",)
    assert not prefer_nodes_with_data([job(facts={"data": ["bank@dropped"]})], HELD, LABELS)[0].near


def test_another_tenants_data_of_the_same_name_draws_nobody() -> None:
    stranger = prefer_nodes_with_data([job(tenant="text")], HELD, LABELS)[0]
    assert not stranger.near
    assert "data_bytes" not in stranger.facts


def test_who_finds_that_node_taken_runs_elsewhere_and_says_where_its_data_comes_from() -> None:
    found = starts(cluster(job("a"), job("b")))
    assert sorted(found) == ["a", "b"]
    assert {seats[0] for seats in found.values()} > {"node-1"}
    told = explain_data_locality(
        Reason("entitled", "starts"), prefer_nodes_with_data([job()], HELD, LABELS)[0], ("node-2",)
    )
    assert told.text == "starts; its data (bank, 9.0 MB) is brought there from node-1"
    assert told.facts["data"] == {"node-1": 9 * MB}


def test_the_reason_names_the_data_that_is_there() -> None:
    told = explain_data_locality(
        Reason("entitled", "starts"), prefer_nodes_with_data([job()], HELD, LABELS)[0], ("node-1",)
    )
    assert told.text == "starts; node-1 holds its data in memory (bank, 9.0 MB)"
    assert explain_data_locality(Reason("x", "y"), job(), ("node-1",)).text == "y"


def test_a_job_that_names_no_data_stays_as_it_was() -> None:
    plain = job(facts={"class": "batch"})
    assert prefer_nodes_with_data([plain], HELD, LABELS) == (plain,)


@given(st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(0, 100)))
def test_whoever_holds_less_than_half_of_the_fullest_does_not_count(sizes: dict[str, int]) -> None:
    found = nodes_holding({node: {"t/dataset/d": size} for node, size in sizes.items()}, "t", ["dataset/d"])
    most = max(sizes.values(), default=0)
    assert found == {node: size for node, size in sorted(sizes.items()) if size and 2 * size >= most}
