"""Workers that fall silent, talk nonsense or talk too much are ended, and harm nobody."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from fairlead import wire
from fairlead.backends.protocol import NodeLost
from tests.backends.platforms import Platform, platform, run


def test_a_worker_that_trained_and_fell_silent_is_killed_and_named_silent(home: Path) -> None:
    async def scene() -> None:
        async with platform(home, "1") as here:
            venv = fake_venv(
                here,
                """
line.sendall(framing.pack(wire.Ready()))
line.recv(1000)
line.sendall(framing.pack(wire.Joined(1, 0)) + framing.pack(wire.Progress(1, 1, 9, step_s=0.01)))
time.sleep(60)
""",
            )
            changes = {"command": None, "run": "x:y", "venv": venv, "folders": [venv]}
            lease = await here.start("j", ["node-0"], cpu=1.0, silence_s=-4.0, **changes)
            await here.some(wire.Ready)
            await here.backend.tell(lease, wire.Join(1, {"w0": 0}, ""))
            await here.some(wire.Progress)
            assert (await here.some(wire.Exited))[0] == wire.Exited(code=None, signal=9, cause="silent")

    run(scene())


@pytest.mark.parametrize(
    "words",
    ["b'hello, hello, hello, hello'", "bytes(1000)", "b'\\xff' * 1000", "framing.pack(wire.Quit())",
     "framing.pack(wire.Snapshot(1, 1, 'disk', 1, 0.0)) * 50_000"],
)  # fmt: skip
def test_a_worker_that_talks_nonsense_or_too_much_is_ended_and_harms_nobody(home: Path, words: str) -> None:
    async def scene() -> None:
        async with platform(home, "1") as here:
            venv = fake_venv(here, f"line.sendall({words})\ntime.sleep(60)\n")
            await here.start("j", ["node-0"], run="x:y", command=None, cpu=1.0, venv=venv, folders=[venv])
            assert "nonsense" in (await here.some(wire.Raised))[0].error
            assert (await here.some(wire.Exited))[0].signal == signal.SIGKILL
            assert here.of(NodeLost) == [] and len(here.of(wire.Snapshot)) < 25_000, "cut off half way at the latest"

    run(scene())


def fake_venv(here: Platform, code: str) -> str:
    """A Python of the tenant's that says these words instead of the worker's."""
    folder = here.home.root / "venv"
    (folder / "bin").mkdir(parents=True)
    folder.chmod(0o755)
    (folder / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).resolve().parent}\n")
    script = folder / "bin" / "python"
    script.write_text(f"""#!{sys.executable}
import os, socket, sys, time
from fairlead import framing, wire
line = socket.socket(fileno=int(os.environ["FAIRLEAD_CHANNEL_FD"]))
{code}""")
    script.chmod(0o755)
    return str(folder)
