"""What is asked about the future of jobs, and the answers: plain values, worked out in a process of their own.

The policy is played forward for them. Imports neither the store nor the loop: that process starts in a moment.
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
"""Of CPU: after so much the policy is played no further, and what comes after is told by the work ahead."""


def pack_state(state: ClusterState) -> msgspec.Raw:
    """The state as it is sent."""
    return msgspec.Raw(msgspec.msgpack.encode(replace(state, memory=memory_to_plain(state.memory))))


def unpack_state(raw: msgspec.Raw) -> ClusterState:
    """The state as the policy reads it; one curve that several jobs have is one object again."""
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
    """Expected starts by job, and the CPU seconds that it took to find them."""

    start_s: Mapping[str, float]
    cpu_s: float


class StartsQuestion(msgspec.Struct, frozen=True, tag="starts"):
    """When do the jobs that wait start?"""

    state: msgspec.Raw

    def answer(self) -> Starts:
        begun_s = time.process_time()
        found = forecast(unpack_state(self.state), decide, enough=_cpu_limit()).start_s
        return Starts(found, time.process_time() - begun_s)


class AdmissionQuestion(msgspec.Struct, frozen=True, tag="admission"):
    """What becomes of this job, as its tenant may read it (None: as it is)?"""

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
