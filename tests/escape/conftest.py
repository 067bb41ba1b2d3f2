"""A platform with a victim that holds all that can be stolen, and a hostile tenant whose job tries to get at it."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from fairlead.home import Home
from tests.waiting import until

from ..cli.conftest import PATIENCE_S, Terminal

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Scene:
    """Who is there: the operator, the victim with its running job, and the attacker."""

    admin: Terminal
    victim: Terminal
    mallory: Terminal
    job: str  # the victim's
    canary: str  # its secret
    marker: str  # in the command line of whatever tries to stay
    map: dict[str, Any]  # all that the attacker knows
    facts: dict[str, Any]

    @property
    def home(self) -> Home:
        return Home(self.admin.home)

    def wait(self, who: Terminal, job: str) -> dict[str, Any]:
        """The job when it has ended."""
        ended = ("succeeded", "failed", "cancelled")
        answer: dict[str, Any] = who.until(lambda answer: answer["job"]["state"] in ended, "why", job)["job"]
        return answer


def _isolation(admin: Terminal) -> set[str]:
    return {node["isolation"].split(",")[0].split(" ")[0] for node in admin("nodes", "--json").data["nodes"]}


@pytest.fixture(scope="session")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    if shutil.which("bwrap") is None and not os.environ.get("FAIRLEAD_REQUIRE_ALL"):
        pytest.skip("bubblewrap is missing (Debian package bubblewrap)")
    folder = tmp_path_factory.mktemp("escape")
    # A canary in the operator's environment too: it must not come down to a worker.
    admin = Terminal(folder / "home", environment={"OPERATORS_PASSWORD": f"fl-canary-{secrets.token_hex(16)}"})
    try:
        admin("up", "--detach", "--nodes", "2", "--port", "0")
        assert all(level.startswith("sandbox") for level in _isolation(admin)), _isolation(admin)
        tokens = {
            name: admin("tenant", "create", name, "--json").data["token"]["token"] for name in ("victim", "mallory")
        }
        victim, mallory = (Terminal(admin.home, tokens[name]) for name in ("victim", "mallory"))
        yield _play(folder, admin, victim, mallory)
    finally:
        admin("down")
        for line in _OPEN:
            line.close()


def _play(folder: Path, admin: Terminal, victim: Terminal, mallory: Terminal) -> Scene:
    canary, mark = f"fl-canary-{secrets.token_hex(16)}", f"fl-victim-{secrets.token_hex(4)}"
    value = folder / "canary"
    value.write_text(canary)
    victim("secret", "set", "CANARY", "--from-file", str(value))
    value.unlink()
    code = folder / "victim"
    code.mkdir()
    shutil.copy(HERE / "victim.py", code)
    key = secrets.randbits(30) + 1
    (code / "job.yaml").write_text(
        f"name: holds\ncommand: [python, victim.py, {mark}, '{key}']\nsecrets: [CANARY]\nresources: {{cpu: 0.2}}\n"
    )
    job = victim("submit", "job.yaml", "--json", cwd=code).data["id"]
    ready = Home(admin.home).job(job) / "output" / "ready.json"
    until(ready.exists, PATIENCE_S)
    return Scene(
        admin, victim, mallory, job, canary, f"fl-stays-{secrets.token_hex(4)}",
        _map(admin, job, mark, key, json.loads(ready.read_text())), {},
    )  # fmt: skip


def _map(admin: Terminal, job: str, mark: str, key: int, ready: dict[str, Any]) -> dict[str, Any]:
    """Everything about the platform and the victim, as if the attacker had been told."""
    home = Home(admin.home)
    profile = json.loads(home.profile.read_text())
    pids = [process.pid for process in psutil.process_iter() if _speaks_of(process, mark)]
    ours = [process.pid for process in psutil.process_iter() if _speaks_of(process, str(admin.home))]
    public = Path(tempfile.mkdtemp()) / "public.txt"
    public.parent.chmod(0o755)
    public.write_text("readable by everybody on this machine")
    public.chmod(0o644)
    private = Path(tempfile.mkdtemp()) / "private.txt"
    private.write_text("for the owner of this machine")
    machine = socket.create_server(("127.0.0.1", 0))
    abstract = socket.socket(socket.AF_UNIX)
    abstract.bind("\0" + mark + "-machine")
    abstract.listen()
    _OPEN.extend((machine, abstract))
    return {
        "home": str(admin.home), "victim": job, "victim_folder": str(home.job(job)), "memory": str(home.memory),
        "bundle": str(next(home.bundles.glob("victim/*"))), "shm": mark, "sysv_key": key, "abstract": mark,
        "victim_port": ready["port"], "victim_socket": ready["socket"], "machine_port": machine.getsockname()[1],
        "machine_abstract": mark + "-machine", "api_port": int(profile["url"].rsplit(":", 1)[1].split("/")[0]),
        "victim_pids": pids, "platform_pids": ours, "victim_uid": home.job(job).stat().st_uid,
        "sockets": [str(path) for path in home.run.glob("**/*.sock")], "public": str(public), "private": str(private),
        "project": str(HERE.parents[1]),
        "cgroups": [
            str(Path(folder, name))
            for folder, names, _ in os.walk("/sys/fs/cgroup")
            for name in names
            if name.startswith("fairlead-")
        ],
    }  # fmt: skip


_OPEN: list[socket.socket] = []  # for as long as the suite runs


def _speaks_of(process: psutil.Process, word: str) -> bool:
    try:
        return any(word in argument for argument in process.cmdline())
    except psutil.Error:
        return False
