"""Promises of starting a platform: what a home was started with is found again."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from fairlead.control.identity import tokens as identity
from fairlead.control.records import Role
from fairlead.control.serve import _admin_token, keep_audit, sleep_after, store_url, write_profile
from fairlead.control.store import row_deletion, tokens
from fairlead.home import Home

from .stores import Opened, run


def test_a_home_goes_on_with_its_last_store(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert store_url(None, home) == f"sqlite:///{tmp_path}/fairlead.db"
    write_profile(home, "http://127.0.0.1:1", "fl_a_b", "postgresql://me@host/jobs")
    assert store_url(None, home) == "postgresql://me@host/jobs"
    assert store_url("sqlite:////elsewhere.db", home) == "sqlite:////elsewhere.db"
    assert home.profile.stat().st_mode & 0o777 == 0o600


def test_a_home_goes_on_letting_its_nodes_sleep_until_it_is_told_otherwise(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert sleep_after(None, home) == math.inf, "nobody asked for it yet"
    write_profile(home, "http://127.0.0.1:1", "fl_a_b", None, sleep_after_s=sleep_after(90.0, home))
    assert sleep_after(None, home) == 90.0 and sleep_after(5.0, home) == 5.0
    write_profile(home, "http://127.0.0.1:1", "fl_a_b", None, sleep_after_s=sleep_after(math.inf, home))
    assert sleep_after(None, home) == math.inf


def test_a_home_goes_on_keeping_its_audit_log_for_as_long_as_it_was_told(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert keep_audit(None, home) == row_deletion.KEEP_AUDIT_S, "nobody asked for anything yet"
    for asked_s in (90.0, math.inf, 60.0):
        write_profile(home, "http://127.0.0.1:1", "fl_a_b", None, keep_audit_s=keep_audit(asked_s, home))
        assert keep_audit(None, home) == asked_s
        assert json.loads(home.profile.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_clients_of_this_machine_keep_their_token_as_long_as_it_is_good(db: Opened, tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    bearer, fresh = run(_admin_token(db.store, home))
    assert fresh
    home.profile.parent.mkdir(parents=True, exist_ok=True)
    write_profile(home, "http://127.0.0.1:1", bearer, None)
    assert run(_admin_token(db.store, home)) == (bearer, False)
    id, _ = identity.parse(bearer)
    token = db.read(tokens.get, id)
    assert token is not None and (token.role, token.tenant, token.expires_s) == (Role.ADMIN, None, None)
    db.write(tokens.revoke, id, 1.0)
    again, fresh = run(_admin_token(db.store, home))
    assert fresh and again != bearer
    write_profile(home, "http://127.0.0.1:1", again[:-1] + ("0" if again[-1] != "0" else "1"), None)
    assert run(_admin_token(db.store, home))[1]
