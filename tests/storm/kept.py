"""Seeds that showed a fault once, and invariants that do not hold yet."""

from __future__ import annotations

KEPT: tuple[int, ...] = (61, 86, 128, 161, 293, 2010, 2014)
"""Played again each time, with what they showed:

- 61: a job that was planned on a node that hung already was charged from then on: no fault, it had that device
- 86, 161, 293: commands that finished while nobody led were run again, as their nodes said that they were gone before
  they told what had been said there
- 128: jobs that ended while nobody led were charged until somebody did
- 2010: a gang could not be judged when deaths of the generation planned to follow it had been passed over
- 2014: a gang with a silent node and a quick one was told to leave, and answered, hundreds of times
"""

PENDING: dict[str, str] = {}
"""Invariants that ``python -m tests.storm`` reports and that fail no test yet, each with its cause. To stay empty."""

SEEN: tuple[tuple[int, int, str], ...] = (
    (2, 19, "not-heard"), (3, 0, "looks"), (4, 18, "counts"), (6, 108, "internal-error"), (8, 12, "inbox"),
    (9, 10, "lines"), (10, 27, "rendezvous-shared"), (11, 4, "times"), (17, 16, "stands-still"),
)
"""A mend that is taken back, a seed that shows it, and the invariant by which it does."""
