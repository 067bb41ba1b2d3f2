"""The messages between an agent and its workers, with paths of their machine."""

from __future__ import annotations

from pathlib import Path

from fairlead import wire


class PlacedSpec(wire.WorkerSpec, frozen=True, kw_only=True):
    """A worker's spec with its job's folders on this machine."""

    folder: str  # the job's own folder: logs/, output/, snapshots/, code/
    memory_folder: str  # the job's snapshots in this node's memory: JOB/NODE, so that a job sees only its own


class PlacedJoin(wire.Join, tag="join", frozen=True, kw_only=True):
    """A Join with the address of its rendezvous."""

    init_method: str = ""  # file:///... on this machine, tcp://... over a network


ToWorker = PlacedJoin | wire.Leave | wire.Quit


def placed_join(join: wire.Join, folder: Path) -> PlacedJoin:
    """The Join with a rendezvous file in the job's folder."""
    given = {name: getattr(join, name) for name in wire.Join.__struct_fields__}
    return PlacedJoin(**given, init_method=f"file://{folder / 'rendezvous' / Path(join.rendezvous).name}")
