"""Sleeps of nodes and what classes lose beside each other are kept, once each, and only so many."""

from __future__ import annotations

import pytest

from fairlead.control.store import neighbours, rests

from .stores import Opened


def test_a_sleep_begins_once_and_ends_once(db: Opened) -> None:
    db.write(lambda conn: rests.begin(conn, "node-0", 10.0))
    db.write(lambda conn: rests.begin(conn, "node-0", 11.0))
    assert db.read(lambda conn: rests.between(conn, 0.0, 20.0)) == [rests.Rest("node-0", 10.0, None)]
    db.write(lambda conn: rests.end(conn, "node-0", 30.0, 2.5))
    db.write(lambda conn: rests.end(conn, "node-0", 40.0))
    db.write(lambda conn: rests.begin(conn, "node-0", 50.0))
    found = db.read(lambda conn: rests.between(conn, 0.0, 99.0))
    assert found == [rests.Rest("node-0", 10.0, 30.0, 2.5), rests.Rest("node-0", 50.0, None)]
    assert db.read(lambda conn: rests.between(conn, 30.0, 45.0)) == [], "none of it falls into that time"


def test_of_each_pair_the_last_word_counts_and_how_often_it_was_seen(db: Opened) -> None:
    db.write(lambda conn: neighbours.note(conn, {("a", "b"): 0.5}, 1.0))
    db.write(lambda conn: neighbours.note(conn, {("a", "b"): 0.4, ("b", "a"): 0.0}, 2.0))
    assert db.read(neighbours.all) == [neighbours.Known("a", "b", 0.4, 2), neighbours.Known("b", "a", 0.0, 1)]


def test_pairs_not_seen_for_longest_are_forgotten_first(db: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "MOST", 2)
    for number, kind in enumerate("abcd"):
        db.write(lambda conn, kind=kind, number=number: neighbours.note(conn, {(kind, "x"): 0.1}, float(number)))
    assert [known.kind for known in db.read(neighbours.all)] == ["c", "d"]
