"""Sessions in the store: they stand for a token, end by themselves, and do not pile up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fairlead.control.identity import tokens as identity
from fairlead.control.records import Role, Token
from fairlead.control.store import sessions, tokens
from fairlead.errors import Unauthenticated

from .stores import Opened

NOW_S = 1_000_000.0


@pytest.fixture
def token(db: Opened) -> Token:
    made, _ = identity.mint("vision", Role.MEMBER, "a person", None, NOW_S)
    db.write(tokens.insert, made)
    return made


def test_a_session_stands_for_its_token_until_its_end(db: Opened, token: Token) -> None:
    db.write(sessions.insert, "digest", token.id, NOW_S, NOW_S + 60, 10)
    assert db.read(sessions.token_of, "digest", NOW_S + 59) == token
    assert db.read(sessions.token_of, "digest", NOW_S + 60) is None
    assert db.read(sessions.token_of, "another", NOW_S) is None


def test_a_session_shows_its_token_as_it_is_now(db: Opened, token: Token) -> None:
    db.write(sessions.insert, "digest", token.id, NOW_S, NOW_S + 60, 10)
    db.write(tokens.revoke, token.id, NOW_S + 1)
    found = db.read(sessions.token_of, "digest", NOW_S + 2)
    assert found is not None and found.revoked_s == NOW_S + 1
    with pytest.raises(Unauthenticated):
        identity.require_valid(found, NOW_S + 2)
    with pytest.raises(Unauthenticated):
        identity.require_valid(replace(token, expires_s=NOW_S), NOW_S)


def test_a_session_is_removed_once(db: Opened, token: Token) -> None:
    db.write(sessions.insert, "digest", token.id, NOW_S, NOW_S + 60, 10)
    assert db.write(sessions.remove, "digest") and not db.write(sessions.remove, "digest")
    assert db.read(sessions.token_of, "digest", NOW_S) is None


def test_old_sessions_go_and_no_token_has_more_than_so_many(db: Opened, token: Token) -> None:
    db.write(sessions.insert, "over", token.id, NOW_S, NOW_S + 1, 10)
    for place in range(5):
        db.write(sessions.insert, f"s{place}", token.id, NOW_S + 2 + place, NOW_S + 1000, 3)
    kept = [f"s{place}" for place in range(5) if db.read(sessions.token_of, f"s{place}", NOW_S + 10)]
    assert kept == ["s2", "s3", "s4"]
    assert db.read(sessions.token_of, "over", NOW_S) is None
