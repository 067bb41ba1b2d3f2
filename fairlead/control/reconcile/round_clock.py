"""Decides when the next round is due: at once after a change that matters, later when nothing could use it."""

from __future__ import annotations

from collections.abc import Callable, Collection

from fairlead.scheduling.state import ClusterState, Decision, Hold, Resize, Start

EVERY_S = 3.0  # waiting and growing depend on time, so rounds are held even when nothing happens; and while jobs
# only wait, nothing but a round can change anything, so that there is no need to look more often than that
IDLE_SPACING = 200.0  # ... but with a deep queue not so often that time alone eats more than half a percent of a core
LONGEST_WAITING_S = 15.0
LONGEST_IDLE_S = 60.0  # ... where no job waits, so that time alone changes little
SPACING = 4.0  # pause between rounds, in lengths of the last one: a deep queue must not eat the core
LONGEST_PAUSE_S = 0.5


class RoundClock:
    """The leader's clock for rounds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.due = True
        self.unfinished = False
        """The last round decided something that could not be stored yet."""
        self._jobs_wait = False
        self._devices_wanted = True  # some job could use more devices than it was given
        self._due_by_s: float | None = None  # one is due then at the latest
        self._finished_s = 0.0
        self._cost_s = 0.0

    def devices_freed(self) -> None:
        """Devices came free: a round is due at once only if a job could use them."""
        if self._devices_wanted:
            self.due = True
        elif self._due_by_s is None:
            self._due_by_s = self._clock() + EVERY_S

    def round_started(self) -> None:
        """A round begins: requests from now on ask for the next one."""
        self.due, self._due_by_s = False, None

    def round_finished(
        self, state: ClusterState, decisions: Collection[Decision], changed: Collection[str], cost_s: float
    ) -> None:  # fmt: skip
        """A round was held about this state; its decisions about ``changed`` jobs were stored."""
        self._finished_s, self._cost_s = state.now_s, cost_s
        self.unfinished = any(not isinstance(each, Hold) and each.job not in changed for each in decisions)
        self._jobs_wait = self.unfinished or any(isinstance(each, Hold) for each in decisions)
        given = {each.job: len(each.seats) for each in decisions if isinstance(each, Start | Resize)}
        self._devices_wanted = self.unfinished or any(given.get(j.id, len(j.seats)) < j.max_workers for j in state.jobs)

    def tick(self, *, busy: bool) -> None:
        """Make a round due if time asks for it; ``busy``: a job is on its way or waits."""
        now_s = self._clock()
        every_s = min(
            LONGEST_WAITING_S if self._jobs_wait else LONGEST_IDLE_S, max(EVERY_S, IDLE_SPACING * self._cost_s)
        )
        late = self._due_by_s is not None and not 0.0 < self._due_by_s - now_s <= EVERY_S
        self.due = self.due or late or (busy and now_s - self._finished_s > every_s)

    def limit_wait(self, wait_s: float) -> float:
        """The wait, shortened to end when a round is due."""
        return wait_s if self._due_by_s is None else max(0.0, min(wait_s, self._due_by_s - self._clock()))

    @property
    def pause_s(self) -> float:
        """How long to gather requests for the next round."""
        return min(LONGEST_PAUSE_S, SPACING * self._cost_s)
