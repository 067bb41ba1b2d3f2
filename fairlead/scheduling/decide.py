"""Decides a round: the same market for the simulator and for a live cluster."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from fairlead.scheduling.live_round import live_round
from fairlead.scheduling.market.policy import Market
from fairlead.scheduling.state import ClusterState, Round

_MARKET = Market()


def decide(state: ClusterState) -> Round:
    """Decides which jobs start, grow, shrink, move, stop or wait now, with reasons.

    The market gives every job its gang. In the simulator freed devices can be given away at once, so the market's
    answer is the round. On a live cluster devices are free once their workers are gone, some gangs are frozen and some
    nodes take no workers: there the market decides on the settled state, and the round is the part of its answer that
    can begin now.
    """
    with _undisturbed():
        return _MARKET(state) if state.at_once else live_round(state)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Pauses the garbage collector during the round: a round makes many small values, hardly any of them in cycles, and
    each collection would scan the whole process."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
