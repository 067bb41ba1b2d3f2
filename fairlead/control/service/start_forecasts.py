"""Caches expected start times: computed when somebody asks, kept until the next round."""

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
"""Fraction of a core that forecasts may use, however often pages are opened."""

MAX_JOBS_TO_WAIT = 200
"""With more waiting jobs than this, a page does not wait for a forecast and shows the previous one."""

PATIENCE_S = 0.3
"""Longest time that a page waits for a forecast: the first one after a start may take seconds."""

State = Callable[[], Awaitable[ClusterState]]


@dataclass
class Forecasts:
    """The last forecast, the round it belongs to, and the time of the next one."""

    foresight: Foresight
    start_s: Mapping[str, float] = field(default_factory=dict)
    decided_s: float = -1.0
    again_s: float = 0.0
    playing: asyncio.Task[None] | None = None

    async def starts(self, waiting: int, decided_s: float, now_s: float, state: State) -> Mapping[str, float]:
        """Expected start times of the jobs waiting since that round, as far as known by now."""
        if self.playing is None and decided_s != self.decided_s and now_s >= self.again_s:
            self.playing = asyncio.create_task(self._play(decided_s, now_s, state))
        playing = self.playing
        if playing is not None and waiting <= MAX_JOBS_TO_WAIT:
            await asyncio.wait({playing}, timeout=PATIENCE_S)  # not cancelled on timeout: others may wait for it
            if playing.done():
                playing.result()
        return self.start_s

    async def _play(self, decided_s: float, now_s: float, state: State) -> None:
        try:
            found = await self.foresight.starts(await state())
            self.start_s, self.decided_s, self.again_s = found.start_s, decided_s, now_s + found.cpu_s / CPU_FRACTION
        except PlannerFailed as error:  # pages show no forecast
            log.warning("no forecast", error=str(error))
            self.decided_s, self.again_s = decided_s, now_s + CPU_S / CPU_FRACTION
        except FairleadError as error:  # pages show the previous forecast; the next request retries
            log.warning("no forecast", error=str(error))
        except Exception as error:
            if must_propagate(error):
                raise
            report_error("playing a forecast", error)  # pages show no forecast, until another round has been decided
            self.decided_s = decided_s
        finally:
            self.playing = None


def with_expected_start(hold: Hold | None, start_s: float | None) -> Hold | None:
    """The hold of a waiting job, with this forecast start instead of the round's own."""
    return hold if hold is None or start_s is None else structs.replace(hold, expected_start_s=start_s)
