"""A job that wants everything gets its own limit and no more: it ends alone or is held, and its neighbour goes on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.waiting import until

from ..cli.conftest import PATIENCE_S
from .conftest import Scene

LIMITS = ("--disk", "64MB", "--log", "1MB")


@pytest.fixture(scope="module")
def tight(scene: Scene) -> Iterator[Scene]:
    scene.admin("tenant", "update", "mallory", *LIMITS)
    yield scene
    until(lambda: _state(scene) == "running", PATIENCE_S)


@pytest.fixture(autouse=True)
def nothing_runs_on(tight: Scene) -> Iterator[None]:
    """A bomb that was not as it should be must not spoil the next test."""
    yield
    for job in tight.mallory("queue", "--json").data["jobs"]:
        if job["state"] not in ("succeeded", "failed", "cancelled"):
            tight.mallory("cancel", job["id"], code=None)
            tight.wait(tight.mallory, job["id"])


def _state(scene: Scene) -> str:
    state: str = scene.victim("why", scene.job, "--json").data["job"]["state"]
    return state


def _bomb(scene: Scene, name: str, code: str, folder: Path, extra: str = "") -> str:
    (folder / "bomb.py").write_text(code)
    (folder / "job.yaml").write_text(
        f"name: {name}\ncommand: [python, bomb.py, {scene.marker}]\nresources: {{cpu: 0.3, memory: 300MB}}\n{extra}"
    )
    job: str = scene.mallory("submit", "job.yaml", "--json", cwd=folder).data["id"]
    return job


def _cancelled_without_rest(scene: Scene, job: str) -> None:
    scene.mallory("cancel", job)
    assert scene.wait(scene.mallory, job)["state"] == "cancelled"
    until(lambda: not [each for each in psutil.process_iter() if scene.marker in _words(each)])


def _words(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _unharmed(scene: Scene) -> None:
    """The platform answers, and the victim has not been touched."""
    assert all(node["state"] == "ready" for node in scene.admin("nodes", "--json").data["nodes"])
    job = scene.victim("why", scene.job, "--json").data["job"]
    assert (job["state"], job["recoveries"]) == ("running", 0)


def test_a_fork_bomb_fills_its_own_group_only(tight: Scene, tmp_path: Path) -> None:
    code = (
        "import os, time\n"
        "open(os.environ['FAIRLEAD_OUTPUT'] + '/pid', 'w').close()\n"
        "while True:\n    try:\n        os.fork()\n    except OSError:\n"
        "        open(os.environ['FAIRLEAD_OUTPUT'] + '/full', 'w').close()\n        time.sleep(0.2)\n"
    )
    tight.admin("tenant", "update", "mallory", "--processes", "100")
    job = _bomb(tight, "forks", code, tmp_path)
    until((tight.home.job(job) / "output" / "full").exists)
    assert len([each for each in psutil.process_iter() if tight.marker in _words(each)]) <= 104  # and the sandbox's own
    _unharmed(tight)
    _cancelled_without_rest(tight, job)


def test_a_memory_bomb_ends_alone_and_is_told_what_it_asked_for(tight: Scene, tmp_path: Path) -> None:
    job = _bomb(tight, "memory", "held = []\nwhile True:\n    held.append(bytearray(16 << 20))\n", tmp_path)
    ended = tight.wait(tight.mallory, job)
    assert ended["state"] == "failed"
    assert "memory" in ended["message"]
    assert "300" in ended["message"]
    _unharmed(tight)


def test_shared_memory_counts_as_memory(tight: Scene, tmp_path: Path) -> None:
    code = "with open('/dev/shm/fill', 'wb') as file:\n    while True:\n        file.write(bytes(1 << 20))\n"
    job = _bomb(tight, "shared", code, tmp_path)
    assert tight.wait(tight.mallory, job)["state"] == "failed"
    _unharmed(tight)


@pytest.mark.parametrize("where", ["/tmp", "~", ".", "$FAIRLEAD_OUTPUT"])
def test_a_disk_bomb_is_ended_with_what_it_may_hold(tight: Scene, tmp_path: Path, where: str) -> None:
    code = (
        "import os, time\n"
        f"place = os.path.expandvars(os.path.expanduser({where!r}))\n"
        "for number in range(10):\n"
        "    with open(f'{place}/{number}', 'wb') as file:\n"
        "        for _ in range(16):\n            file.write(os.urandom(1 << 20))\n"
        "time.sleep(600)\n"
    )
    job = _bomb(tight, "disk", code, tmp_path)
    ended = tight.wait(tight.mallory, job)
    assert ended["state"] == "failed"
    assert "disk" in ended["message"]
    _unharmed(tight)


def test_one_file_cannot_grow_past_the_disk_limit(tight: Scene, tmp_path: Path) -> None:
    code = (
        "import os, signal\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "try:\n    os.truncate(os.open('big', os.O_CREAT | os.O_WRONLY), 1 << 40)\n"
        "except OSError as error:\n    print('held', error.errno)\n"
    )
    job = _bomb(tight, "big", code, tmp_path)
    assert tight.wait(tight.mallory, job)["state"] == "succeeded"
    assert "held" in tight.mallory("logs", job).out


def test_a_log_bomb_leaves_only_the_newest_part(tight: Scene, tmp_path: Path) -> None:
    code = (
        "import os, sys\n"
        "line = 'x' * 1000\n"
        "for number in range(20_000):\n    print(number, line)\n"
        "print('the end', flush=True)\n"
    )
    job = _bomb(tight, "talks", code, tmp_path)
    assert tight.wait(tight.mallory, job)["state"] == "succeeded"
    kept = sum(path.stat().st_blocks * 512 for path in (tight.home.job(job) / "logs").iterdir())
    assert kept <= 3 << 20
    assert "the end" in tight.mallory("logs", job).out
    _unharmed(tight)


def test_open_files_are_limited(tight: Scene, tmp_path: Path) -> None:
    code = (
        "import os\nheld = []\n"
        "try:\n    while True:\n        held.append(os.open('/dev/null', os.O_RDONLY))\n"
        "except OSError:\n    print('held at', len(held))\n"
    )
    job = _bomb(tight, "files", code, tmp_path)
    assert tight.wait(tight.mallory, job)["state"] == "succeeded"
    held = tight.mallory("logs", job).out.split("held at ")[1].split()[0]
    assert int(held) <= 65_536


def test_a_message_bomb_has_to_wait_and_freezes_nobody(tight: Scene, tmp_path: Path) -> None:
    """The channel to the node manager is open in the worker, and its user code has found it."""
    secret = tmp_path / "lines"
    secret.write_text("\n".join(f"{number:x}-{number * 7919 % 10_007:0>10}" for number in range(1900)))
    tight.mallory("secret", "set", "LINES", "--from-file", str(secret))
    (tmp_path / "bomb.py").write_text(
        "import os, socket, stat, time\n"
        "from fairlead import framing, wire\n"
        "def train():\n"
        "    row = {'step': 1.0, 'loss': 1.0, **{f'{number:x>100}': 1.0 for number in range(200)}}\n"
        "    words, said = framing.pack(wire.Progress(1, 1, 9, steps=[row] * 40)), 0\n"  # as large as it may be
        "    found = [number for number in range(3, 100) if os.path.exists(f'/proc/self/fd/{number}')]\n"
        "    channel = next(number for number in found if stat.S_ISSOCK(os.fstat(number).st_mode))\n"
        "    line = socket.socket(fileno=channel)\n"
        "    line.setblocking(True)\n"
        "    while True:\n"
        "        line.sendall(words)\n"
        "        said += len(words)\n"
        "        with open(os.environ['FAIRLEAD_OUTPUT'] + '/said', 'w') as file:\n"
        "            file.write(f'{said:012}')\n"
    )
    (tmp_path / "job.yaml").write_text(
        "name: words\nrun: bomb:train\nsecrets: [LINES]\nresources: {cpu: 0.3, memory: 600MB}\n"
    )
    job = tight.mallory("submit", "job.yaml", "--json", cwd=tmp_path).data["id"]
    said = tight.home.job(job) / "output" / "said"
    until(lambda: said.exists() and int(said.read_text() or 0) > 12 << 20, PATIENCE_S, "a flood")
    before, begun_s = int(said.read_text() or 0), time.monotonic()
    until(lambda: time.monotonic() > begun_s + 12.0, PATIENCE_S)  # longer than a frozen node manager is waited for
    assert int(said.read_text() or 0) - before < 30 << 20
    _unharmed(tight)
    _cancelled_without_rest(tight, job)


def test_a_grid_bomb_gets_its_tenants_lines_and_no_more(tight: Scene, tmp_path: Path) -> None:
    (tmp_path / "bomb.py").write_text(
        "import os, socket, time\n"
        "from fairlead.grid import Grid\n"
        "def train():\n"
        "    assert Grid.of_this_worker() is not None\n"
        "    lines, refused = [], 0\n"
        "    while refused < 100:\n"
        "        line = socket.socket(socket.AF_UNIX)\n"
        "        line.setblocking(False)\n"
        "        try:\n            line.connect(os.environ['FAIRLEAD_GRID'])\n"
        "        except BlockingIOError:\n            refused += 1\n            time.sleep(0.01)\n"
        "        lines.append(line)\n"
        "    held = len(lines) - refused\n"
        "    for line in lines:\n        line.close()\n"
        "    grid = Grid(os.environ['FAIRLEAD_GRID'], os.environ['FAIRLEAD_GRID_TOKEN'])\n"
        "    grid.put([b'bytes'], kind='bytes', meta={})\n"
        "    with open(os.environ['FAIRLEAD_OUTPUT'] + '/held', 'w') as file:\n        file.write(f'{held}\\n')\n"
        "    time.sleep(600)\n"
    )
    (tmp_path / "job.yaml").write_text("name: lines\nrun: bomb:train\nresources: {cpu: 0.3, memory: 600MB}\n")
    job = tight.mallory("submit", "job.yaml", "--json", cwd=tmp_path).data["id"]
    held = tight.home.job(job) / "output" / "held"
    until(lambda: held.exists() and held.read_text().endswith("\n"), PATIENCE_S, "the grid to serve it again")
    assert int(held.read_text()) < 1500
    _unharmed(tight)
    _cancelled_without_rest(tight, job)
