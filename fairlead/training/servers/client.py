"""A rank among parameter servers: it serves its own part in threads, and asks the others for theirs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from fairlead.training.group import Group, PeerLost
from fairlead.training.servers.clock_server import ClockServer
from fairlead.training.servers.clocks import Clocks
from fairlead.training.servers.connections import CLOCKS, KEEPER, PeerConnection, PeerConnections
from fairlead.training.servers.messages import (
    Answer,
    Fail,
    Held,
    Keeping,
    Lost,
    Pull,
    Push,
    Request,
    State,
    Well,
    Why,
)
from fairlead.training.servers.shard import Layout, Shard, dealt
from fairlead.training.session import Session
from fairlead.training.step_flags import not_a_number

REASON_WITHIN_S = 2.0
"""How long the keeper is asked why a peer is gone."""


class Servers:
    """All servers of a generation as one rank sees them; one of them is itself."""

    def __init__(self, session: Session, group: Group, clocks: Clocks) -> None:
        self._rank, self._size = group.rank, group.size
        self._owed = 0  # answers of the keeper that this rank has not heard
        parameters = [p for p in session.model.parameters() if p.requires_grad]
        places = dealt([p.numel() * p.element_size() for p in parameters], group.size)
        self._held = [[parameters[place] for place in of_rank] for of_rank in places]
        self._shard = Shard(session, parameters, places[group.rank], group.size)
        layouts = [Layout(tensors) for tensors in self._held]
        self._buffers = [layout.buffer() for layout in layouts]
        self._views = [layout.views(buffer) for layout, buffer in zip(layouts, self._buffers, strict=True)]
        self._lines = PeerConnections(group)
        self._keeper = ClockServer(clocks, group.size, lambda: self._lines.lost)
        self._lines.open(self._serve)

    def check(self) -> None:
        """Raise if a peer is gone, or if nobody waits for this generation any more."""
        self._lines.check()

    def pull(self) -> None:
        """The model's parameters become those of the servers."""
        for rank in self._others():
            self._lines.say(rank, Pull())
        self._shard.pull(self._buffers[self._rank])
        for rank in self._others():
            self._lines.hear(rank, Well, self._buffers[rank])
        self._take_over()

    def _take_over(self) -> None:
        with torch.no_grad():
            for tensor, view in self._pairs():
                tensor.copy_(view)

    def push(self, *, pull: bool) -> None:
        """The servers get the gradients that the model has now; with ``pull`` it gets their parameters in return."""
        for tensors, buffer in zip(self._held, self._buffers, strict=True):
            buffer[: len(tensors)] = torch.tensor([p.grad is not None for p in tensors], dtype=torch.uint8)
        for tensor, view in self._pairs():
            if tensor.grad is not None:
                view.copy_(tensor.grad)
        for rank in self._others():
            self._lines.say(rank, Push(pull), self._buffers[rank])
        self._shard.push(self._buffers[self._rank])
        if pull:
            self._shard.pull(self._buffers[self._rank])
        for rank in self._others():
            self._lines.hear(rank, Well, self._buffers[rank] if pull else None)
        if pull:
            self._take_over()

    def states(self) -> Iterator[bytes]:
        """The optimizer's state of every server."""
        yield self._shard.state()
        for rank in self._others():
            self._lines.say(rank, State())
            held: Held = self._lines.hear(rank, Held)
            yield held.state

    def ask_keeper(self, words: Keeping) -> Any:
        """What the keeper of the clocks says; a failure of anybody, or a lost peer, is raised here."""
        if self._rank == KEEPER:
            return self._judged(self._keeper.answer(KEEPER, words))
        self._lines.say(CLOCKS, words)
        self._owed += 1
        answer = self._lines.hear(CLOCKS, Answer)
        self._owed -= 1
        return self._judged(answer)

    def _judged(self, answer: Answer) -> Answer:
        match answer:
            case Fail():
                if self._rank == KEEPER:
                    self._keeper.farewell()
                raise not_a_number(answer.loss, answer.step, answer.rank)
            case Lost():
                raise PeerLost(answer.why)
        return answer

    def raise_failure(self) -> None:
        """After a peer was lost: if it ended because of a failure that all must know of, raise that instead."""
        with contextlib.suppress(PeerLost):
            if self._rank == KEEPER:
                self._judged(self._keeper.answer(KEEPER, Why()))
                return
            self._lines.say(CLOCKS, Why())
            for _ in range(self._owed + 1):  # what was asked before is answered first
                self._judged(self._lines.hear(CLOCKS, Answer, within_s=REASON_WITHIN_S))

    def close(self) -> None:
        self._lines.close()

    def _others(self) -> list[int]:
        return [rank for rank in range(self._size) if rank != self._rank and self._held[rank]]

    def _pairs(self) -> Iterator[tuple[torch.nn.Parameter, torch.Tensor]]:
        for tensors, views in zip(self._held, self._views, strict=True):
            yield from zip(tensors, views, strict=True)

    # ------------------------------------------------------------ in threads

    def _serve(self, rank: int, line: PeerConnection) -> None:
        """Answer one rank until it is gone, which ends this with PeerLost."""
        buffer = self._shard.layout.buffer()
        while True:
            asked = line.receive(Request, buffer, _patiently)
            match asked:
                case Pull():
                    self._shard.pull(buffer)
                    line.send(Well(), buffer, _patiently)
                case Push(pull=pull):
                    self._shard.push(buffer)
                    if pull:
                        self._shard.pull(buffer)
                    line.send(Well(), buffer if pull else None, _patiently)
                case State():
                    line.send(Held(self._shard.state()), None, _patiently)
                case _:
                    line.send(self._keeper.answer(rank, asked), None, _patiently)


def _patiently() -> None:
    """A server waits for ever: whether a peer is silent is for those to judge who need it."""
