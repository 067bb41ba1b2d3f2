"""The actions that ``gang_state_machine.next_action`` returns; ``gang_executor`` carries them out."""

from __future__ import annotations

from dataclasses import dataclass

from fairlead.control.records import Generation, JobPhase


@dataclass(frozen=True, slots=True)
class WakeNodes:
    """Wake nodes on which members of the generation are to run."""

    generation: Generation
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Start:
    """Start the members that do not live yet."""

    generation: Generation


@dataclass(frozen=True, slots=True)
class TellLeave:
    generation: Generation
    exits: tuple[str, ...]
    snapshot: bool


@dataclass(frozen=True, slots=True)
class BeginJoin:
    """End the former generation and let the newest one begin its rendezvous."""

    generation: Generation
    former: Generation | None


@dataclass(frozen=True, slots=True)
class TellJoin:
    generation: Generation
    breaks: int = 0  # members still in a generation up to this number need not leave it first


@dataclass(frozen=True, slots=True)
class MarkRunning:
    generation: Generation


@dataclass(frozen=True, slots=True)
class MarkBroken:
    generation: Generation
    lost: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Abandon:
    """Give up a planned generation that cannot come up; the former one, if any, stays."""

    generation: Generation
    why: str


@dataclass(frozen=True, slots=True)
class BeginStop:
    """End the gang; the job then enters the phase ``then``."""

    then: JobPhase
    outcome: str
    message: str | None = None
    at_s: float | None = None  # when the job ended, if that was before now


@dataclass(frozen=True, slots=True)
class StopWorkers:
    workers: tuple[str, ...]
    grace_s: float


@dataclass(frozen=True, slots=True)
class ReleaseWorkers:
    workers: tuple[str, ...]
    forget_memory: bool = False


@dataclass(frozen=True, slots=True)
class Conclude:
    """All workers are gone: the job enters the phase ``then``."""

    then: JobPhase
    outcome: str
    at_s: float | None = None  # when the job ended, if no BeginStop came before


Action = (
    WakeNodes | Start | TellLeave | BeginJoin | TellJoin | MarkRunning | MarkBroken | Abandon
    | BeginStop | StopWorkers | ReleaseWorkers | Conclude
)  # fmt: skip
