"""What ranks ask each other where parameters are served, and what they hear."""

from __future__ import annotations

import msgspec

from fairlead.training.servers.clocks import Closed, Turn

# ---------------------------------------------------------------- to any server


class Pull(msgspec.Struct, frozen=True, tag="pull"):
    """Your parameters, as they are now; they come behind the answer."""


class Push(msgspec.Struct, frozen=True, tag="push"):
    """Gradients of a piece, behind these words."""

    pull: bool = False  # your parameters are to come back behind the answer


class State(msgspec.Struct, frozen=True, tag="state"):
    """The optimizer's state of your part."""


# ---------------------------------------------------------------- to the keeper of the clocks


class Done(msgspec.Struct, frozen=True):
    """A piece that the servers hold now."""

    step: int
    loss: float  # its part of the mean loss
    weight: float  # its part of the batch
    compute_s: float


class Take(msgspec.Struct, frozen=True, tag="take"):
    """A piece of this step, please; the answer closes the step if there is none left."""

    step: int
    leaving: bool = False
    done: Done | None = None  # what I did before


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


Keeping = Take | Settle | Fail | Why
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
