"""A second tenant is a stranger: taken where tenants are kept apart, or at the operator's word."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import PATIENCE_S, Terminal

BARE = 'mount --bind /dev/null "$(command -v bwrap)" && exec "$@"'  # for this process and what it starts: no bubblewrap


@pytest.fixture
def hidden() -> list[str]:
    """Words before a command that take bubblewrap away from it."""
    if shutil.which("bwrap") is None:
        return []
    if os.geteuid() != 0:
        pytest.skip("needs root to hide bubblewrap")
    return ["unshare", "-m", "sh", "-c", BARE, "sh"]


def up(admin: Terminal, hidden: list[str], *options: str) -> subprocess.CompletedProcess[str]:
    words = [*hidden, sys.executable, "-m", "fairlead.cli.main", "up", "--port", "0", "--nodes", "1", "--detach"]
    clean = {name: value for name, value in admin.variables().items() if name != "FAIRLEAD_ISOLATION"}
    return subprocess.run(
        [*words, *options], env=clean, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def test_without_a_sandbox_a_second_tenant_is_refused_unless_the_operator_says_so(
    tmp_path: Path, hidden: list[str]
) -> None:
    admin = Terminal(tmp_path / "home")
    try:
        assert up(admin, hidden).returncode == 0
        assert "isolation: sandbox" not in admin("nodes").out and "isolation: " in admin("nodes").out
        admin("tenant", "create", "one")
        refused = admin("tenant", "create", "two", code=4)
        assert "apt install bubblewrap" in refused.err and "--isolation none" in refused.err
        assert "Traceback" not in refused.err
        admin("down")
        assert up(admin, hidden, "--isolation", "none").returncode == 0
        admin("tenant", "create", "two")
    finally:
        admin("down")


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap, to lose it")
def test_two_tenants_that_were_kept_apart_are_not_thrown_together_when_the_sandbox_is_gone(
    tmp_path: Path, hidden: list[str]
) -> None:
    admin = Terminal(tmp_path / "home")
    try:
        assert up(admin, []).returncode == 0
        for name in ("one", "two"):
            admin("tenant", "create", name)
        admin("down")
        refused = up(admin, hidden)
        assert refused.returncode != 0 and "Traceback" not in refused.stderr
        assert "sandbox is not possible on this machine" in refused.stderr
        assert "--isolation user or none" in refused.stderr
        assert up(admin, hidden, "--isolation", "none").returncode == 0, "at the operator's word it goes on"
    finally:
        admin("down")


def test_a_sandbox_that_was_asked_for_and_cannot_be_had_stops_the_start(tmp_path: Path, hidden: list[str]) -> None:
    admin = Terminal(tmp_path / "home")
    done = up(admin, hidden, "--isolation", "sandbox")
    assert done.returncode != 0
    assert "sandbox is not possible on this machine: bwrap is not installed" in done.stderr
    assert "apt install bubblewrap" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("wanted", ["90", "12h", "-3d"])
def test_an_audit_log_that_is_kept_for_less_than_a_day_is_a_usage_error(tmp_path: Path, wanted: str) -> None:
    refused = Terminal(tmp_path / "home")("up", "--keep-audit", wanted, code=2)
    assert "--keep-audit" in refused.err and "or none" in refused.err


def test_an_unknown_isolation_is_a_usage_error(tmp_path: Path) -> None:
    refused = Terminal(tmp_path / "home")("up", "--isolation", "some", code=2)
    assert "auto, sandbox, user, none" in refused.err
