"""A rank among parameter servers: serves its own part in threads, and asks the other ranks for theirs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from fairlead.training.group import Group, PeerLost
from fairlead.training.servers.clock_server import ClockServer
from fairlead.training.servers.clocks import Clocks
from fairlead.training.servers.connections import CLOCK_RANK, CLOCKS, PeerConnection, PeerConnections
from fairlead.training.servers.messages import (
    Answer,
    AskFailure,
    ClockRequest,
    Fail,
    Lost,
    Ok,
    OptimizerState,
    Pull,
    Push,
    Request,
    State,
)
from fairlead.training.servers.shard import Layout, Shard, assign_parameters
from fairlead.training.session import Session
from fairlead.training.step_flags import non_finite_loss

REASON_WITHIN_S = 2.0
"""How long to wait for the clock server's answer why a peer is gone."""


class Servers:
    """All servers of a generation as one rank sees them, including itself."""

    def __init__(self, session: Session, group: Group, clocks: Clocks) -> None:
        self._rank, self._size = group.rank, group.size
        self._unread_answers = 0  # answers of the clock server that this rank has not read
        parameters = [p for p in session.model.parameters() if p.requires_grad]
        places = assign_parameters([p.numel() * p.element_size() for p in parameters], group.size)
        self._tensors_of_rank = [[parameters[place] for place in of_rank] for of_rank in places]
        self._shard = Shard(session, parameters, places[group.rank], group.size)
        layouts = [Layout(tensors) for tensors in self._tensors_of_rank]
        self._buffers = [layout.buffer() for layout in layouts]
        self._views = [layout.views(buffer) for layout, buffer in zip(layouts, self._buffers, strict=True)]
        self._lines = PeerConnections(group)
        self._clock_server = ClockServer(clocks, group.size, lambda: self._lines.lost)
        self._lines.open(self._serve)

    def check(self) -> None:
        """Raise PeerLost if a peer is gone, or if the control plane has ended this generation."""
        self._lines.check()

    def pull(self) -> None:
        """Copy the servers' parameters into the model."""
        for rank in self._others():
            self._lines.send_request(rank, Pull())
        self._shard.pull(self._buffers[self._rank])
        for rank in self._others():
            self._lines.receive_answer(rank, Ok, self._buffers[rank])
        self._copy_pulled()

    def _copy_pulled(self) -> None:
        with torch.no_grad():
            for tensor, view in self._pairs():
                tensor.copy_(view)

    def push(self, *, pull: bool) -> None:
        """Send the model's gradients to the servers; with ``pull`` copy their parameters back."""
        for tensors, buffer in zip(self._tensors_of_rank, self._buffers, strict=True):
            buffer[: len(tensors)] = torch.tensor([p.grad is not None for p in tensors], dtype=torch.uint8)
        for tensor, view in self._pairs():
            if tensor.grad is not None:
                view.copy_(tensor.grad)
        for rank in self._others():
            self._lines.send_request(rank, Push(pull), self._buffers[rank])
        self._shard.push(self._buffers[self._rank])
        if pull:
            self._shard.pull(self._buffers[self._rank])
        for rank in self._others():
            self._lines.receive_answer(rank, Ok, self._buffers[rank] if pull else None)
        if pull:
            self._copy_pulled()

    def states(self) -> Iterator[bytes]:
        """The optimizer's state of every server."""
        yield self._shard.state()
        for rank in self._others():
            self._lines.send_request(rank, State())
            held: OptimizerState = self._lines.receive_answer(rank, OptimizerState)
            yield held.state

    def ask_clock_server(self, request: ClockRequest) -> Any:
        """The clock server's answer; raises the failure of any rank, or PeerLost."""
        if self._rank == CLOCK_RANK:
            return self._raise_failure(self._clock_server.answer(CLOCK_RANK, request))
        self._lines.send_request(CLOCKS, request)
        self._unread_answers += 1
        answer = self._lines.receive_answer(CLOCKS, Answer)
        self._unread_answers -= 1
        return self._raise_failure(answer)

    def _raise_failure(self, answer: Answer) -> Answer:
        match answer:
            case Fail():
                if self._rank == CLOCK_RANK:
                    self._clock_server.wait_until_all_know()
                raise non_finite_loss(answer.loss, answer.step, answer.rank)
            case Lost():
                raise PeerLost(answer.why)
        return answer

    def raise_failure(self) -> None:
        """After a peer was lost: if a failure that ends the training is the cause, raise that instead."""
        with contextlib.suppress(PeerLost):
            if self._rank == CLOCK_RANK:
                self._raise_failure(self._clock_server.answer(CLOCK_RANK, AskFailure()))
                return
            self._lines.send_request(CLOCKS, AskFailure())
            for _ in range(self._unread_answers + 1):  # earlier requests are answered first
                self._raise_failure(self._lines.receive_answer(CLOCKS, Answer, within_s=REASON_WITHIN_S))

    def close(self) -> None:
        self._lines.close()

    def _others(self) -> list[int]:
        return [rank for rank in range(self._size) if rank != self._rank and self._tensors_of_rank[rank]]

    def _pairs(self) -> Iterator[tuple[torch.nn.Parameter, torch.Tensor]]:
        for tensors, views in zip(self._tensors_of_rank, self._views, strict=True):
            yield from zip(tensors, views, strict=True)

    # ------------------------------------------------------------ in threads

    def _serve(self, rank: int, line: PeerConnection) -> None:
        """Answer one rank's requests until it is gone, which raises PeerLost."""
        buffer = self._shard.layout.buffer()
        while True:
            asked = line.receive(Request, buffer, _wait_forever)
            match asked:
                case Pull():
                    self._shard.pull(buffer)
                    line.send(Ok(), buffer, _wait_forever)
                case Push(pull=pull):
                    self._shard.push(buffer)
                    if pull:
                        self._shard.pull(buffer)
                    line.send(Ok(), buffer if pull else None, _wait_forever)
                case State():
                    line.send(OptimizerState(self._shard.state()), None, _wait_forever)
                case _:
                    line.send(self._clock_server.answer(rank, asked), None, _wait_forever)


def _wait_forever() -> None:
    """A server waits for ever: the ranks that need a peer judge whether it is silent for too long."""
