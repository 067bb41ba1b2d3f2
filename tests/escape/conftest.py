"""A platform with a victim that holds all that can be stolen, and a hostile tenant whose job tries to get at it."""

from __future__ import annotations

import itertools
import json
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from fairlead.home import Home
from tests.waiting import until

from ..cli.conftest import PATIENCE_S, Terminal

HERE = Path(__file__).parent
INSIDE = HERE / "inside"
KINDS = {"command": "command: [python, attempts.py]", "function": "run: attempts.py:training"}


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


def names() -> list[str]:
    """The attempts, read rather than imported: those modules are for inside."""
    files = [path.read_text().splitlines() for path in sorted(INSIDE.glob("on_*.py"))]
    pairs = [pair for lines in files for pair in itertools.pairwise(lines)]
    return [line[4:].split("(")[0] for before, line in pairs if before == "@attempt"]


@dataclass(frozen=True)
class Raid:
    """A job of the attacker's, and what came of each of its attempts."""

    job: str
    state: str
    found: dict[str, str]
    log: str


def raided(scene: Scene, kind: str, folder: Path) -> Raid:
    """All attempts from inside a job of this kind."""
    shutil.copytree(INSIDE, folder, dirs_exist_ok=True)
    (folder / "map.json").write_text(json.dumps({**scene.map, "marker": scene.marker}))
    (folder / "job.yaml").write_text(f"name: raid-{kind}\n{KINDS[kind]}\nresources: {{cpu: 0.3, memory: 600MB}}\n")
    job = scene.mallory("submit", "job.yaml", "--json", cwd=folder).data["id"]
    ended = scene.wait(scene.mallory, job)
    log = scene.mallory("logs", job).out
    made = scene.home.job(job) / "output" / "attempts.json"
    assert made.exists(), log
    return Raid(job, ended["state"], json.loads(made.read_text()), log)


def _isolation(admin: Terminal) -> set[str]:
    return {node["isolation"].split(",")[0].split(" ")[0] for node in admin("nodes", "--json").data["nodes"]}


@pytest.fixture(scope="session")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    if shutil.which("bwrap") is None and not os.environ.get("FAIRLEAD_REQUIRE_ALL"):
        pytest.skip("bubblewrap is missing (Debian package bubblewrap)")
    with staged(tmp_path_factory.mktemp("escape")) as scene:
        assert all(level.startswith("sandbox") for level in _isolation(scene.admin)), _isolation(scene.admin)
        yield scene


@contextmanager
def staged(folder: Path, *options: str) -> Iterator[Scene]:
    """A platform with its victim, for as long as this lasts."""
    # A canary in the operator's environment too: it must not come down to a worker.
    admin = Terminal(folder / "home", environment={"OPERATORS_PASSWORD": f"fl-canary-{secrets.token_hex(16)}"})
    shared: Path | None = None
    try:
        admin("up", "--detach", "--nodes", "2", "--port", "0", *options)
        tokens = {
            name: admin("tenant", "create", name, "--json").data["token"]["token"] for name in ("victim", "mallory")
        }
        victim, mallory = (Terminal(admin.home, tokens[name]) for name in ("victim", "mallory"))
        scene = _play(folder, admin, victim, mallory)
        shared = Path("/dev/shm", scene.map["shm"])
        yield scene
    finally:
        admin("down")
        if shared is not None:  # where jobs have no sandbox it is the machine's, and stays
            shared.unlink(missing_ok=True)
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
    until(lambda: list(Home(admin.home).run.glob("*.grid")), PATIENCE_S)
    known = _map(admin, job, mark, key, json.loads(ready.read_text()))
    for thing in ("sockets", "victim_pids", "platform_pids", *(["cgroups"] if os.geteuid() == 0 else [])):
        assert known[thing], f"the attacker was told of no {thing}: an attempt on them would try nothing"
    return Scene(
        admin, victim, mallory, job, canary, f"fl-stays-{secrets.token_hex(4)}",
        known, {},
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
        "sockets": [str(path) for path in (*home.run.iterdir(), *home.job(job).iterdir()) if path.is_socket()],
        "public": str(public), "private": str(private), "project": str(HERE.parents[1]),
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
