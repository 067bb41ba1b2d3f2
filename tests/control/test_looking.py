"""When pipelines are looked at: whatever changes while they are, or after, is seen by another look."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from fairlead.agent.embedded.backend import LocalBackend
from fairlead.control.reconcile.loop import Controller
from fairlead.control.reconcile.worker_specs import worker_orders
from fairlead.home import Home

from .stores import Clock, Opened, run

WITHIN_S = 20.0


@pytest.mark.parametrize("after", [False, True], ids=["during-the-look", "between-look-and-round"])
def test_what_changes_while_pipelines_are_looked_at_is_seen_by_another_look(
    db: Opened, home: Home, clock: Clock, after: bool
) -> None:
    """On a platform where nothing else happens: nobody would ask again."""

    async def scene() -> int:
        controller = Controller(db.store, LocalBackend(home), worker_orders(home), clock)
        looks, seen = 0, asyncio.Event()

        async def look() -> set[str] | None:
            nonlocal looks
            looks += 1
            if looks == 1:
                changed = controller.nudge
                asyncio.get_running_loop().call_soon(changed) if after else changed()
            else:
                seen.set()
            return None

        controller.orchestrate = look
        running = asyncio.create_task(controller.run())
        with suppress(TimeoutError):
            async with asyncio.timeout(WITHIN_S):
                await seen.wait()
        running.cancel()
        await asyncio.wait([running])
        return looks

    assert run(scene()) > 1
