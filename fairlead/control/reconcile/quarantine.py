"""Jobs that an unexpected error of our own stopped: set aside for a while that doubles, told, and failed in the end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

import structlog
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from fairlead.control.reconcile.internal_errors import Backoff, must_propagate, report_error
from fairlead.control.reconcile.round_store import RoundInput
from fairlead.control.reconcile.worker_events import stop_changes
from fairlead.control.records import ENDED, JobPhase
from fairlead.control.store import damaged_rows, events, jobs
from fairlead.control.store.engine import Store
from fairlead.errors import Unavailable
from fairlead.scheduling.state import Round

log = structlog.get_logger()

TRIES = 5
"""After so many failures in a row of the same thing its job fails."""

MOST_CULPRITS = 20
"""Jobs that one round sets aside; the next one finds more."""

DECIDING, STORING = "deciding about it", "storing a decision"


class Quarantine:
    """The leader's. Nothing of it is stored but events: after a restart each job is tried anew, and set aside anew."""

    def __init__(
        self, store: Store, clock: Callable[[], float], changed: Callable[[str], None] = lambda job: None
    ) -> None:  # fmt: skip
        """``changed`` is told the jobs that were set aside or failed: they are to be looked at again."""
        self._store, self._clock, self._changed = store, clock, changed
        self._backoff = Backoff(clock)
        self._failing: dict[str, set[str]] = {}  # by job: at what it failed

    def __len__(self) -> int:
        return len(self._failing)

    def is_held(self, job: str) -> bool:
        """Whether it is not to be looked at now."""
        return any(self._backoff.is_waiting((job, doing)) for doing in self._failing.get(job, ()))

    def held_jobs(self) -> frozenset[str]:
        """All jobs that are not to be looked at now."""
        return frozenset(job for job in self._failing if self.is_held(job))

    def record_success(self, job: str, doing: str) -> None:
        """It went well this time."""
        if job in self._failing and doing in self._failing[job]:
            self._failing[job].discard(doing)
            self._backoff.record_success((job, doing))
            if not self._failing[job]:
                del self._failing[job]

    def forget(self, job: str) -> None:
        for doing in self._failing.pop(job, ()):
            self._backoff.record_success((job, doing))

    async def set_aside(self, job: str, doing: str, error: Exception) -> None:
        """Leave it alone for a while; raises what is not the job's: lost leadership, and trouble of the store."""
        if must_propagate(error):
            raise error
        mark = report_error(doing, error, job=job)
        self._failing.setdefault(job, set()).add(doing)
        tries = self._backoff.record_failure((job, doing))
        why = f"an error of the platform's own while {doing}: {type(error).__name__} (error {mark})"
        now_s = self._clock()
        try:
            if not await self._store.write(lambda connection: _tell(connection, job, why, tries, now_s)):
                self.forget(job)
            self._changed(job)
        except Exception as again:
            if must_propagate(again):
                raise
            report_error("setting a job aside", again, job=job)

    async def decide_round(self, state: RoundInput, decide: Callable[[RoundInput], Round]) -> tuple[RoundInput, Round]:
        """The round's decisions. A job that they cannot be made with is set aside, and they are made without it.

        What the policy remembers is forgotten if they cannot be made even without jobs.
        """
        for job in self._failing.keys() - state.jobs.keys():
            self.forget(job)
        for job, error in state.poison.items():
            await self.set_aside(job, DECIDING, error)
        names = [job.id for job in state.cluster.jobs if job.id not in state.poison and not self.is_held(job.id)]
        for _ in range(MOST_CULPRITS):
            try:
                found = decide(state)
            except Exception as error:
                guilty = find_culprit(names, _decidable(state, names, decide))
                if guilty is None:  # it fails with nobody
                    if must_propagate(error) or not state.cluster.memory:
                        raise
                    report_error("deciding with what the policy remembers, which it forgets", error)
                    state = state.forgetful()
                    continue
                await self.set_aside(guilty, DECIDING, error)
                names.remove(guilty)
                state = state.without([guilty])
            else:
                for job in names:
                    self.record_success(job, DECIDING)
                return state, found
        raise RuntimeError(f"a round fails with more than {MOST_CULPRITS} jobs")

    async def record_stored_round(self, changed: Collection[str], failed: Mapping[str, Exception]) -> None:
        """Of a round's decisions these were stored, and those were not."""
        for job in changed:
            self.record_success(job, STORING)
        for job, error in failed.items():
            await self.set_aside(job, STORING, error)


def _decidable(
    state: RoundInput, names: Sequence[str], decide: Callable[[RoundInput], Round]
) -> Callable[[frozenset[str]], bool]:
    def works(some: frozenset[str]) -> bool:
        try:
            decide(state.without(set(names) - some))
        except Exception:  # noqa: BLE001 (a trial: the error itself is told when it is known whose it is)
            return False
        return True

    return works


def _tell(connection: Connection, job_id: str, why: str, tries: int, now_s: float) -> bool:
    """Write down that it is set aside, or that it fails; False if there is nothing left to set aside."""
    job = jobs.get(connection, job_id)
    if job is None or job.phase in ENDED:
        return False
    facts = {"tries": tries}
    failing = job.phase is JobPhase.STOPPING and job.then is JobPhase.FAILED
    if tries < TRIES or failing:
        events.append(connection, time_s=now_s, kind="job-set-aside", text=f"{job_id} is set aside for a while: {why}",
                      tenant=job.tenant, job=job_id, facts=facts)  # fmt: skip
        return True
    message = f"{why}, {tries} times in a row; tell an administrator"
    changes = stop_changes(JobPhase.FAILED, "failed", message, now_s)
    if job.phase is JobPhase.QUEUED:
        changes = {"phase": JobPhase.FAILED, "finished_s": now_s, "since_s": now_s, "message": message}
    jobs.update(connection, job_id, **changes)
    events.append(connection, time_s=now_s, kind="job-failing", text=f"{job_id}: {message}", tenant=job.tenant,
                  job=job_id, facts=facts)  # fmt: skip
    return job.phase is not JobPhase.QUEUED


class GuardedSteps:
    """Parts of the loop that concern no single job. One that fails rests for a while, and the loop goes on."""

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self._store, self._clock = store, clock
        self._backoff = Backoff(clock)
        self._background: dict[str, asyncio.Task[None]] = {}

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """What goes on beside the loop."""
        return list(self._background.values())

    def run_in_background(self, doing: str, work: Callable[[], Awaitable[object]]) -> None:
        """Do it while the loop goes on, unless it is being done. What the store could not do is tried the next time."""
        if doing not in self._background:
            self._background[doing] = asyncio.create_task(self._run_and_forget(doing, work))

    async def _run_and_forget(self, doing: str, work: Callable[[], Awaitable[object]]) -> None:
        try:
            await self.run(doing, work)
        except (Unavailable, DBAPIError) as error:  # if leadership is lost, the loop itself hears of it
            log.warning("not done this time", doing=doing, error=str(error))
        finally:
            del self._background[doing]

    async def run(self, doing: str, work: Callable[[], Awaitable[object]]) -> bool:
        """Do it, unless it rests; whether it was done. An error of our own is told; lost leadership and trouble of the
        store are raised."""
        if self._backoff.is_waiting(doing):
            return False
        try:
            await work()
        except Exception as error:
            if must_propagate(error):
                raise
            mark, now_s = report_error(doing, error), self._clock()
            facts = {"tries": self._backoff.record_failure(doing)}
            text = f"an error of the platform's own while {doing}: {type(error).__name__} (error {mark}); it goes on"
            await self._store.write(lambda connection: events.append(
                connection, time_s=now_s, kind="platform-error", text=text, facts=facts
            ))  # fmt: skip
            return False
        self._backoff.record_success(doing)
        return True


async def report_damaged_rows(store: Store, now_s: float) -> None:
    """Tell of rows of the store that no sense could be made of."""
    found = damaged_rows.take_unreported()
    for text in found:
        log.error("a row of the store is damaged", what=text)
    if found:
        await store.write(lambda connection: [
            events.append(connection, time_s=now_s, kind="store-damaged", text=text) for text in found
        ])  # fmt: skip


def find_culprit(names: Sequence[str], works: Callable[[frozenset[str]], bool]) -> str | None:
    """The first of the names with which it does not work any more, though it did with all before; None: it is none.

    ``works`` is asked with some of the names, a few times (the logarithm of their number).
    """
    if not works(frozenset()):
        return None
    good, bad = 0, len(names)
    while bad - good > 1:
        middle = (good + bad) // 2
        if works(frozenset(names[:middle])):
            good = middle
        else:
            bad = middle
    return names[bad - 1] if names else None
