"""The attempts are real: where nothing holds them they get what they are after, so that to be held means something.

They are made by root, beside a platform without a sandbox, in a process with mounts and a host name of its own and a
copy of Python that it may spoil: whatever they do is over with it.
"""

from __future__ import annotations

import json
import os
import pty
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.waiting import until

from .conftest import INSIDE, names, staged

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: others are held by being ordinary users")

NOT_HERE = {
    "trace_process_one": "it would stop the machine's first process",
    "change_the_clock": "it is everybody's",
}
"""What would harm the machine that the suite runs on."""

AS_IT_MAY_BE = frozenset({
    "list_homes", "load_a_program_into_the_kernel", "open_a_file_by_its_handle", "raise_the_limit_of_open_files",
    "reach_the_disk_itself", "make_a_device_of_the_disk", "reach_the_outside",
    "see_network_cards", "set_up_an_io_ring", "talk_to_the_machine_below", "use_the_kernels_keyring",
    "catch_page_faults", "be_spared_by_the_out_of_memory_killer",
    "run_in_real_time", "lock_memory_without_end", "be_nicer_to_oneself", "type_into_the_terminal_of_others",
})  # fmt: skip
"""What a machine, its kernel or the container that the suite runs in may not have, or may refuse to root as well."""

SHELL = """
set -e
mount --make-rprivate /
mount -t tmpfs fairlead-control /mnt
mkdir /mnt/imported /mnt/python
cp "$1" /mnt/python/python
mount --bind /tmp /tmp
mount --bind "$PYTHONHOME" "$PYTHONHOME"
cd "$PWD"  # as it is now
exec /mnt/python/python attempts.py
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What came of each attempt, also where that shows from outside only."""
    with staged(tmp_path_factory.mktemp("open"), "--isolation", "none") as scene:
        folder = tmp_path_factory.mktemp("root")
        shutil.copytree(INSIDE, folder, dirs_exist_ok=True)
        (folder / "map.json").write_text(json.dumps({**scene.map, "marker": scene.marker, "skip": list(NOT_HERE)}))
        try:
            yield _tried_by_root(folder, scene.home.root) | _seen_from_outside(folder, scene.marker)
        finally:
            Path("/dev/shm", scene.marker).unlink(missing_ok=True)
            for each in _stays(scene.marker):
                each.kill()
            until(lambda: not _stays(scene.marker))


def _tried_by_root(folder: Path, home: Path) -> dict[str, str]:
    """With a terminal, a secret of somebody else in its memory, and an open way out."""
    for part in ("output", "logs"):
        (folder / part).mkdir()
    python, terminal, way_out = os.path.realpath(sys.executable), pty.openpty(), os.open(home, os.O_RDONLY)
    variables = {
        "PATH": os.environ["PATH"], "PYTHONHOME": sys.base_prefix, "PYTHONPATH": "/mnt/imported",
        "LD_LIBRARY_PATH": f"{sys.base_prefix}/lib", "FAIRLEAD_JOB": "none",
        "FAIRLEAD_OUTPUT": str(folder / "output"), "SOMEBODYS_SECRET": f"fl-canary-{secrets.token_hex(16)}",
    }  # fmt: skip
    try:
        with (folder / "said").open("w") as said:  # no pipe: what stays would hold it open
            done = subprocess.run(
                ["unshare", "--mount", "--uts", "--fork", "--kill-child", "sh", "-c", SHELL, "sh", python], cwd=folder,
                env=variables, stdin=terminal[1], stdout=said, stderr=said, timeout=90, check=False, pass_fds=[way_out],
            )  # fmt: skip
    finally:
        for descriptor in (*terminal, way_out):
            os.close(descriptor)
    assert done.returncode == 0, (folder / "said").read_text()
    answer: dict[str, str] = json.loads((folder / "output" / "attempts.json").read_text())
    return answer


def _seen_from_outside(folder: Path, marker: str) -> dict[str, str]:
    seen = {
        "write_into_dev_shm_of_the_machine": Path("/dev/shm", marker).exists(),
        "stay_when_the_gang_is_gone": bool(_stays(marker)),
        "leave_links_for_the_platform_to_follow": (folder / "output" / "store").is_symlink(),
    }
    return {name: "ESCAPED" for name, happened in seen.items() if happened}


def _stays(marker: str) -> list[psutil.Process]:
    return [each for each in psutil.process_iter(["cmdline"]) if marker in (each.info["cmdline"] or [])]


@pytest.mark.parametrize("name", [name for name in names() if name not in NOT_HERE])
def test_where_nothing_holds_it_an_attempt_gets_what_it_is_after(found: dict[str, str], name: str) -> None:
    if name in AS_IT_MAY_BE:
        assert not found[name].startswith("BROKEN"), found[name]
    else:
        assert found[name].startswith("ESCAPED"), found[name]


def test_most_attempts_are_shown_to_be_real(found: dict[str, str]) -> None:
    assert sum(outcome.startswith("ESCAPED") for outcome in found.values()) >= 60, found
