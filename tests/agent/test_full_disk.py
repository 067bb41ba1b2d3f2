"""A disk without room: a worker that could not begin is told apart from one whose own code failed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead import wire
from tests.agent.platforms import platform, run
from tests.agent.test_gangs import pack


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk of 128 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=128m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("only root mounts a small disk")
    place.chmod(0o711)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_no_room_before_the_code_began_is_no_failure_of_the_code(small: Path) -> None:
    async def scene() -> None:
        async with platform(small / "home", "1") as here:
            bundle = pack(here.home, train="#" * (200 << 20))  # more than the disk holds
            await here.start("unpacks", ["node-0"], "true", bundle=bundle)
            (end,) = await here.some(wire.Exited, job="unpacks")
            assert end.cause == "no-room" and "No space left on device" in end.detail
            assert here.of(wire.Raised) == [] and here.of(wire.Ready) == []
            await here.backend.release("unpacks", {"w0": "node-0"})
            for left in (here.home.job("unpacks") / "code").iterdir():
                left.unlink()
            room = os.statvfs(small)
            (small / "filler").write_bytes(bytes(room.f_bavail * room.f_frsize - (8 << 20)))
            await here.start("starts", ["node-0"], "true")
            (end,) = await here.some(wire.Exited, job="starts")
            assert end.cause == "no-room" and "are free on the disk" in end.detail
            await here.backend.release("starts", {"w0": "node-0"})
            (small / "filler").unlink()
            await here.start("again", ["node-0"], "true")
            assert (await here.some(wire.Exited, job="again"))[0].code == 0

    run(scene())
