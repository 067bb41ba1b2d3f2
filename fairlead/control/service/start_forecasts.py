"""Expected starts for those who ask: played when somebody does, and kept until the next round has been decided."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import structlog
from msgspec import structs

from fairlead.control.foresight.process import CPU_S, Foresight
from fairlead.control.plans.planner_process import PlannerFailed
from fairlead.control.reconcile.internal_errors import must_propagate, report_error
from fairlead.errors import FairleadError
from fairlead.scheduling.state import ClusterState, Hold

log = structlog.get_logger()

CPU_FRACTION = 0.01
"""Of a core, that forecasts may cost however often pages are looked at."""

MAX_JOBS_TO_WAIT = 200
"""With more jobs waiting than this, a page is not kept waiting for a forecast: it shows the one before."""

PATIENCE_S = 0.3
"""So long a page waits for a forecast at most: after a start the first one may take seconds."""

State = Callable[[], Awaitable[ClusterState]]


@dataclass
class Forecasts:
    """The last forecast, of which round it was, and when the next may be made."""

    foresight: Foresight
    start_s: Mapping[str, float] = field(default_factory=dict)
    decided_s: float = -1.0
    again_s: float = 0.0
    playing: asyncio.Task[None] | None = None

    async def starts(self, waiting: int, decided_s: float, now_s: float, state: State) -> Mapping[str, float]:
        """When the jobs that wait since the round of this time may expect to start, as far as that is known by now."""
        if self.playing is None and decided_s != self.decided_s and now_s >= self.again_s:
            self.playing = asyncio.create_task(self._play(decided_s, now_s, state))
        playing = self.playing
        if playing is not None and waiting <= MAX_JOBS_TO_WAIT:
            await asyncio.wait({playing}, timeout=PATIENCE_S)  # others may wait for the same
            if playing.done():
                playing.result()
        return self.start_s

    async def _play(self, decided_s: float, now_s: float, state: State) -> None:
        try:
            found = await self.foresight.starts(await state())
            self.start_s, self.decided_s, self.again_s = found.start_s, decided_s, now_s + found.cpu_s / CPU_FRACTION
        except PlannerFailed as error:  # pages are shown without it
            log.warning("no forecast", error=str(error))
            self.decided_s, self.again_s = decided_s, now_s + CPU_S / CPU_FRACTION
        except FairleadError as error:  # the pages show the forecast before this one; the next who looks asks again
            log.warning("no forecast", error=str(error))
        except Exception as error:
            if must_propagate(error):
                raise
            report_error(
                "playing a forecast", error
            )  # pages are shown without it, until another round has been decided
            self.decided_s = decided_s
        finally:
            self.playing = None


def with_expected_start(hold: Hold | None, start_s: float | None) -> Hold | None:
    """What a job that waits was told, with this start instead of what the round itself could say about it."""
    return hold if hold is None or start_s is None else structs.replace(hold, expected_start_s=start_s)
