"""Sleeps of nodes and what classes lose beside each other are kept, once each, and only so many."""

from __future__ import annotations

import pytest

from fairlead.control.store import interference, node_sleep

from .stores import Opened


def test_a_sleep_begins_once_and_ends_once(db: Opened) -> None:
    db.write(lambda conn: node_sleep.begin(conn, "node-0", 10.0))
    db.write(lambda conn: node_sleep.begin(conn, "node-0", 11.0))
    assert db.read(lambda conn: node_sleep.between(conn, 0.0, 20.0)) == [node_sleep.NodeSleep("node-0", 10.0, None)]
    db.write(lambda conn: node_sleep.end(conn, "node-0", 30.0, 2.5))
    db.write(lambda conn: node_sleep.end(conn, "node-0", 40.0))
    db.write(lambda conn: node_sleep.begin(conn, "node-0", 50.0))
    found = db.read(lambda conn: node_sleep.between(conn, 0.0, 99.0))
    assert found == [node_sleep.NodeSleep("node-0", 10.0, 30.0, 2.5), node_sleep.NodeSleep("node-0", 50.0, None)]
    assert db.read(lambda conn: node_sleep.between(conn, 30.0, 45.0)) == [], "none of it falls into that time"


def test_of_each_pair_the_last_word_counts_and_how_often_it_was_seen(db: Opened) -> None:
    db.write(lambda conn: interference.record_slowdowns(conn, {("a", "b"): 0.5}, 1.0))
    db.write(lambda conn: interference.record_slowdowns(conn, {("a", "b"): 0.4, ("b", "a"): 0.0}, 2.0))
    assert db.read(interference.all_pairs) == [
        interference.PairSlowdown("a", "b", 0.4, 2),
        interference.PairSlowdown("b", "a", 0.0, 1),
    ]


def test_pairs_not_seen_for_longest_are_forgotten_first(db: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interference, "MAX_PAIRS", 2)
    for number, kind in enumerate("abcd"):
        db.write(
            lambda conn, kind=kind, number=number: interference.record_slowdowns(
                conn, {(kind, "x"): 0.1}, float(number)
            )
        )
    assert [known.kind for known in db.read(interference.all_pairs)] == ["c", "d"]
