"""Messages between ranks that use parameter servers: requests and their answers."""

from __future__ import annotations

import msgspec

from fairlead.training.servers.clocks import Closed, Turn

# ---------------------------------------------------------------- to any server


class Pull(msgspec.Struct, frozen=True, tag="pull"):
    """Asks for the server's parameters, which follow the answer."""


class Push(msgspec.Struct, frozen=True, tag="push"):
    """Brings the gradients of a piece, which follow this message."""

    pull: bool = False  # asks for the server's parameters, too


class State(msgspec.Struct, frozen=True, tag="state"):
    """Asks for the optimizer's state of the server's part."""


# ---------------------------------------------------------------- to the clock server


class Done(msgspec.Struct, frozen=True):
    """A piece whose gradients the servers hold."""

    step: int
    loss: float  # its part of the mean loss
    weight: float  # its part of the batch
    compute_s: float


class Take(msgspec.Struct, frozen=True, tag="take"):
    """Asks for a piece of this step; the answer closes the step if none is left."""

    step: int
    leaving: bool = False
    done: Done | None = None  # the piece that this rank finished before


class Settle(msgspec.Struct, frozen=True, tag="settle"):
    """Asks whether all pieces up to this step are finished, and for the losses after ``after``."""

    step: int
    after: int


class Fail(msgspec.Struct, frozen=True, tag="fail"):
    """A rank's loss is not finite: no rank may go on. Also the answer to every later request."""

    loss: float
    step: int
    rank: int


class AskFailure(msgspec.Struct, frozen=True, tag="why"):
    """A peer is gone: asks whether a failure is the reason."""


ClockRequest = Take | Settle | Fail | AskFailure
Request = Pull | Push | State | ClockRequest

# ---------------------------------------------------------------- answers


class Ok(msgspec.Struct, frozen=True, tag="well"):
    """The request was carried out."""


class OptimizerState(msgspec.Struct, frozen=True, tag="held"):
    state: bytes


class Settled(msgspec.Struct, frozen=True, tag="settled"):
    losses: list[float] | None  # None: not yet
    finished: int  # pieces so far


class Lost(msgspec.Struct, frozen=True, tag="lost"):
    """A peer is gone: this generation is over."""

    why: str


Answer = Turn | Closed | Settled | Ok | Fail | Lost
