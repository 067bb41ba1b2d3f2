"""Seeds that showed a fault once, and invariants that do not hold yet."""

from __future__ import annotations

KEPT: tuple[int, ...] = (128,)
"""Played again each time. 128: jobs that ended while nobody led were charged until somebody did."""

PENDING: dict[str, str] = {
    "looks": "each pass looks at each live gang",
    "cursors": "cursors of node managers that are gone are kept",
    "inbox": "what nodes say while the store is silent is kept without a bound",
    "losses": "losses are counted on from what was read before an await",
    "stands-still": "a gang stands between two generations until somebody leads again",
    "no-end": "a job whose code dies at its start is started for ever",
    "left-over": "the workers of such a job",
    "slow-to-lead": "a new leader waits for silent nodes before it does anything",
    "undisturbed-touched": "a worker that finished while nobody led may be called lost at first",
    "untrue-end": "losses through no fault of a job make it fail",
}
"""Reported by ``python -m tests.storm`` and not failing the tests, each with its cause. To become empty."""
