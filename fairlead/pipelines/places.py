"""Finds where this worker's results lie: in the grid of its node, or in its tenant's folder in memory without one."""

from __future__ import annotations

from pathlib import Path

from fairlead import wire
from fairlead.pipelines.carry import Folder, Place


def place_of_this_worker(spec: wire.WorkerSpec) -> Place:
    """Where to put results and find those of others."""
    return Folder(Path(spec.memory_folder))
