"""Checks workers' requests in the grid process: a hostile worker bypasses the checks of the client library."""

from __future__ import annotations

import math
import re

from fairlead.grid.messages import Problem
from fairlead.grid.values import LONGEST_LABEL

_ID = re.compile(r"[0-9a-f]{32}")
_LONGEST_SESSION = 64


class Refusal(Exception):
    """A request is refused; sent to the worker as a Problem."""

    def __init__(self, error: str, code: str = "refused", fix: str = "") -> None:
        super().__init__(error)
        self.problem = Problem(error, code, fix)


def is_id(block: str) -> bool:
    """True for 32 lowercase hex digits. The id becomes a file name, so everything else is rejected."""
    return _ID.fullmatch(block) is not None


def check_room(block: str, nbytes: int) -> None:
    """Raise Refusal unless a block may have this id and length."""
    if not is_id(block):
        raise Refusal(f"{block[:40]!r} is not a block id", "invalid-spec", "use 32 lowercase hexadecimal digits")
    if nbytes < 0:
        raise Refusal(f"a block cannot have {nbytes} bytes", "invalid-spec")


def check_facts(kind: str, label: str, cost_s: float) -> None:
    """Raise Refusal unless kind, label and cost are valid: they are stored, reported and used for eviction."""
    for name, text in (("kind", kind), ("label", label)):
        if len(text) > LONGEST_LABEL:
            raise Refusal(f"{name} is longer than {LONGEST_LABEL} characters", "invalid-spec", "shorten it")
    if not (math.isfinite(cost_s) and cost_s >= 0):
        raise Refusal(f"a block cannot cost {cost_s} s", "invalid-spec", "give cost_s in seconds, 0 or more")


def check_session(session: str) -> None:
    """Raise Refusal unless the session id has a valid length."""
    if not 0 < len(session) <= _LONGEST_SESSION:
        raise Refusal(f"a session id has 1 to {_LONGEST_SESSION} characters", "invalid-spec")
