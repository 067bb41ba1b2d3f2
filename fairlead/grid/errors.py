"""What a worker may say, checked where it is heard: its own library checks it too, but nobody has to use that."""

from __future__ import annotations

import math
import re

from fairlead.grid.messages import Problem
from fairlead.grid.values import LONGEST_LABEL

_ID = re.compile(r"[0-9a-f]{32}")
_LONGEST_SESSION = 64


class Refusal(Exception):
    """Answered to whoever asked, as a Problem."""

    def __init__(self, error: str, code: str = "refused", fix: str = "") -> None:
        super().__init__(error)
        self.problem = Problem(error, code, fix)


def is_id(block: str) -> bool:
    """Whether a block could have this id: it becomes the name of a file, so nothing else is let through."""
    return _ID.fullmatch(block) is not None


def check_room(block: str, nbytes: int) -> None:
    """Raises Refusal unless a block may have this id and be this long."""
    if not is_id(block):
        raise Refusal(f"{block[:40]!r} is no id of a block", "invalid-spec", "32 hexadecimal digits, in small letters")
    if nbytes < 0:
        raise Refusal("a block shorter than nothing", "invalid-spec")


def check_facts(kind: str, label: str, cost_s: float) -> None:
    """Raises Refusal unless this may be said of a block: it is kept, reported and reckoned with."""
    for name, text in (("kind", kind), ("label", label)):
        if len(text) > LONGEST_LABEL:
            raise Refusal(f"a {name} longer than {LONGEST_LABEL} characters", "invalid-spec", "cut it")
    if not (math.isfinite(cost_s) and cost_s >= 0):
        raise Refusal(f"a block cannot cost {cost_s} s", "invalid-spec", "give cost_s in seconds, 0 or more")


def check_session(session: str) -> None:
    """Raises Refusal unless a worker may call itself so."""
    if not 0 < len(session) <= _LONGEST_SESSION:
        raise Refusal(f"a session has 1 to {_LONGEST_SESSION} characters", "invalid-spec")
