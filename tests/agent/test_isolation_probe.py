"""How far tenants are kept apart is found out, said and kept; what cannot be had is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fairlead.agent.embedded.backend import LocalBackend, parse_nodes
from fairlead.agent.sandbox import isolation_probe
from fairlead.errors import Unavailable
from fairlead.home import Home
from tests.agent.platforms import needs_sandbox, platform, run, until

pytestmark = needs_sandbox


def test_what_is_in_force_is_said_and_kept(home: Path) -> None:
    async def scene() -> None:
        async with platform(home, "1") as here:
            assert here.backend.capabilities.isolation == "sandbox"
            assert not here.backend.capabilities.isolation_chosen
            await until(lambda: here.backend.facts()["node-0"]["isolation"].startswith("sandbox, "))
        for wanted in ("none", None):
            async with platform(home, "1", isolation=wanted) as here:
                assert here.backend.capabilities.isolation == ("user" if os.geteuid() == 0 else "none")
                assert here.backend.capabilities.isolation_chosen, "and remembered at the next start"

    run(scene())


def test_a_sandbox_that_cannot_be_had_is_refused_with_what_to_do(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolation_probe.sandbox, "TOOLS", str(tmp_path))
    level, why = isolation_probe.choose("sandbox", home)
    assert level != "sandbox" and why == "bwrap is not installed"
    assert "apt install bubblewrap" in isolation_probe.help_for(
        "sandbox"
    ) and "--isolation" in isolation_probe.help_for("sandbox")


@pytest.mark.skipif(os.geteuid() == 0, reason="root can always have it")
def test_a_user_per_tenant_needs_root(home: Path) -> None:
    backend = LocalBackend(Home(home), parse_nodes("1"), preload=False, isolation="user")
    with pytest.raises(Unavailable, match="needs root"):
        run(backend.open(1))
    run(backend.shutdown())
