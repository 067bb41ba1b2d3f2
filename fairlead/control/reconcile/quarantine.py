"""Quarantines jobs that an unexpected internal error stopped: leaves them alone for doubling pauses, and fails them in
the end."""

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
"""A job fails after this many failures in a row of the same operation."""

MOST_CULPRITS = 20
"""Jobs that one round quarantines; the next round finds more."""

DECIDING, STORING = "deciding about it", "storing a decision"


class Quarantine:
    """The leader's quarantine. Only its events are stored: a new leader tries each job again, and quarantines it
    again."""

    def __init__(
        self, store: Store, clock: Callable[[], float], changed: Callable[[str], None] = lambda job: None
    ) -> None:  # fmt: skip
        """``changed`` is called with each job that was quarantined or failed: it needs a look."""
        self._store, self._clock, self._changed = store, clock, changed
        self._backoff = Backoff(clock)
        self._failing: dict[str, set[str]] = {}  # by job: the operations that failed

    def __len__(self) -> int:
        return len(self._failing)

    def is_held(self, job: str) -> bool:
        """True while the back-off of any of the job's operations lasts."""
        return any(self._backoff.is_waiting((job, doing)) for doing in self._failing.get(job, ()))

    def held_jobs(self) -> frozenset[str]:
        """All jobs whose back-off lasts."""
        return frozenset(job for job in self._failing if self.is_held(job))

    def record_success(self, job: str, doing: str) -> None:
        """Reset the back-off of this operation."""
        if job in self._failing and doing in self._failing[job]:
            self._failing[job].discard(doing)
            self._backoff.record_success((job, doing))
            if not self._failing[job]:
                del self._failing[job]

    def forget(self, job: str) -> None:
        for doing in self._failing.pop(job, ()):
            self._backoff.record_success((job, doing))

    async def set_aside(self, job: str, doing: str, error: Exception) -> None:
        """Quarantine the job for a while; raises errors that no job caused: lost leadership, and trouble of the
        store."""
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
        """The round's decisions. A job that makes deciding fail is quarantined, and the round is decided without it.

        If deciding fails even without any job, the policy's memory is dropped.
        """
        for job in self._failing.keys() - state.jobs.keys():
            self.forget(job)
        for job, error in state.invalid_jobs.items():
            await self.set_aside(job, DECIDING, error)
        names = [job.id for job in state.cluster.jobs if job.id not in state.invalid_jobs and not self.is_held(job.id)]
        for _ in range(MOST_CULPRITS):
            try:
                found = decide(state)
            except Exception as error:
                guilty = find_culprit(names, _decidable(state, names, decide))
                if guilty is None:  # it fails without any job
                    if must_propagate(error) or not state.cluster.memory:
                        raise
                    report_error("deciding with what the policy remembers, which it forgets", error)
                    state = state.without_memory()
                    continue
                await self.set_aside(guilty, DECIDING, error)
                names.remove(guilty)
                state = state.without_jobs([guilty])
            else:
                for job in names:
                    self.record_success(job, DECIDING)
                return state, found
        raise RuntimeError(f"a round fails with more than {MOST_CULPRITS} jobs")

    async def record_stored_round(self, changed: Collection[str], failed: Mapping[str, Exception]) -> None:
        """Record which of a round's decisions were stored and which failed."""
        for job in changed:
            self.record_success(job, STORING)
        for job, error in failed.items():
            await self.set_aside(job, STORING, error)


def _decidable(
    state: RoundInput, names: Sequence[str], decide: Callable[[RoundInput], Round]
) -> Callable[[frozenset[str]], bool]:
    def works(some: frozenset[str]) -> bool:
        try:
            decide(state.without_jobs(set(names) - some))
        except Exception:  # noqa: BLE001 (a trial: the error is reported once its job is known)
            return False
        return True

    return works


def _tell(connection: Connection, job_id: str, why: str, tries: int, now_s: float) -> bool:
    """Store the event that the job is quarantined or fails; False if nothing is left to quarantine."""
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
    """Runs the steps of the loop that concern no single job. A failed step backs off while the loop goes on."""

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self._store, self._clock = store, clock
        self._backoff = Backoff(clock)
        self._background: dict[str, asyncio.Task[None]] = {}

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """The steps that run in the background."""
        return list(self._background.values())

    def run_in_background(self, doing: str, work: Callable[[], Awaitable[object]]) -> None:
        """Run the step while the loop goes on, unless it runs already. A store failure is retried at the next call."""
        if doing not in self._background:
            self._background[doing] = asyncio.create_task(self._run_and_forget(doing, work))

    async def _run_and_forget(self, doing: str, work: Callable[[], Awaitable[object]]) -> None:
        try:
            await self.run(doing, work)
        except (Unavailable, DBAPIError) as error:  # the loop itself notices lost leadership
            log.warning("a background step failed; it will be retried", doing=doing, error=str(error))
        finally:
            del self._background[doing]

    async def run(self, doing: str, work: Callable[[], Awaitable[object]]) -> bool:
        """Run the step unless its back-off lasts; returns whether it succeeded. Reports internal errors; raises lost
        leadership and trouble of the store."""
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
    """Log and store an event for each damaged row that was found in the store."""
    found = damaged_rows.take_unreported()
    for text in found:
        log.error("a row of the store is damaged", what=text)
    if found:
        await store.write(lambda connection: [
            events.append(connection, time_s=now_s, kind="store-damaged", text=text) for text in found
        ])  # fmt: skip


def find_culprit(names: Sequence[str], works: Callable[[frozenset[str]], bool]) -> str | None:
    """The first name with which it stops working, though it works with all before; None if it fails without any name.

    ``works`` is called with prefixes of the names, about log2(n) times.
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
