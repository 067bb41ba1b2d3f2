"""A worker whose job asked for no cores still gets some: its slot's part of the node."""

from __future__ import annotations

from pathlib import Path

from fairlead import wire
from tests.agent.platforms import platform, python, run


def test_a_worker_that_asked_for_no_cores_gets_its_slots_part_of_the_node(home: Path) -> None:
    async def scene() -> None:
        async with platform(home, "1x0.5") as here:
            code = (
                "import time; began, used = time.time(), time.process_time()\n"
                "while time.time() < began + 1.0: pass\n"
                "print(time.process_time() - used)"
            )
            await here.start("j", ["node-0"], *python(code), cpu=0.0)
            await here.some(wire.Exited)
            assert float(await here.log("j")) > 0.1  # a hundredth of a core is what no limit at all once meant

    run(scene())
