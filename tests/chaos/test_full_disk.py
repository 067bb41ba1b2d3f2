"""A disk that others filled: the platform goes on, and jobs that could not start wait until there is room."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.errors import Unavailable
from tests.chaos.crashable import PROGRAMS, Crashable, wait_until


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Crashable]:
    """A platform whose home is on a disk of its own."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("only root mounts a small disk")
    place.chmod(0o711)
    crashable = Crashable(place / "home", "1")
    try:
        crashable.up()
        crashable.client.create_tenant("alpha")
        yield crashable
    finally:
        crashable.down()
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(disk: Path, name: str) -> Path:
    filler = disk / name
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while file.write(bytes(size)):
                    pass
            except OSError:
                continue
    return filler


def test_a_job_that_finds_the_disk_full_starts_when_there_is_room(small: Crashable, tmp_path: Path) -> None:
    wait_until(lambda: (small.home / "fairlead.db-reserve").exists(), 30, "the reserve is held")
    spec = {"name": "cramped", "tenant": "alpha", "command": ["sh", "-c", "echo hello"]}
    small.wait_for_end(small.submit(spec, "before", folder=PROGRAMS).id)  # its code is there from now on
    filler = fill(small.home.parent, "filler")
    job = small.submit(spec, "cramped", folder=PROGRAMS).id
    wait_until(lambda: small.client.why(job).reason.code == "back-off", 40, "it backs off")
    why = small.client.why(job).reason.text
    assert "could not be started because the disk was full" in why and "backs off until" in why
    assert small.view(job).state == "queued"
    assert not (small.home / "fairlead.db-reserve").exists(), "the store goes on from it"
    more = fill(small.home.parent, "more")
    other = tmp_path / "code"
    other.mkdir()
    (other / "new.py").write_bytes(os.urandom(1 << 16))
    with pytest.raises(Unavailable):  # in one line, not as a failure of the platform's own
        small.client.submit(spec, key="new", folder=other)
    filler.unlink()
    more.unlink()
    small.wait_for_end(job, 90)
    assert small.view(job).state == "succeeded", small.story(job)
    wait_until(lambda: (small.home / "fairlead.db-reserve").exists(), 40, "the reserve is held again")
