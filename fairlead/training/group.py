"""The ranks of one generation and what they do together; a lost peer is always a PeerLost, never a user's error."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from urllib.parse import urlparse

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d  # where the stores are declared

from fairlead import wire

GRACE_S = 0.5
"""How long a collective is waited for before looking whether the control plane already gave this generation up."""

_abandoned: list[Any] = []
"""Groups with a collective that hangs. Their destructor would wait for it, so they are kept until the process ends."""


class PeerLost(Exception):
    """A collective failed: a peer is dead or silent, or the generation was given up. The own state is sound."""


class Group:
    """One generation as one of its ranks sees it. A group of one talks to nobody."""

    def __init__(self, join: wire.Join, worker: str, given_up: Callable[[], str | None]) -> None:
        self.generation = join.generation
        self.rank = join.ranks[worker]
        self.size = len(join.ranks)
        self.shares = tuple(join.shares) or (1.0,) * self.size
        self.device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")
        self._given_up = given_up
        self._silence_s = join.silence_s
        self._open = False
        if self.size > 1:
            self._meet(join)

    # ------------------------------------------------------------ beginning and end

    def _meet(self, join: wire.Join) -> None:
        """Wait for all peers in a way that can be called off, and only then build the mesh, which cannot."""
        place = urlparse(join.init_method)
        if place.scheme == "file" or place.hostname in ("127.0.0.1", "localhost"):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # the host's own name often does not resolve
        deadline = time.monotonic() + self._silence_s
        store = self._store(place, deadline)
        backend = "nccl" if self.device.type == "cuda" else "gloo"
        try:
            store.set(f"here-{self.rank}", "1")
            keys = [f"here-{rank}" for rank in range(self.size)]
            while not store.check(keys):
                self._check_wait(deadline)
                time.sleep(0.002)
            prefixed = c10d.PrefixStore("mesh", store)
            timeout = timedelta(seconds=self._silence_s)
            dist.init_process_group(backend, store=prefixed, rank=self.rank, world_size=self.size, timeout=timeout)
        except RuntimeError as error:
            raise PeerLost(f"the ranks did not meet: {_one_line(error)}") from error
        self._open = True

    def _store(self, place: Any, deadline: float) -> Any:
        prefix = f"generation-{self.generation}"
        if place.scheme == "file":
            return c10d.PrefixStore(prefix, c10d.FileStore(place.path, self.size))
        while True:
            try:
                store = c10d.TCPStore(
                    place.hostname, place.port, self.size, is_master=self.rank == 0, wait_for_workers=False,
                    timeout=timedelta(seconds=1),
                )  # fmt: skip
            except RuntimeError:
                self._check_wait(deadline)
                time.sleep(0.01)
                continue
            store.set_timeout(timedelta(seconds=self._silence_s))
            return c10d.PrefixStore(prefix, store)

    def _check_wait(self, deadline: float) -> None:
        reason = self._given_up()
        if reason is None and time.monotonic() > deadline:
            reason = f"not all of {self.size} ranks came within {self._silence_s:g} s"
        if reason is not None:
            raise PeerLost(reason)

    def close(self) -> None:
        """Leave in order: nobody tears down while another still works (FINDINGS-torch 0)."""
        self.barrier()
        self.abort()

    def abort(self) -> None:
        """Leave without asking anybody."""
        if self._open:
            self._open = False
            dist.destroy_process_group()

    # ------------------------------------------------------------ collectives

    def sum(self, tensor: torch.Tensor) -> None:
        """Sum over all ranks, in place."""
        if self.size > 1:
            self._do(lambda: dist.all_reduce(tensor, async_op=True))

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same-shaped tensors of all ranks, stacked in rank order."""
        if self.size == 1:
            return tensor.unsqueeze(0)
        stacked = tensor.new_empty((self.size, *tensor.shape))
        parts = list(stacked.unbind(0))
        self._do(lambda: dist.all_gather(parts, tensor.contiguous(), async_op=True))
        return stacked

    def barrier(self) -> None:
        self.sum(torch.zeros(1, device=self.device))

    def broadcast(self, data: bytes | None, source: int) -> bytes:
        """The source's bytes on every rank."""
        if self.size == 1:
            return data or b""
        mine = data if self.rank == source and data is not None else b""
        size = torch.tensor([len(mine)], dtype=torch.int64, device=self.device)
        self._do(lambda: dist.broadcast(size, source, async_op=True))
        if int(size.item()) == 0:
            return b""
        buffer = self._bytes(mine) if self.rank == source else self._empty(int(size.item()))
        self._do(lambda: dist.broadcast(buffer, source, async_op=True))
        return mine if self.rank == source else buffer.cpu().numpy().tobytes()

    def collect(self, data: bytes) -> list[bytes]:
        """The bytes (at least one) of every rank, in rank order, on rank 0; nothing elsewhere."""
        if self.size == 1:
            return [data]
        sizes = self.gather(torch.tensor([len(data)], dtype=torch.int64, device=self.device)).flatten().tolist()
        if self.rank != 0:
            self._do(lambda: dist.isend(self._bytes(data), 0))
            return []
        parts = [data]
        for rank in range(1, self.size):
            buffer = self._empty(sizes[rank])
            self._do(lambda buffer=buffer, rank=rank: dist.irecv(buffer, rank))  # type: ignore[misc]
            parts.append(buffer.cpu().numpy().tobytes())
        return parts

    def _bytes(self, data: bytes) -> torch.Tensor:
        return torch.frombuffer(bytearray(data), dtype=torch.uint8).to(self.device)

    def _empty(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, device=self.device)

    def _do(self, start: Callable[[], Any]) -> None:
        """Run one collective; every way in which it can fail means that a peer is lost."""
        try:
            work = start()
            while True:
                try:
                    work.wait(timedelta(seconds=GRACE_S))
                    return
                except RuntimeError:
                    if work.is_completed():
                        raise  # it failed; otherwise only the patience of this round is over
                reason = self._given_up()
                if reason is not None:
                    _abandoned.append((dist.group.WORLD, work))
                    raise PeerLost(reason)
        except RuntimeError as error:
            raise PeerLost(_one_line(error)) from error


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
