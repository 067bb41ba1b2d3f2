"""Checks the running platform: health, leadership, nodes, store and database schema."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import fairlead
from fairlead.cli.doctor.finding import Finding, fail, graded, ok, warn
from fairlead.errors import FairleadError
from fairlead.home import Home
from fairlead.sdk.profile import alive, read

ANSWER_S = 5.0


def platform(home: Path) -> Iterator[Finding]:
    """Check health, version and nodes through the API."""
    from fairlead.sdk.client import Client

    profile = read(home)
    if profile is None:
        yield ok("platform", f"none started in {home}")
        return
    if not alive(profile.pid):
        yield ok("platform", f"not running (last at {profile.url}); start it with fairlead up")
        return
    try:
        with Client(home=home, timeout_s=ANSWER_S) as client:
            health, nodes, me = client.health(), client.nodes(), client.whoami()
    except FairleadError as error:
        fix = f"see {Home(home).logs}; stop it with fairlead down"
        yield fail("platform", f"process {profile.pid} runs, but {error}", fix)
        return
    well = health.get("status") == "ok" and health.get("leader")
    state = f"{health.get('status')}{'' if health.get('leader') else ', not the leader'}"
    yield graded("platform", f"{state} at {profile.url}, version {me.version}", f"see {Home(home).logs}",
                 fails=not well, warns=False)  # fmt: skip
    if me.version != fairlead.__version__:
        text = f"the platform has version {me.version}, this command {fairlead.__version__}"
        yield warn("version", text, "restart it with the new version: fairlead down, then fairlead up")
    gone = [node.name for node in nodes if node.state == "lost"]
    kinds = ", ".join(sorted({node.isolation for node in nodes})) or "none"
    text = f"{len(nodes) - len(gone)} of {len(nodes)} are up; isolation {kinds}"
    text += f"; lost: {', '.join(gone[:5])}" if gone else ""
    yield graded("nodes", text, f"see their logs in {Home(home).logs}", fails=len(gone) == len(nodes), warns=bool(gone))
    yield from _old_code(home, [node.name for node in nodes if node.state == "outdated"])


def _old_code(home: Path, outdated: list[str]) -> Iterator[Finding]:
    """Check that the control plane and all nodes run the installed version."""
    from fairlead.agent.embedded.node_records import read_host
    from fairlead.agent.node.code_version import code_digest

    host = read_host(Home(home))
    if host is not None and host.build != code_digest():
        text = "the platform runs an older version than the installed one"
        yield warn("code", text, "restart the control plane (docs/operations.md, Upgrading)")
    elif outdated:
        text = f"nodes of an older version, in use until they are empty: {', '.join(outdated[:5])}"
        yield warn("code", text, "fairlead nodes drain NODE --wait, then fairlead nodes uncordon NODE")


def store(home: Path) -> Iterator[Finding]:
    """Check the database without changing it: connection, schema version and leader lease."""
    url = _store_url(home)
    if url is None:
        yield ok("store", "none yet; the first start creates it")
        return
    from fairlead.control.identity.secret_vault import KEY_VARIABLE
    from fairlead.control.store.inspection import inspect_store

    kind = "SQLite" if url.startswith("sqlite") else "PostgreSQL"
    try:
        seen = inspect_store(url)
    except FairleadError as error:
        yield fail("store", f"{kind}: {error.message}", "start the database, correct --store, or restore a backup")
        return
    yield _schema(kind, seen.schema, seen.supported)
    running = (found := read(home)) is not None and alive(found.pid)
    if seen.secret_count and not running and not Home(home).secret_key.exists() and KEY_VARIABLE not in os.environ:
        fix = f"start it with {KEY_VARIABLE} or --secret-key-file, or set the secrets again: fairlead secret set NAME"
        yield warn("secrets", f"{seen.secret_count} in the store, but the home holds no key for them", fix)
    if seen.holder is not None:
        left_s = seen.expires_s - time.time()
        good = f"valid for {left_s:.1f} s" if left_s > 0 else f"expired {-left_s:.0f} s ago"
        yield graded("lease", f"epoch {seen.epoch}, {good}", "see control.log: the platform cannot write to its store",
                     fails=running and left_s < -5, warns=False)  # fmt: skip


def _store_url(home: Path) -> str | None:
    from fairlead.control.serve import read_profile

    named = read_profile(Home(home)).get("store")
    if named and not str(named).startswith("sqlite"):
        return str(named)
    return f"sqlite:///{Home(home).database}" if Home(home).database.exists() else None


def _schema(kind: str, version: str, head: str) -> Finding:
    text = f"{kind} answers, schema {version}"
    if version > head:
        return fail("store", f"{text} is newer than {head}, the newest this Fairlead supports", "upgrade Fairlead")
    return ok("store", text if version == head else f"{text}; the next start upgrades it to {head}")
