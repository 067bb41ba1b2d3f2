"""When fairness between tenants is corrected, everybody concerned is told once, and of nobody else by name (M7)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fairlead.control.accounting.fairness import fairness_view, record_fairness_events
from fairlead.control.store import events
from fairlead.scheduling.market.config import MarketConfig
from fairlead.scheduling.market.fairness_over_time import judge_fairness
from fairlead.scheduling.market.tenants import Account, _aged
from fairlead.scheduling.round_memory import durable_memory, memory_from_plain, memory_to_plain

from .stores import Opened

LOW = {"hog": Account(owed=-8e4, due_s=9e4, had_s=9e4), "meek": Account(owed=8e4, due_s=9e4, had_s=1e4),
       "even": Account(due_s=9e4, had_s=9e4)}  # fmt: skip
HIGH = {name: Account(due_s=9e4, had_s=9e4) for name in LOW}


def memory(accounts: dict[str, Account], *, corrects: bool = False) -> dict[str, Any]:
    return {"fairness": judge_fairness(accounts, MarketConfig(), corrects=corrects)}


def test_beginning_and_end_of_a_correction_are_told_once(db: Opened) -> None:
    def hold(before: dict[str, Any], after: dict[str, Any]) -> None:
        db.write(lambda conn: record_fairness_events(conn, before, after, 5.0))

    for before, after in (({}, HIGH), (HIGH, HIGH), (HIGH, LOW), (LOW, LOW), (LOW, HIGH), (HIGH, HIGH)):
        hold(memory(before) if before else {}, memory(after))
    told = [(event.kind, event.tenant) for event in db.read(events.after, 0, 100)]
    both = ["fairness-correcting"] * 3 + ["fairness-restored"] * 3
    assert told == list(zip(both, [None, "hog", "meek"] * 2, strict=True))
    assert durable_memory(memory(LOW)) != durable_memory(memory(HIGH)), (
        "so that it is stored, and not told again after a crash"
    )


def test_only_who_runs_the_platform_reads_names(db: Opened) -> None:
    db.write(lambda conn: record_fairness_events(conn, {}, memory(LOW), 5.0))
    [all_of_it] = [event for event in db.read(events.after, 0, 100) if event.tenant is None]
    assert "meek had 11% of what was due" in all_of_it.text and "within 30 minutes" in all_of_it.text
    assert all_of_it.facts["behind"] == {"meek": pytest.approx(1 / 9)} and all_of_it.facts["ahead"] == ["hog"]
    for name, says in (
        ("meek", "this tenant got 11% of its due: it is compensated"),
        ("hog", "it gets less until then"),
    ):
        [own] = db.read(events.after, 0, 100, name)
        assert says in own.text
        others = LOW.keys() - {name}
        assert not any(other in own.text or other in str(own.facts) for other in others)


@pytest.mark.parametrize("tenant", ["meek", "hog", "even", "gone"])
def test_a_tenant_sees_the_index_and_itself(tenant: str) -> None:
    seen = fairness_view(memory(LOW), tenant)
    assert seen is not None and seen.corrects and seen.lasting < seen.threshold == MarketConfig().fair
    assert seen.behind.keys() == ({"meek"} if tenant == "meek" else set())
    assert not any(other in seen.text for other in LOW.keys() - {tenant})
    everybody = fairness_view(memory(LOW), None)
    assert everybody is not None and "meek" in everybody.text
    assert fairness_view(None, tenant) is None and fairness_view({}, None) is None


def test_an_index_around_the_threshold_does_not_begin_and_end_all_the_time() -> None:
    config = MarketConfig()
    near = {"a": Account(due_s=9e4, had_s=9e4), "b": Account(owed=1.0, due_s=9e4, had_s=9e4 * 0.535)}
    assert config.fair < judge_fairness(near, config)["index"] < config.fair + config.restored
    assert not judge_fairness(near, config)["corrects"]
    assert judge_fairness(near, config, corrects=True)["corrects"]
    assert not judge_fairness(HIGH, config, corrects=True)["corrects"]


def test_the_index_that_is_shown_counts_everybody_with_work_at_once() -> None:
    """A tenant that has had nothing for two minutes is no device hour behind, and is badly treated all the same."""
    accounts = {"hog": Account(now_due_s=120.0, now_had_s=120.0), "meek": Account(now_due_s=120.0, now_had_s=30.0)}
    found = fairness_view(memory(accounts), None)
    assert found is not None
    assert found.index == pytest.approx((1.25**2) / (2 * (1 + 0.25**2)))
    assert (found.lasting, found.corrects) == (1.0, False)


def test_what_was_due_lately_passes_from_the_index_that_is_shown() -> None:
    names, config = ("a", "b"), MarketConfig()
    low = {"a": Account(entitled=1.0, useful=1.0), "b": Account(entitled=1.0)}
    one = _aged({"accounts": low, "at_s": 0.0}, names, 60.0, config)
    assert [one[name].now_ratio for name in names] == [1.0, 0.0]
    even = {name: replace(one[name], entitled=1.0, useful=1.0) for name in names}
    later = _aged({"accounts": even, "at_s": 60.0}, names, 7260.0, config)
    assert judge_fairness(later, config)["now"] > 0.99
    gone = {name: replace(one[name], entitled=0.0, useful=0.0) for name in names}
    assert _aged({"accounts": gone, "at_s": 60.0}, names, 90_000.0, config)["b"].now_ratio is None
    assert memory_from_plain(memory_to_plain({"accounts": one}))["accounts"] == one
    assert memory_from_plain({"accounts": {"a": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]}})["accounts"]["a"].now_due_s == 0.0
