"""Retries work while the store is unavailable, with exponential back-off."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from fairlead.errors import LostLeadership, Unavailable

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0

T = TypeVar("T")
log = structlog.get_logger()


async def retry_until_available(work: Callable[[], Awaitable[T]], what: str) -> T:
    """Repeat the work until the store answers, and return its result. Raises :class:`LostLeadership` at once.

    The work must be safe to repeat: a commit whose answer was lost may have been made.
    """
    pause_s = FIRST_PAUSE_S
    while True:
        try:
            found = await work()
        except LostLeadership:
            raise
        except Unavailable as error:
            if pause_s == FIRST_PAUSE_S:
                log.error("the store does not answer; running jobs go on, and this is retried", what=what,
                          error=str(error))  # fmt: skip
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        else:
            if pause_s != FIRST_PAUSE_S:
                log.info("the store answers again", what=what)
            return found
