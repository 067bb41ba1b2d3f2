"""Workers that fall silent, talk nonsense or talk too much are ended, and harm nobody."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import pytest

from fairlead import wire
from fairlead.agent.protocol import LaunchOrder, NodeLost, NotStarted
from tests.agent.platforms import Platform, gang, how, platform, run


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
            await here.tell(lease, wire.Join(1, {"w0": 0}))
            await here.some(wire.Progress)
            assert how((await here.some(wire.Exited))[0]) == wire.Exited(code=None, signal=9, cause="silent")

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
            assert "invalid message" in (await here.some(wire.Raised))[0].error
            assert (await here.some(wire.Exited))[0].signal == signal.SIGKILL
            assert here.of(NodeLost) == [] and len(here.of(wire.Snapshot)) < 25_000, "cut off half way at the latest"

    run(scene())


def test_a_worker_that_says_more_than_anybody_stores_is_ended_and_its_words_stay_bounded(home: Path) -> None:
    async def scene() -> None:
        async with platform(home, "1") as here:
            floods = "while True: line.sendall(framing.pack(wire.Raised(error='x' * 900_000)))"
            code = f"import contextlib\nwith contextlib.suppress(OSError):\n    {floods}\ntime.sleep(60)\n"
            venv = fake_venv(here, code)
            await here.start("j", ["node-0"], run="x:y", command=None, cpu=1.0, venv=venv, folders=[venv])
            assert (await here.some(wire.Exited))[0].signal == signal.SIGKILL
            said = here.of(wire.Raised)
            assert "more unstored messages than the platform keeps" in said[-1].error
            assert sum(len(each.error) for each in said) < 18 << 20
            assert here.of(NodeLost) == []

    run(scene())


def test_a_flood_of_long_messages_has_to_wait_and_the_node_manager_answers_meanwhile(home: Path) -> None:
    async def scene() -> None:
        async with platform(home, "1") as here:
            venv = fake_venv(
                here,
                """
row = {f"{number:x>80}": 1.0 for number in range(10_000)}
words, said = framing.pack(wire.Progress(1, 1, 9, steps=[row])), 0
while True:
    line.sendall(words)
    said += len(words)
    print(said, flush=True)
""",
            )
            secrets = {"KEY": "\n".join(f"{number:0>14}" for number in range(2000))}  # as long as one may be
            changes = {"run": "x:y", "command": None, "cpu": 1.0, "venv": venv, "folders": [venv]}
            order = LaunchOrder(here.spec("j", **changes), {}, secrets)
            assert await here.backend.start(gang("j", ["node-0"]), order, 0.0) is None
            await here.some(wire.Progress)
            begun_s, waited_s = time.monotonic(), []
            while time.monotonic() < begun_s + 5.0:
                asked_s = time.monotonic()
                assert isinstance(await here.sleepers("other", ["node-0"]), NotStarted), "an answer is all we want"
                waited_s.append(time.monotonic() - asked_s)
            said = int((await here.log("j")).split()[-1])
            assert max(waited_s) < 2.0, "far from counting as frozen"
            assert said < (16 << 20) + 15 * (1 << 20), "more than its part in a second, and it waits"
            assert here.of(NodeLost) == [] and here.of(wire.Exited) == []

    run(scene())


@pytest.mark.parametrize("words", ["wire.Ready(plan='x' * 70_000)", "wire.Profiled(why_not='x' * 600_000)"])
def test_a_message_is_no_longer_than_its_kind_needs(home: Path, words: str) -> None:
    async def scene() -> None:
        async with platform(home, "1") as here:
            venv = fake_venv(here, f"line.sendall(framing.pack({words}))\ntime.sleep(60)\n")
            await here.start("j", ["node-0"], run="x:y", command=None, cpu=1.0, venv=venv, folders=[venv])
            assert "exceeds the limit" in (await here.some(wire.Raised))[0].error
            assert (await here.some(wire.Exited))[0].signal == signal.SIGKILL

    run(scene())


def test_the_last_words_of_a_worker_are_heard_however_long(home: Path) -> None:
    async def scene() -> None:
        async with platform(home, "1") as here:
            words = "framing.pack(wire.Finished(1, 1, artifacts=['x' * 1000] * 8000))"
            venv = fake_venv(here, f"line.sendall({words})\n")
            await here.start("j", ["node-0"], run="x:y", command=None, cpu=1.0, venv=venv, folders=[venv])
            assert len((await here.some(wire.Finished))[0].artifacts) == 8000
            assert (await here.some(wire.Exited))[0].code == 0

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
