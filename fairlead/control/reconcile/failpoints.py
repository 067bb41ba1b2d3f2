"""Named places between a store write and its side effect where a crash test can kill the control plane."""

from __future__ import annotations

import os
import signal
from collections import Counter

NAMES = frozenset({
    "submit-stored",        # the job is durable, the client has no answer yet
    "events-stored",        # events of workers are stored, the node manager may still resend them
    "round-stored",         # a round's decisions are stored, nothing was carried out
    "launched",             # newcomers were started, their readiness is not known
    "leave-told",           # the former generation was told to leave
    "join-stored",          # the new generation may meet, nobody was told
    "join-told",            # members were told to meet
    "running-stored",       # the generation counts as running
    "broken-stored",        # a loss is stored, the recovery is not decided
    "stop-stored",          # a stop (cancel, failure, preemption, success) is stored, workers still live
    "stop-told",            # workers were told to end
    "released",             # devices are free again, the job does not say so yet
    "concluded",            # the job's end is stored
    "metered",              # usage was written to the ledger
    "pipeline-submitted",   # a pipeline is stored, nobody has been told
    "pipeline-stored",      # steps of pipelines are stored, their jobs are in the queue
    "lease-taken",          # leadership is stored, no node manager knows of it
})  # fmt: skip

_hits: Counter[str] = Counter()


def failpoint(name: str) -> None:
    """Kill this process as ``kill -9`` would, if ``FAIRLEAD_FAILPOINT`` names this place (``name`` or ``name:nth``)."""
    wanted = os.environ.get("FAIRLEAD_FAILPOINT")
    if wanted is None:
        return
    if name not in NAMES:
        raise ValueError(f"unknown failpoint {name!r}")
    place, _, nth = wanted.partition(":")
    if place == name:
        _hits[name] += 1
        if _hits[name] == int(nth or 1):
            os.kill(os.getpid(), signal.SIGKILL)
