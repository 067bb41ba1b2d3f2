"""The policy: one market, whether what it decides can be done at once or has to be carried out step by step."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from fairlead.scheduling.live_round import live_round
from fairlead.scheduling.market.policy import Market
from fairlead.scheduling.state import ClusterState, Round

_MARKET = Market()


def decide(state: ClusterState) -> Round:
    """Who starts, grows, shrinks, moves, stops or waits now, and why.

    The market says who is to have what. Where devices that a decision frees can be given away at once, as in the
    simulator, that is the round. On a live cluster they are free only when their workers are gone, some gangs settle
    and some nodes take nothing new: there the market is asked about the settled state, and the round is as much of its
    answer as can be done now.
    """
    with _undisturbed():
        return _MARKET(state) if state.at_once else live_round(state)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """The collector waits until the round is over: it would look at all that the process holds, time and again, as a
    round makes many small values, and hardly any of them is garbage that only it can find."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
