"""The ranks of one generation and their collectives; a lost peer always raises PeerLost, never a user's error."""

from __future__ import annotations

import os
import queue
import re
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from urllib.parse import urlparse

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d  # where the stores are declared

from fairlead import wire
from fairlead.local_wire import PlacedJoin
from fairlead.training.parallel import direct_sums

PATIENCE_S = 0.2
"""How long to wait before asking again whether the control plane has ended this generation."""

_PATIENCE = timedelta(seconds=PATIENCE_S)

_abandoned: list[Any] = []
"""Backends with a hanging collective, kept until the process ends because their destructor would wait for it."""


class PeerLost(Exception):
    """A collective failed: a peer is dead or silent, or the generation was ended. This rank's own state is sound."""


class Group:
    """One generation from the view of one of its ranks. A group of one does no communication."""

    def __init__(
        self, join: wire.Join, worker: str, why_abandoned: Callable[[], str | None], former: Group | None = None
    ) -> None:
        """``former``: the group of this generation before all its ranks left it, if they now resume it."""
        self.generation = join.generation
        self.resumed: int = 0 if former is None else former.resumed + 1  # how many times
        self.rank = join.ranks[worker]
        self.size = len(join.ranks)
        self.shares = tuple(join.shares) or (1.0,) * self.size
        self.device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")
        self.waited_s = 0.0  # seconds in collectives, to tell computing from waiting
        self._why_abandoned = why_abandoned
        self.silence_s = join.silence_s
        self.careful_from = join.careful_from if self.rank == 0 else None
        self._rendezvous_store: Any = former.store("again") if former is not None and self.size > 1 else None
        self._backend = self._rendezvous(join) if self.size > 1 else None

    # ------------------------------------------------------------ rendezvous and end

    def _rendezvous(self, join: wire.Join) -> Any:
        """Connect to all peers, in a way that can be aborted at any moment."""
        place = urlparse(join.init_method if isinstance(join, PlacedJoin) else "")
        if place.scheme == "file" or place.hostname in ("127.0.0.1", "localhost"):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # the host's own name often does not resolve
        deadline = time.monotonic() + self.silence_s
        try:
            store = self._rendezvous_store = self._rendezvous_store or self._open_store(
                place, join.network.secret, deadline
            )
            store.set(f"here-{self.rank}", "1")
            keys = [f"here-{rank}" for rank in range(self.size)]
            while not store.check(keys):
                self._check_wait(deadline)
                time.sleep(0.002)
        except RuntimeError as error:
            raise PeerLost(f"the ranks did not meet: {explain_error(error)}") from error
        return self._connect(store, deadline)

    def _connect(self, store: Any, deadline: float) -> Any:
        """Build the mesh in a thread: when a peer dies meanwhile, the call hangs and cannot be stopped."""
        results: queue.SimpleQueue[Any] = queue.SimpleQueue()

        def build() -> None:
            try:
                results.put(_backend(store, self.rank, self.size, timedelta(seconds=self.silence_s), self.device))
            except RuntimeError as error:
                results.put(error)

        threading.Thread(target=build, name="fairlead-mesh", daemon=True).start()
        while True:
            try:
                result = results.get(timeout=PATIENCE_S)
            except queue.Empty:
                self._check_wait(deadline)
                continue
            if isinstance(result, RuntimeError):
                raise PeerLost(f"the ranks did not meet: {explain_error(result)}") from result
            return result

    def _open_store(self, place: Any, secret: str, deadline: float) -> Any:
        """The generation's part of a store. A TCP store admits anybody, so its keys are prefixed with the secret."""
        prefix = f"generation-{self.generation}-{secret}"
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
            store.set_timeout(timedelta(seconds=self.silence_s))
            return c10d.PrefixStore(prefix, store)

    def store(self, purpose: str) -> Any:
        """A part of the rendezvous store under a prefix, for process groups and decisions of their own."""
        return c10d.PrefixStore(purpose, self._rendezvous_store)

    def init_torch(self) -> None:
        """Initialise torch's global process group among these ranks, for libraries that need it."""
        dist.init_process_group(
            "nccl" if self.device.type == "cuda" else "gloo", store=self.store("torch"), rank=self.rank,
            world_size=self.size, timeout=timedelta(seconds=self.silence_s),
        )  # fmt: skip

    @staticmethod
    def close_torch() -> None:
        if dist.is_initialized():
            dist.destroy_process_group()

    def wait_for_all(self, purpose: str, longest_s: float) -> None:
        """Wait until every rank has come this far.

        Not a collective, because what it waits for may take longer than the silence that is allowed to a peer. If a
        rank dies meanwhile, the control plane notices and calls the others.
        """
        if self.size == 1:
            return
        deadline = time.monotonic() + longest_s
        try:
            store = self.store(f"all-{purpose}")
            store.set(str(self.rank), "1")
            keys = [str(rank) for rank in range(self.size)]
            while not store.check(keys):
                self._check_wait(deadline)
                time.sleep(0.01)
        except RuntimeError as error:
            raise PeerLost(f"the ranks did not meet: {explain_error(error)}") from error

    def check_abandoned(self) -> None:
        """Raise PeerLost if the control plane has ended this generation, for those that wait outside a collective."""
        reason = self._why_abandoned()
        if reason is not None:
            raise PeerLost(reason)

    def _check_wait(self, deadline: float) -> None:
        reason = self._why_abandoned()
        if reason is None and time.monotonic() > deadline:
            reason = f"not all of {self.size} ranks joined in time"
        if reason is not None:
            raise PeerLost(reason)

    def close(self) -> None:
        """Leave after a barrier: no rank tears down its connections while another still works (measured)."""
        self.barrier()
        self.abort()

    def abort(self) -> None:
        """Leave without waiting for the other ranks."""
        self._backend = None

    # ------------------------------------------------------------ collectives

    def sum(self, tensor: torch.Tensor) -> None:
        """Sum over all ranks, in place."""
        if self.size > 1 and direct_sums.is_small_sum(tensor, self.size):
            stacked, sent = direct_sums.direct_buffers(tensor, self.size)
            self._run_collective(lambda backend: backend.alltoall_base(stacked, sent, [], []))
            direct_sums.sum_rows(stacked, tensor)
        elif self.size > 1:
            self._run_collective(lambda backend: backend.allreduce([tensor]))

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same-shaped tensors of all ranks, stacked in rank order."""
        if self.size == 1:
            return tensor.unsqueeze(0)
        stacked = tensor.new_empty((self.size, *tensor.shape))
        parts = list(stacked.unbind(0))
        self._run_collective(lambda backend: backend.allgather([parts], [tensor.contiguous()]))
        return stacked

    def barrier(self) -> None:
        self.sum(torch.zeros(1, device=self.device))

    def broadcast(self, data: bytes | None, source: int) -> bytes:
        """The source's bytes on every rank."""
        if self.size == 1:
            return data or b""
        mine = data if self.rank == source and data is not None else b""
        size = torch.tensor([len(mine)], dtype=torch.int64, device=self.device)
        self._broadcast_tensor(size, source)
        if int(size.item()) == 0:
            return b""
        buffer = self._bytes(mine) if self.rank == source else self._empty(int(size.item()))
        self._broadcast_tensor(buffer, source)
        return mine if self.rank == source else buffer.cpu().numpy().tobytes()

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """The bytes (at least one) of every rank, in rank order, on rank 0; empty elsewhere."""
        if self.size == 1:
            return [data]
        sizes = self.gather(torch.tensor([len(data)], dtype=torch.int64, device=self.device)).flatten().tolist()
        if self.rank != 0:
            self._run_collective(lambda backend: backend.send([self._bytes(data)], 0, 0))
            return []
        parts = [data]
        for rank in range(1, self.size):
            buffer = self._empty(sizes[rank])
            self._receive(buffer, rank)
            parts.append(buffer.cpu().numpy().tobytes())
        return parts

    def _broadcast_tensor(self, tensor: torch.Tensor, source: int) -> None:
        options = c10d.BroadcastOptions()
        options.rootRank = source
        self._run_collective(lambda backend: backend.broadcast([tensor], options))

    def _receive(self, tensor: torch.Tensor, source: int) -> None:
        self._run_collective(lambda backend: backend.recv([tensor], source, 0))

    def _bytes(self, data: bytes) -> torch.Tensor:
        return torch.frombuffer(bytearray(data), dtype=torch.uint8).to(self.device)

    def _empty(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, device=self.device)

    def _run_collective(self, start: Callable[[Any], Any]) -> None:
        """Run one collective; raises PeerLost for every way in which it can fail."""
        begun_s = time.perf_counter()
        backend = self._backend
        if backend is None:
            raise PeerLost("the group is closed")
        try:
            work = start(backend)
            while True:
                try:
                    work.wait(_PATIENCE)
                    self.waited_s += time.perf_counter() - begun_s
                    return
                except RuntimeError:
                    if work.is_completed():
                        raise  # it failed; otherwise only this wait timed out
                reason = self._why_abandoned()
                if reason is not None:
                    _abandoned.append((backend, work))
                    raise PeerLost(reason)
        except RuntimeError as error:
            raise PeerLost(explain_error(error)) from error


def _backend(store: Any, rank: int, size: int, timeout: timedelta, device: torch.device) -> Any:
    """A process group of its own, not torch's global one, so that a failed generation leaves nothing behind in it."""
    mesh = c10d.PrefixStore("mesh", store)
    if device.type == "cuda":
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        return dist.ProcessGroupNCCL(mesh, rank, size, options)
    return dist.ProcessGroupGloo(mesh, rank, size, timeout)


_LOST = re.compile("connection (reset|closed|refused)|broken pipe|socket closed", re.IGNORECASE)
_LATE = re.compile("timed ?out", re.IGNORECASE)
_SOURCE = re.compile(r"\[\S+\.(cc|cpp|h|hpp):\d+\]\s*")


def is_peer_loss(error: BaseException) -> bool:
    """Whether torch raises this error when a peer is gone or silent."""
    text = str(error)
    return isinstance(error, dist.DistError) or bool(_LOST.search(text) or (_LATE.search(text) and "waiting" in text))


def explain_error(error: BaseException) -> str:
    """A collective's error in words for the job's log; torch names source files and ports instead."""
    text = " ".join(str(error).split())
    if _LOST.search(text):
        return "the connection to another rank is gone"
    if _LATE.search(text):
        return "another rank did not answer in time"
    return _SOURCE.sub("", text)[:200]
