"""The Plan: how one training is distributed over workers; planner, scheduler and workers share it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from fairlead.errors import InvalidSpec

Schedule = Literal["gpipe", "1f1b", "interleaved", "zero-bubble"]
Sync = Literal["none", "allreduce", "hierarchical", "local-sgd", "parameter-server"]
Compression = Literal["none", "bf16", "int8"]
Split = Literal["column", "row", "column-gathered", "vocabulary", "heads"]
"""How a layer is split over the tensor group: by outputs (left split, or gathered at once), inputs, rows, or attention
heads (of a module that counts them itself: only that number)."""

HEADS = ("heads", "num_heads", "n_heads", "n_head", "num_attention_heads")
"""Attribute names for a module's number of heads."""


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Degrees multiply to the workers used. Worker ``(p, d, t)`` is number ``(p * data + d) * tensor + t``.

    ``members`` lists the workers that take these numbers; empty: all, in order.
    ``cuts`` names the submodule at which each stage but the first begins; with ``chunks`` stages per worker there are
    ``pipeline * chunks`` stages, and worker ``p`` has stages ``p, p + pipeline, ...`` (all in V order for zero-bubble
    with two chunks: ``p`` and ``2 * pipeline - 1 - p``).
    """

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    microbatches: int = 1
    schedule: Schedule | None = None  # only with pipeline stages
    chunks: int = 1  # stages per worker
    cuts: tuple[str, ...] = ()
    splits: tuple[tuple[str, Split], ...] = ()  # (submodule, how), only with tensor > 1
    sync: Sync = "none"  # of the gradients, over the data dimension
    buckets: bool = False  # exchanged in buckets during the backward pass (DDP), else in one piece after it
    bucket_bytes: int = 0  # size of a bucket; 0: the default of torch
    period: int = 1  # local-sgd: steps between two averages
    staleness: int = 0  # parameter-server: steps that a worker may be ahead of the slowest
    group: int = 1  # hierarchical: workers of the inner ring, which are neighbours in the data dimension
    compression: Compression = "none"
    sharded: bool = False  # parameters, gradients and optimiser state over the data dimension (FSDP2)
    shares: tuple[float, ...] = ()  # part of the global batch of each of ``data``, summing to 1; empty: equal
    recompute: bool = False  # recompute activations in the backward pass
    local_statistics: bool = False  # batch norm sees a micro-batch, not the global batch
    members: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        wrong = find_contradiction(self)
        if wrong:
            raise InvalidSpec(wrong, field="plan")

    @property
    def workers_used(self) -> int:
        return self.data * self.tensor * self.pipeline

    @property
    def stages(self) -> int:
        return self.pipeline * self.chunks

    @property
    def exact(self) -> bool:
        """True if the plan gives the results of one process, up to rounding."""
        waits = self.sync != "local-sgd" and self.staleness == 0
        return waits and self.compression == "none" and not self.local_statistics

    @property
    def id(self) -> str:
        """Short and readable: ``single``, ``ddp``, ``dp4``, ``fsdp2·tp2``, ``pp2·m8·1f1b``."""
        return "·".join([*self._degrees(), *self._pipelining(), *self._synchronising()])

    def worker(self, stage: int, replica: int, part: int) -> int:
        """The worker that holds this tensor part of this stage of this replica."""
        number = (stage * self.data + replica) * self.tensor + part
        return self.members[number] if self.members else number

    def _degrees(self) -> list[str]:
        if self.workers_used == 1:
            return ["single"]
        kind = "fsdp" if self.sharded else "ddp" if self.buckets else "dp"
        if kind == "ddp" and self.data == self.workers_used and not self.members and not self.bucket_bytes:
            return ["ddp"]  # plain DDP on all workers
        data = [f"{kind}{self.data}"] if self.data > 1 else []
        return data + ([f"tp{self.tensor}"] if self.tensor > 1 else [])

    def _pipelining(self) -> list[str]:
        if self.pipeline == 1:
            return [f"m{self.microbatches}"] if self.microbatches > 1 else []
        chunks = [f"v{self.chunks}"] if self.chunks > 1 else []
        return [f"pp{self.pipeline}", f"m{self.microbatches}", str(self.schedule), *chunks]

    def _synchronising(self) -> list[str]:
        modes = {
            "hierarchical": f"ring{self.group}", "local-sgd": f"local{self.period}",
            "parameter-server": f"ps{self.staleness}",
        }  # fmt: skip
        return [
            *([modes[self.sync]] if self.sync in modes else []),
            *([f"{self.bucket_bytes >> 10}k"] if self.bucket_bytes else []),
            *([self.compression] if self.compression != "none" else []),
            *(["uneven"] if self.shares and len(set(self.shares)) > 1 else []),
            *(["recompute"] if self.recompute else []),
        ]

    def to_plain(self) -> dict[str, Any]:
        """As plain values, for JSON and messages; :func:`plan_from` reads them."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain


def plan_from(plain: Mapping[str, Any]) -> Plan:
    """Read a plan from plain values; refuses a contradictory one."""
    try:
        return msgspec.convert(dict(plain), Plan)
    except msgspec.ValidationError as error:
        raise InvalidSpec(str(error), field="plan") from None


def find_contradiction(plan: Plan) -> str | None:
    """Why these values contradict each other; None for a valid plan."""
    if min(plan.data, plan.tensor, plan.pipeline, plan.microbatches, plan.chunks, plan.period, plan.group) < 1:
        return "degrees and counts are whole numbers above 0"
    return _pipeline_contradiction(plan) or _replica_contradiction(plan) or _worker_contradiction(plan)


def _pipeline_contradiction(plan: Plan) -> str | None:
    if (plan.pipeline > 1) != (plan.schedule is not None):
        return "a schedule belongs to pipeline stages, and they need one"
    if plan.pipeline == 1 and plan.chunks > 1:
        return "several stages per worker need a pipeline"
    if plan.pipeline > 1 and len(plan.cuts) != plan.stages - 1:
        return f"{plan.stages} stages have {plan.stages - 1} cuts, not {len(plan.cuts)}"
    if plan.pipeline == 1 and plan.cuts:
        return "cuts need a pipeline"
    if plan.pipeline > 1 and plan.schedule != "gpipe" and plan.microbatches < plan.pipeline:
        return f"{plan.schedule} needs at least as many micro-batches as stages"
    return None


def _replica_contradiction(plan: Plan) -> str | None:
    if (plan.data > 1) != (plan.sync != "none"):
        return "replicas must be synchronised, and only they"
    if plan.sharded and (plan.data == 1 or plan.sync not in ("allreduce", "hierarchical")):
        return "only replicas that work in step can share parameters"
    if plan.bucket_bytes and not plan.buckets:
        return "buckets that have a size must be used"
    if plan.staleness < 0 or (plan.staleness and plan.sync != "parameter-server"):
        return "staleness belongs to parameter servers"
    if plan.sync == "hierarchical" and (plan.data % plan.group or not 1 < plan.group < plan.data):
        return "inner rings are equal parts of the replicas"
    return None


def _worker_contradiction(plan: Plan) -> str | None:
    if plan.shares and (len(plan.shares) != plan.data or min(plan.shares) < 0 or abs(sum(plan.shares) - 1) > 1e-6):
        return "shares are one part of the batch per replica, and sum to 1"
    if plan.members and (len(set(plan.members)) != plan.workers_used or len(plan.members) != plan.workers_used):
        return f"{plan.workers_used} different workers take part, not {len(plan.members)}"
    if (plan.tensor > 1) != bool(plan.splits):
        return "tensor parallelism says which layers it cuts"
    return None


SINGLE = Plan()


def ddp_plan(workers: int) -> Plan:
    """Plain DDP on all workers: the baseline of every comparison."""
    return Plan(data=workers, sync="allreduce", buckets=True) if workers > 1 else SINGLE
