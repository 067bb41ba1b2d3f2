"""The actions that ``gang_state_machine.next_action`` answers with; ``gang_executor`` carries each of them out."""

from __future__ import annotations

from dataclasses import dataclass

from fairlead.control.records import Generation, JobPhase


@dataclass(frozen=True, slots=True)
class WakeNodes:
    """Some of its members are to sit on nodes that sleep."""

    generation: Generation
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Start:
    """Have the members started that are not alive yet."""

    generation: Generation


@dataclass(frozen=True, slots=True)
class TellLeave:
    generation: Generation
    exits: tuple[str, ...]
    snapshot: bool


@dataclass(frozen=True, slots=True)
class BeginJoin:
    """The former generation is over: let the newest one meet."""

    generation: Generation
    former: Generation | None


@dataclass(frozen=True, slots=True)
class TellJoin:
    generation: Generation
    breaks: int = 0  # members that still take part in generations up to this one need not leave them first


@dataclass(frozen=True, slots=True)
class MarkRunning:
    generation: Generation


@dataclass(frozen=True, slots=True)
class MarkBroken:
    generation: Generation
    lost: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Abandon:
    """A planned generation cannot come up: the former one, if any, stays."""

    generation: Generation
    why: str


@dataclass(frozen=True, slots=True)
class BeginStop:
    """End the gang; the job then becomes what ``then`` says."""

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
    """All workers are gone: the job becomes what was wanted."""

    then: JobPhase
    outcome: str
    at_s: float | None = None  # when the job ended, if it was not put on its way out before


Action = (
    WakeNodes | Start | TellLeave | BeginJoin | TellJoin | MarkRunning | MarkBroken | Abandon
    | BeginStop | StopWorkers | ReleaseWorkers | Conclude
)  # fmt: skip
