"""Builds a Job from its database row, replacing damaged columns by defaults."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fairlead.control.records import Job, JobPhase
from fairlead.control.store import damaged_rows

PHASES = {phase.value: phase for phase in JobPhase}
_AT = {name: place for place, name in enumerate(Job.__slots__)}
_PHASE, _THEN, _SPEEDS, _DEATHS = _AT["phase"], _AT["then"], _AT["speeds"], _AT["deaths"]
_DEMAND, _FACTS = _AT["demand"], _AT["facts"]
_NEXT_PHASES = {*PHASES, None}
DAMAGED = "damaged"
"""The fact that lists a job's damaged columns on which decisions depend."""
_HARMLESS = frozenset({
    "deaths", "speeds", "result", "loss", "message", "back_off_until_s", "back_off_why", "recovery_s", "recoveries",
    "samples_per_s", "since_s", "epoch", "preemptions", "resizes", "started_s", "outcome",
})  # fmt: skip
"""Columns whose loss does not harm a job: they are rewritten soon, or only shown."""
_SHAPE = damaged_rows.RowShape(Job, "jobs", min_workers=1, max_workers=1, phase=JobPhase.FAILED.value)


def job_of(row: Iterable[Any]) -> Job:
    """The job of a row. Damaged columns get the values of a new job and are reported (:mod:`.damaged_rows`)."""
    values = list(row)
    bad = _SHAPE.repair(str(values[0]), values)
    if values[_PHASE] not in PHASES or values[_THEN] not in _NEXT_PHASES:
        bad += _unknown_phase(values)
    values[_PHASE] = PHASES[values[_PHASE]]
    if values[_THEN] is not None:
        values[_THEN] = PHASES[values[_THEN]]
    if values[_SPEEDS]:  # JSON keys are strings
        values[_SPEEDS] = _speeds(values[_SPEEDS])
    values[_DEATHS] = tuple(values[_DEATHS])
    if not all(type(death) is dict and "worker" in death and "answered" in death for death in values[_DEATHS]):
        values[_DEATHS] = ()
        damaged_rows.report_damage("jobs", str(values[0]), "deaths cannot be read")
    if not all(isinstance(each, int | float) for each in values[_DEMAND].values()):
        values[_DEMAND] = {}
        damaged_rows.report_damage("jobs", str(values[0]), "demand cannot be read")
        bad.append("demand")
    if bad and (critical := sorted(set(bad) - _HARMLESS)):
        values[_FACTS] = {**values[_FACTS], DAMAGED: critical}
    return Job(*values)


def _unknown_phase(values: list[Any]) -> list[str]:
    """Treat a job in an unknown phase as failed; a stopping job with an unknown next phase will fail."""
    damaged_rows.report_damage("jobs", str(values[0]), "its phase is unknown")
    if values[_PHASE] not in PHASES:
        values[_PHASE], values[_THEN] = JobPhase.FAILED.value, None
        return ["phase"]
    ends = values[_PHASE] == JobPhase.STOPPING.value
    values[_THEN] = JobPhase.FAILED.value if ends else None
    return []


def _speeds(stored: Mapping[str, Any]) -> dict[int, float]:
    return {int(workers): speed for workers, speed in stored.items() if workers.isdecimal()}
