"""What a reason names: a tenant reads the names of its own jobs, and that there are others."""

from __future__ import annotations

import re
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given

from fairlead.scheduling import decide
from fairlead.scheduling.live_round import live_round
from fairlead.scheduling.mentioned_jobs import ANOTHER_TENANTS_JOB, MentionedJob, redact_facts, redact_text
from fairlead.scheduling.state import ClusterState, Reason

from .clusters import by_job, clusters, job, several, state

SHRINKS = "gives 1 device to waiting job small-1 of tenant nlp, whose tenant uses 0 of the 1 it is entitled to"
ROOM = "room is being made by job a-1 of tenant vision, job b-1 of tenant nlp, job c-1 of tenant audio and others"


@pytest.mark.parametrize("tenant", [None, "nlp"])
def test_who_may_see_a_job_reads_its_name(tenant: str | None) -> None:
    assert redact_text(SHRINKS, tenant) == SHRINKS
    assert redact_facts({"to": MentionedJob("small-1", "nlp"), "devices": 1}, tenant) == {"to": "small-1", "devices": 1}


def test_who_may_not_see_a_job_reads_that_it_is_another_s() -> None:
    assert redact_text(SHRINKS, "vision") == (
        "gives 1 device to a waiting job of another tenant, whose tenant uses 0 of the 1 it is entitled to"
    )
    assert (
        redact_text("moves: job x-1 of tenant nlp, 1.5 times as fast", "vision")
        == f"moves: {ANOTHER_TENANTS_JOB}, 1.5 times as fast"
    )
    assert redact_facts({"victims": [MentionedJob("a-1", "vision"), MentionedJob("b-1", "nlp")]}, "vision") == {
        "victims": ["a-1", ANOTHER_TENANTS_JOB]
    }


def test_of_several_one_reads_one_s_own_and_how_many_others_there_are() -> None:
    assert redact_text(ROOM, "nlp") == "room is being made by job b-1 of tenant nlp, 2 jobs of other tenants and others"
    assert redact_text(ROOM, "text") == "room is being made by 3 jobs of other tenants and others"
    assert redact_text(ROOM, None) == ROOM


def test_a_tenant_whose_name_is_the_end_or_the_beginning_of_another_s_is_another() -> None:
    for stranger in ("lp", "nl", "nlp-2", "x-nlp"):
        assert "small-1" not in redact_text(SHRINKS, stranger) and "nlp" not in redact_text(SHRINKS, stranger)


def test_what_is_no_job_stays_as_it_is() -> None:
    for text in ("wait for a job of tenant nlp to end", "tenant nlp uses 2 of its quota of 2"):
        assert redact_text(text, "nlp") == text


def test_who_gives_and_who_gets_read_of_each_other_only_that_they_are_there() -> None:
    wide = job("wide-1", "alpha", (1, 4), seats=("node-0", "node-1", "node-2", "node-3"))
    decided = by_job(decide(state([wide, job("new-1", "beta")], tenants=[])))
    gives, gets = decided["wide-1"].reason, decided["new-1"].reason
    assert (gives.code, gets.code) == ("make-room", "making-room")
    assert "waiting job new-1 of tenant beta" in gives.text and "job wide-1 of tenant alpha" in gets.text
    assert "a waiting job of another tenant" in redact_text(gives.text, "alpha") and ANOTHER_TENANTS_JOB in redact_text(
        gets.text, "beta"
    )
    assert (
        redact_facts(gives.facts, "alpha")["to"] == ANOTHER_TENANTS_JOB
        and redact_facts(gives.facts, None)["to"] == "new-1"
    )
    assert redact_facts(gets.facts, "beta")["victims"] == [ANOTHER_TENANTS_JOB]


def _renamed(before: ClusterState) -> ClusterState:
    """The same with names that no other word of a reason could be."""
    jobs = [replace(one, id=f"canary-{one.id}", tenant=f"team-{one.tenant}") for one in before.jobs]
    teams = [replace(one, name=f"team-{one.name}") for one in before.tenants]
    return replace(before, jobs=jobs, tenants=teams, memory={})


def _words(reason: Reason, tenant: str) -> set[str]:
    shown = redact_text(reason.text, tenant), redact_facts(reason.facts, tenant)
    return set(re.findall(r"[-\w]+", msgspec.json.encode(shown).decode()))


@several
@given(clusters())
def test_no_reason_tells_a_tenant_the_name_of_another_or_of_its_jobs(before: ClusterState) -> None:
    now = _renamed(before)
    owner = {one.id: one.tenant for one in now.jobs}
    round_ = live_round(now)
    reasons = [(one.job, one.reason) for one in round_.decisions]
    reasons += [(name, said.reason) for name in owner if (said := round_.reasons[name]).reason is not None]
    for name, why in reasons:
        strangers = {other for other, tenant in owner.items() if tenant != owner[name]}
        strangers |= set(owner.values()) - {owner[name]}
        assert not _words(why, owner[name]) & strangers
