"""How the ranks of a new generation come to the same state: whoever is furthest gives its own to the others."""

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
from fairlead.training.snapshots.snapshot_files import Stored
from fairlead.training.snapshots.snapshotter import Snapshots


@dataclass(frozen=True, slots=True)
class AgreedState:
    """Where a generation goes on from: a living worker, a snapshot in memory or on disk, or the beginning."""

    step: int
    source: str


class CarriedState(Protocol):
    """What is carried from one generation into the next."""

    live: bool
    adrift: bool

    @property
    def step(self) -> int: ...

    @property
    def point(self) -> int:
        """How far it is, as a number to compare: twice the step, and one more with its epoch closed."""

    @property
    def spoiled(self) -> bool: ...

    def description(self) -> list[str]:
        """What must be alike on all ranks, a line each."""

    def dump(self) -> bytes: ...
    def load(self, data: bytes | FlatState) -> None: ...


def agree(group: Group, session: CarriedState, snapshots: Snapshots) -> AgreedState:
    """Bring all ranks to the newest state that any of them holds or can read.

    A claim is (how far) * 2 + (alive): at the same point a state in a worker's memory goes before a file. A file may
    turn out to be damaged; then its claimant falls back to an older one and all compare again. Where somebody is
    adrift, to be equally far is not to be alike: then one gives its state to all.
    """
    check_alike(group, session)
    stored = snapshots.find()
    if session.spoiled and stored and stored[0].step == 0:
        _open(session, stored)  # a claim of 0 would mean the beginning as the code makes it
    while True:
        own = _claim(session, stored)
        said = torch.tensor([own, int(session.adrift)], dtype=torch.int64, device=group.device)
        claims, drifted = group.gather(said).T.tolist()
        best = max(claims)
        giver = claims.index(best)
        source = "a living worker" if best % 2 else ("start" if best == 0 else "")
        ready = True
        if group.rank == giver and not best % 2 and best > 0:
            source = stored[0].where
            ready = _open(session, stored)
        answer = group.broadcast(source.encode() if ready else b"", giver).decode()
        if answer:
            break
    if min(claims) != best or not best % 2 or any(drifted):
        _hand_over(group, session, giver, to_all=any(drifted))
    if session.spoiled:
        raise TrainingFailed("a worker was lost with its part of the model, and there is no snapshot", field="plan")
    session.live, session.adrift = True, False
    return AgreedState(session.step, answer)


def check_alike(group: Group, session: CarriedState) -> None:
    """Refuse ranks whose code made another model or other data: their sums would be nonsense, or never come.

    Every rank raises the same, so that nobody waits for the others.
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
        f"rank {odd[0]} made another one than rank 0 at step {session.step + 1}: {right} instead of {left}",
        field="model", fix="make model and data depend on params and seed only, not on the rank, time or machine",
    )  # fmt: skip


def _claim(session: CarriedState, stored: list[Stored]) -> int:
    alive = 2 * session.point + 1 if session.live else 0
    return max(alive, 4 * stored[0].step if stored else 0)


def _open(session: CarriedState, stored: list[Stored]) -> bool:
    data = stored.pop(0).read()
    if data is None:
        return False
    session.load(data)
    return True


def _hand_over(group: Group, session: CarriedState, giver: int, *, to_all: bool) -> None:
    if group.size == 1:
        return
    point = int(group.broadcast(str(session.point).encode() if group.rank == giver else None, giver))
    data = group.broadcast(session.dump() if group.rank == giver else None, giver)
    if group.rank != giver and (to_all or not (session.live and session.point == point)):
        session.load(data)
