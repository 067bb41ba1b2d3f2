"""Questions about the future of jobs, and their answers: plain values, computed by playing the policy forward.

Imports neither the store nor the loop, so that the process starts quickly.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import msgspec

from fairlead.scheduling.admission import Answer, admission
from fairlead.scheduling.curves import SpeedCurve
from fairlead.scheduling.decide import decide
from fairlead.scheduling.forecast import forecast
from fairlead.scheduling.mentioned_jobs import redact_facts, redact_text
from fairlead.scheduling.round_memory import memory_from_plain, memory_to_plain
from fairlead.scheduling.state import ClusterState, JobState, Reason

ENOUGH_S = 5.0
"""CPU time after which the policy is played no further; later starts are estimated from the work ahead."""


def pack_state(state: ClusterState) -> msgspec.Raw:
    """The state in its wire form."""
    return msgspec.Raw(msgspec.msgpack.encode(replace(state, memory=memory_to_plain(state.memory))))


def unpack_state(raw: msgspec.Raw) -> ClusterState:
    """The state from its wire form; a curve shared by several jobs is one object again."""
    state = msgspec.msgpack.decode(raw, type=ClusterState)
    curves: dict[tuple[object, ...], SpeedCurve] = {}

    def shared(job: JobState) -> JobState:
        if job.curve is None:
            return job
        key = (job.curve.sizes, tuple(job.curve.speeds.items()))
        return replace(job, curve=curves.setdefault(key, job.curve))

    return replace(state, memory=memory_from_plain(state.memory), jobs=tuple(map(shared, state.jobs)))


@dataclass(frozen=True, slots=True)
class Starts:
    """Expected starts by job, and the CPU seconds spent on them."""

    start_s: Mapping[str, float]
    cpu_s: float


class StartsQuestion(msgspec.Struct, frozen=True, tag="starts"):
    """When do the waiting jobs start?"""

    state: msgspec.Raw

    def answer(self) -> Starts:
        begun_s = time.process_time()
        found = forecast(unpack_state(self.state), decide, enough=_cpu_limit()).start_s
        return Starts(found, time.process_time() - begun_s)


class AdmissionQuestion(msgspec.Struct, frozen=True, tag="admission"):
    """Would this job be admitted, worded for its tenant (None: unredacted)?"""

    state: msgspec.Raw
    job: JobState
    tenant: str | None
    strict: bool = False
    look_ahead: bool = True

    def answer(self) -> Answer:
        found = admission(unpack_state(self.state), self.job, decide, strict=self.strict, look_ahead=self.look_ahead,
                          enough=_cpu_limit())  # fmt: skip
        return replace(found, why=self._read(found.why), decided=found.decided and self._read(found.decided))

    def _read(self, reason: Reason) -> Reason:
        return Reason(reason.code, redact_text(reason.text, self.tenant), redact_facts(reason.facts, self.tenant))


Question = StartsQuestion | AdmissionQuestion


def _cpu_limit() -> Callable[[], bool]:
    until_s = time.process_time() + ENOUGH_S
    return lambda: time.process_time() > until_s
