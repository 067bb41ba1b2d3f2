"""Ends all processes of a platform whose control plane is gone. Imports little, to start fast."""

from __future__ import annotations

import asyncio
from pathlib import Path

from fairlead.agent.embedded.backend import LocalBackend
from fairlead.home import Home


def sweep(home: Path) -> None:
    """End all processes of this home; unfinished jobs resume at the next start."""
    asyncio.run(_sweep(Home(home.absolute())))


async def _sweep(home: Home) -> None:
    await LocalBackend(home).shutdown()
