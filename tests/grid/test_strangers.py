"""On a platform: a tenant's blocks are its own, whoever tries, and outlive the process that keeps the catalogue."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from fairlead.home import Home
from tests.cli.conftest import PATIENCE_S, Terminal
from tests.waiting import until

INSIDE = Path(__file__).parent / "inside"
REFUSED_EVEN_WITHOUT_A_SANDBOX = {
    "with_its_token",
    "by_its_id",
    "by_a_path",
    "in_the_own_arena",
    "write_to_what_is_to_read",
}


@dataclass(frozen=True)
class Scene:
    """A platform of one node, on which the owner's job runs."""

    admin: Terminal
    stranger: Terminal
    job: Path  # the owner's folder
    folder: Path

    @property
    def home(self) -> Home:
        return Home(self.admin.home)

    def told(self) -> dict[str, Any]:
        return dict(json.loads((self.job / "output" / "told.json").read_text()))

    def grid_process(self) -> psutil.Process | None:
        return next(iter(_grid_processes(self.admin.home)), None)


def _grid_processes(home: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        if "fairlead.grid.process" in words and any(word.startswith(str(home)) for word in words):
            found.append(process)
    return found


def _submit(who: Terminal, folder: Path, program: str, **files: str) -> str:
    folder.mkdir()
    shutil.copy(INSIDE / program, folder)
    for name, text in files.items():
        (folder / f"{name}.json").write_text(text)
    (folder / "job.yaml").write_text(f"name: {folder.name}\ncommand: [python, {program}]\nresources: {{cpu: 0.2}}\n")
    return str(who("submit", "job.yaml", "--json", cwd=folder).data["id"])


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("grid")
    admin = Terminal(folder / "home")
    try:
        admin("up", "--detach", "--nodes", "1", "--port", "0")
        owner, stranger = (
            Terminal(admin.home, admin("tenant", "create", name, "--grid", "64MB", "--json").data["token"]["token"])
            for name in ("owner", "stranger")
        )
        job = Home(admin.home).job(_submit(owner, folder / "owner", "owner.py"))
        until((job / "output" / "told.json").exists, PATIENCE_S, "the owner's block")
        yield Scene(admin, stranger, job, folder)
    finally:
        admin("down")
    assert not _grid_processes(admin.home), "it ends with the platform"
    assert not [path for path in (admin.home / "grid").rglob("*") if path.is_file()], "so does what was spilled"


def test_a_tenant_cannot_map_anothers_blocks_from_inside_a_job(scene: Scene) -> None:
    known = scene.told() | {"peers": [str(path) for path in scene.home.run.glob("*.grid")]}
    assert known["peers"]
    job = scene.home.job(_submit(scene.stranger, scene.folder / "stranger", "stranger.py", known=json.dumps(known)))
    found = json.loads(until(lambda: _read(job / "output" / "found.json"), PATIENCE_S, "what the stranger found"))
    sandboxed = "sandbox" in str(scene.admin("nodes", "--json").data["nodes"][0]["isolation"])
    expected = set(found) if sandboxed or os.geteuid() == 0 else REFUSED_EVEN_WITHOUT_A_SANDBOX
    assert {name: said for name, said in found.items() if name in expected and not said.startswith("refused")} == {}


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def test_the_grid_process_of_a_node_is_no_root_and_may_be_killed(scene: Scene) -> None:
    for _ in range(3):
        process = until(scene.grid_process, PATIENCE_S, "a grid process")
        uid = until(lambda process=process: _left_root(process), PATIENCE_S, "another user")  # type: ignore[misc]
        assert uid != 0
        reads = scene.told()["reads"]
        os.kill(process.pid, signal.SIGKILL)
        until(lambda reads=reads: scene.told()["reads"] > reads + 4, PATIENCE_S, "reads")  # type: ignore[misc]
    assert scene.told()["wrong"] == 0


def test_a_grid_process_that_hangs_is_started_again_and_the_nodes_say_so(scene: Scene) -> None:
    hung = until(scene.grid_process, PATIENCE_S, "a grid process")
    os.kill(hung.pid, signal.SIGSTOP)
    said = scene.admin.until(lambda told: "has not answered for" in told["nodes"][0]["grid_trouble"], "nodes")
    assert said["nodes"][0]["state"] == "ready", "jobs run on"
    until(lambda: not hung.is_running(), PATIENCE_S, "its end")
    reads = scene.told()["reads"]
    until(lambda: scene.told()["reads"] > reads + 4, PATIENCE_S, "reads")
    assert scene.told()["wrong"] == 0
    scene.admin.until(lambda told: "was restarted" in told["nodes"][0]["grid_trouble"], "nodes")
    assert "node-0: its grid process was restarted" in scene.admin("nodes").out


def _left_root(process: psutil.Process) -> int:
    """Its user, once it has left root behind; without root it is whoever we are."""
    return int(process.uids().effective)
