"""Entry point of a worker's process: a training, with the profiling of its model in a process beside it.

The agent's fork server calls :func:`main`; under a virtual environment it starts ``python -m fairlead.worker``.
"""

from __future__ import annotations

import os
import socket

from fairlead import training
from fairlead.local_wire import PlacedSpec
from fairlead.profiling.profiling_process import start_profiling
from fairlead.training import worker as training_worker
from fairlead.training.worker import LoadTraining, StoreResult, spec_from_environment


def preload() -> None:
    """Import all that a worker needs, for the fork server; importing this module has loaded the profiling already."""
    training.preload()


def main(
    spec: PlacedSpec, worker: str, channel: socket.socket, load: LoadTraining | None = None,
    store: StoreResult | None = None,
) -> int:  # fmt: skip
    """Run this worker in the present process; returns its exit code. The working folder holds the user's code."""
    return training_worker.main(spec, worker, channel, load, store, start_profiling)


if __name__ == "__main__":
    code = main(*spec_from_environment())
    os._exit(code)  # threads of a lost group must not hold up the end
