"""Ranks of one generation as threads of this process: real groups, where all ranks can be looked at together."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch

from fairlead.local_wire import PlacedJoin
from fairlead.training.group import Group

T = TypeVar("T")
_met = iter(range(1_000_000))


def call(place: Path, size: int, silence_s: float = 30.0, where: str = "", **more: Any) -> PlacedJoin:
    """The call to a generation of so many workers, ``w0`` being rank 0."""
    ranks = {f"w{rank}": rank for rank in range(size)}
    return PlacedJoin(1, ranks, [], silence_s, init_method=where or f"file://{place}/meet-{next(_met)}", **more)


def together(place: Path, size: int, work: Callable[[Group], T], **more: Any) -> list[T]:
    """What each rank's work gives, in rank order. What one of them raises is raised here."""
    join = call(place, size, **more)
    found: list[Any] = [None] * size
    raised: list[BaseException] = []

    def run(rank: int) -> None:
        group = None
        try:
            torch.set_num_threads(1)
            group = Group(join, f"w{rank}", lambda: "another rank has failed" if raised else None)
            group.barrier()
            found[rank] = work(group)
            group.barrier()
        except BaseException as error:  # noqa: BLE001 (raised below)
            raised.append(error)
        finally:
            if group is not None:
                group.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]
    return found
