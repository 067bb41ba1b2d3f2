"""Brings the ranks of a new generation to the same state: the most advanced rank broadcasts its own to the others."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import zip_longest
from typing import Protocol

import torch

from fairlead.errors import InvalidSpec, TrainingFailed
from fairlead.training.group import Group
from fairlead.training.seeds import digest
from fairlead.training.snapshots.flat_state import FlatState
from fairlead.training.snapshots.snapshot_files import StoredSnapshot
from fairlead.training.snapshots.snapshotter import Snapshots


@dataclass(frozen=True, slots=True)
class AgreedState:
    """The state that a generation continues from: a living worker's, a snapshot in memory or on disk, or the start."""

    step: int
    source: str


class CarriedState(Protocol):
    """A session, as far as agreement needs it."""

    live: bool
    diverged: bool

    @property
    def step(self) -> int: ...

    @property
    def position(self) -> int:
        """Progress as one number to compare: twice the step, plus one once its epoch is evaluated."""

    @property
    def weights_lost(self) -> bool: ...

    def description(self) -> list[str]:
        """What must be the same on all ranks, one line each."""

    def dump(self) -> bytes: ...
    def load(self, data: bytes | FlatState) -> None: ...


def agree_on_state(group: Group, session: CarriedState, snapshots: Snapshots) -> AgreedState:
    """Bring all ranks to the newest state that any of them holds or can read.

    Each rank claims position * 2 + alive: at the same position a state in a worker's memory precedes a file. A file may
    turn out to be damaged; its rank then claims an older one and all compare again. If a rank has diverged, equal
    positions do not mean equal states, and one rank gives its state to all.
    """
    check_same_training(group, session)
    stored = snapshots.find()
    if session.weights_lost and stored and stored[0].step == 0:
        _load_snapshot(session, stored)  # a claim of 0 would mean the start, with weights as the code makes them
    while True:
        own = _claim(session, stored)
        mine = torch.tensor([own, int(session.diverged)], dtype=torch.int64, device=group.device)
        claims, drifted = group.gather(mine).T.tolist()
        best = max(claims)
        source_rank = claims.index(best)
        source = "a living worker" if best % 2 else ("start" if best == 0 else "")
        ready = True
        if group.rank == source_rank and not best % 2 and best > 0:
            source = stored[0].where
            ready = _load_snapshot(session, stored)
        answer = group.broadcast(source.encode() if ready else b"", source_rank).decode()
        if answer:
            break
    if min(claims) != best or not best % 2 or any(drifted):
        _broadcast_state(group, session, source_rank, to_all=any(drifted))
    if session.weights_lost:
        raise TrainingFailed("a worker was lost with its part of the model, and there is no snapshot", field="plan")
    session.live, session.diverged = True, False
    return AgreedState(session.step, answer)


def check_same_training(group: Group, session: CarriedState) -> None:
    """Refuse ranks whose code made another model or other data: their sums would be nonsense, or never come.

    Every rank raises the same error, so none waits for the others.
    """
    own = session.description()
    digests = group.gather(torch.tensor([digest("\n".join(own))], dtype=torch.int64, device=group.device)).flatten()
    odd = [rank for rank, found in enumerate(digests.tolist()) if found != int(digests[0])]
    if not odd:
        return
    first = json.loads(group.broadcast(json.dumps(own).encode() if group.rank == 0 else None, 0))
    other = json.loads(group.broadcast(json.dumps(own).encode() if group.rank == odd[0] else None, odd[0]))
    pairs = ((a, b) for a, b in zip_longest(first, other, fillvalue="nothing more") if a != b)
    left, right = next(pairs)
    raise InvalidSpec(
        f"rank {odd[0]} differs from rank 0 at step {session.step + 1}: {right} instead of {left}",
        field="model", fix="make model and data depend on params and seed only, not on the rank, time or machine",
    )  # fmt: skip


def _claim(session: CarriedState, stored: list[StoredSnapshot]) -> int:
    alive = 2 * session.position + 1 if session.live else 0
    return max(alive, 4 * stored[0].step if stored else 0)


def _load_snapshot(session: CarriedState, stored: list[StoredSnapshot]) -> bool:
    data = stored.pop(0).read()
    if data is None:
        return False
    session.load(data)
    return True


def _broadcast_state(group: Group, session: CarriedState, source_rank: int, *, to_all: bool) -> None:
    if group.size == 1:
        return
    point = int(group.broadcast(str(session.position).encode() if group.rank == source_rank else None, source_rank))
    data = group.broadcast(session.dump() if group.rank == source_rank else None, source_rank)
    if group.rank != source_rank and (to_all or not (session.live and session.position == point)):
        session.load(data)
