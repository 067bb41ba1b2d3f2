"""Seeds that showed a fault once, and invariants that do not hold yet."""

from __future__ import annotations

KEPT: tuple[int, ...] = (61, 86, 128, 161, 293, 2010, 2014, 9000125)
"""Played again each time, plain as they were then, with what they showed:

- 61: a job that was planned on a node that hung already was charged from then on: no fault, it had that device
- 86, 161, 293: commands that finished while nobody led were run again, as their nodes said that they were gone before
  they told what had been said there
- 128: jobs that ended while nobody led were charged until somebody did
- 2010: a gang could not be judged when deaths of the generation planned to follow it had been passed over
- 2014: a gang with a silent node and a quick one was told to leave, and answered, hundreds of times
- 9000125: what a worker said of a generation before there was one dated its loss
"""

KEPT_WITH_MORE: tuple[int, ...] = (97, 300189)
"""The same, of seeds that have more than jobs and faults:

- 97: a worker that lied kept the device that another of its gang had left, and who was to start there waited
- 300189: a worker said that it had finished and went on for 17 s while nobody led: its device was charged to nobody
"""

PENDING: dict[str, str] = {}
"""Invariants that ``python -m tests.storm`` reports and that fail no test yet, each with its cause. To stay empty."""

SEEN: tuple[tuple[int, int, str, bool], ...] = (
    (1, 3, "rendezvous-differs", False),
    (2, 29, "not-heard", False),
    (3, 0, "looks", True),
    (4, 18, "counts", True),
    (6, 108, "internal-error", True),
    (8, 6, "inbox", False),
    (9, 10, "lines", True),
    (10, 33, "rendezvous-shared", False),
    (11, 4, "times", True),
    (17, 16, "stands-still", False),
)
"""A mend that is taken back, a seed that shows it, the invariant by which it does, and whether that seed is plain."""
