"""The messages of one machine: what an agent says to its own workers, with the folders of their machine."""

from __future__ import annotations

from pathlib import Path

from fairlead import wire


class PlacedSpec(wire.WorkerSpec, frozen=True, kw_only=True):
    """All that a worker needs, with its job's folders."""

    folder: str  # the job's own folder: logs/, output/, snapshots/, code/
    memory_folder: str  # the same job's snapshots in memory, on this node: JOB/NODE, so that a job sees its own


class PlacedJoin(wire.Join, tag="join", frozen=True, kw_only=True):
    """A call to a generation, with the place where its ranks meet."""

    init_method: str = ""  # file:///... on this machine, tcp://... over a network


ToWorker = PlacedJoin | wire.Leave | wire.Quit


def placed_join(join: wire.Join, folder: Path) -> PlacedJoin:
    """The same call for ranks that meet at a file in their job's own folder."""
    given = {name: getattr(join, name) for name in wire.Join.__struct_fields__}
    return PlacedJoin(**given, init_method=f"file://{folder / 'rendezvous' / Path(join.rendezvous).name}")
