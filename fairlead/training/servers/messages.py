"""What ranks ask each other where parameters are served, and what they hear."""

from __future__ import annotations

import msgspec

from fairlead.training.servers.clocks import Closed, Turn

# ---------------------------------------------------------------- to any server


class Pull(msgspec.Struct, frozen=True, tag="pull"):
    """Your parameters, as they are now; they come behind the answer."""


class Push(msgspec.Struct, frozen=True, tag="push"):
    """Gradients of a piece, behind these words."""


class State(msgspec.Struct, frozen=True, tag="state"):
    """The optimizer's state of your part."""


# ---------------------------------------------------------------- to the keeper of the clocks


class Take(msgspec.Struct, frozen=True, tag="take"):
    """A piece of this step, please."""

    step: int
    leaving: bool = False


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The servers hold a piece of this step."""

    step: int
    loss: float  # its part of the mean loss
    weight: float  # its part of the batch
    compute_s: float


class Close(msgspec.Struct, frozen=True, tag="close"):
    """Nothing is left for me in this step."""

    step: int


class Settle(msgspec.Struct, frozen=True, tag="settle"):
    """Are all pieces up to this step done? What were the losses after that one?"""

    step: int
    after: int


class Fail(msgspec.Struct, frozen=True, tag="fail"):
    """My loss is no number: nobody may go on. Also the answer to whatever anybody asks from then on."""

    loss: float
    step: int
    rank: int


class Why(msgspec.Struct, frozen=True, tag="why"):
    """A peer is gone: has anybody said why?"""


Keeping = Take | Done | Close | Settle | Fail | Why
Request = Pull | Push | State | Keeping

# ---------------------------------------------------------------- answers


class Well(msgspec.Struct, frozen=True, tag="well"):
    """It is done."""


class Held(msgspec.Struct, frozen=True, tag="held"):
    state: bytes


class Settled(msgspec.Struct, frozen=True, tag="settled"):
    losses: list[float] | None  # None: not yet
    finished: int  # pieces so far


class Lost(msgspec.Struct, frozen=True, tag="lost"):
    """A peer is gone: this generation is over."""

    why: str


Answer = Turn | Closed | Settled | Well | Fail | Lost
