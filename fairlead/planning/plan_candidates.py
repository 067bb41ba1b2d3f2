"""Enumerates candidate plans without cuts: degrees, micro-batches, synchronisation, members."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

from fairlead.planning.plan import Compression, Plan, Schedule, Sync
from fairlead.planning.profiles import Hardware, ModelProfile

SMALL_GANG = 8
"""Up to this many workers, every gang size is tried, and tensor groups may cross nodes."""

MOST_MICROBATCHES = 512
MOST_WORKERS = 1 << 16

SMALL_BUCKET = 1 << 20
"""Bucket bytes for slow links: with torch's own bucket size only large models send before the backward pass ends."""

STALENESS = (2, 4)
"""Candidate staleness bounds: suit a worker that is three or five times as slow as the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A plan without its cuts and shares."""

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    microbatches: int = 1
    schedule: Schedule | None = None
    chunks: int = 1
    sync: Sync = "none"
    buckets: bool = False
    bucket_bytes: int = 0
    period: int = 1
    staleness: int = 0
    group: int = 1
    compression: Compression = "none"
    sharded: bool = False
    recompute: bool = False
    members: tuple[int, ...] = ()

    @property
    def workers_used(self) -> int:
        return self.data * self.tensor * self.pipeline

    def plan(self, model: ModelProfile, cuts: tuple[str, ...] = (), members: tuple[int, ...] | None = None) -> Plan:
        """The plan of this shape, completed with what the model determines (splits, batch norm)."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        if members is not None:
            values["members"] = members
        splits = tuple(split for layer in model.layers for split in layer.splits) if self.tensor > 1 else ()
        norms = model.batch_norm > 0 and (self.microbatches > 1 or self.sync in ("local-sgd", "parameter-server"))
        return Plan(**values, splits=splits, cuts=cuts, local_statistics=norms)


def is_supported(shape: Shape) -> bool:
    """True if Fairlead can run such a plan; others exist only on paper."""
    return shape.sync != "parameter-server" or not shape.recompute


def _is_whole_copies(shape: Shape) -> bool:
    return shape.tensor == shape.pipeline == 1 and not shape.sharded and not shape.buckets


def shapes(
    model: ModelProfile, hardware: Hardware, *, on_paper: bool = True, allow_idle: bool = True
) -> Iterator[Shape]:
    """All shapes, each once. ``on_paper`` includes those that Fairlead cannot run yet.

    ``allow_idle`` includes those that leave workers idle.
    """
    all_workers = [tuple(range(len(hardware.seats)))]
    for shape in _all_shapes(model, hardware, worker_selections(hardware) if allow_idle else all_workers):
        if (on_paper or is_supported(shape)) and (not model.copies_only or _is_whole_copies(shape)):
            yield shape


def _all_shapes(model: ModelProfile, hardware: Hardware, chosen: Sequence[tuple[int, ...]]) -> Iterator[Shape]:
    for members in chosen:
        used = len(members)
        for tensor in _tensor_degrees(model, hardware, members):
            for pipeline in _divisors(used // tensor):
                if pipeline > len(model.layers):
                    continue
                data = used // tensor // pipeline
                if data > model.batch_size:
                    continue
                uses_all = members == tuple(range(len(hardware.seats)))
                base = Shape(data=data, tensor=tensor, pipeline=pipeline, members=() if uses_all else members)
                for shape in _with_sync(model, hardware, base, members):
                    yield from _with_microbatches(model, shape)


def worker_selections(hardware: Hardware) -> list[tuple[int, ...]]:
    """Candidate sets of workers: all, the fastest few, or those of one node. Ordered by node, then as given."""
    count = len(hardware.seats)
    power = [seat.speed * hardware.devices[seat.device].flops("float32") for seat in hardware.seats]
    nodes: dict[str, list[int]] = {}
    for worker, seat in enumerate(hardware.seats):
        nodes.setdefault(seat.node, []).append(worker)
    natural = {worker: place for place, worker in enumerate(worker for each in nodes.values() for worker in each)}
    powers = [2**k for k in range(count.bit_length()) if 2**k < count]
    sizes = list(range(1, count + 1)) if count <= SMALL_GANG else [*powers, count]
    swift = sorted(natural, key=lambda worker: (-power[worker], natural[worker]))
    found: dict[tuple[int, ...], None] = {}
    for size in sizes:
        found[tuple(sorted(swift[:size], key=natural.__getitem__))] = None
        within = [sorted(each, key=lambda w: (-power[w], w))[:size] for each in nodes.values() if len(each) >= size]
        if within:
            found[tuple(max(within, key=lambda each: sum(power[w] for w in each)))] = None
    return list(found)


def _tensor_degrees(model: ModelProfile, hardware: Hardware, members: Sequence[int]) -> list[int]:
    found = []
    for degree in _divisors(len(members)):
        if degree > 1 and (model.tensor_limit % degree or not any(layer.splits for layer in model.layers)):
            continue
        near = all(
            hardware.level(members[at : at + degree]) == 0 for at in range(0, len(members), degree)
        )  # across nodes every layer would wait for its exchanges
        if degree == 1 or near or len(hardware.seats) <= SMALL_GANG:
            found.append(degree)
    return found


def _with_sync(model: ModelProfile, hardware: Hardware, base: Shape, members: Sequence[int]) -> Iterator[Shape]:
    """The shape with every way of synchronising its replicas."""
    if base.data == 1:
        yield base
        return
    cards = all(hardware.device(worker).backend == "nccl" for worker in members)
    pure = base.data == base.workers_used
    if not cards or not pure:  # one piece after the backward pass is cheapest where the CPU both computes and sends
        yield replace(base, sync="allreduce")
    if pure:  # parts of a model are summed in one piece (fairlead/training/parallel/fsdp.py, pipelines.py)
        yield replace(base, sync="allreduce", buckets=True)
    if not cards and pure and model.parameters * model.gradient_bytes > 2 * SMALL_BUCKET:
        yield replace(base, sync="allreduce", buckets=True, bucket_bytes=SMALL_BUCKET)
    yield replace(base, sync="allreduce", sharded=True)
    ring = _replicas_per_node(hardware, base, members)
    if ring:
        yield replace(base, sync="hierarchical", group=ring)
    if not model.exact and pure:
        for period in (4, 8, 16):
            yield replace(base, sync="local-sgd", period=period)
        if not model.copies_only:
            for staleness in STALENESS:
                yield replace(base, sync="parameter-server", staleness=staleness)
        yield replace(base, sync="allreduce", compression="bf16")
        yield replace(base, sync="allreduce", compression="int8")


def _replicas_per_node(hardware: Hardware, base: Shape, members: Sequence[int]) -> int | None:
    """Replicas per node, if equal on all nodes, more than one, and on more than one node; else None."""
    if base.pipeline > 1 or base.tensor > 1:
        return None
    nodes = [hardware.seats[worker].node for worker in members]
    sizes = {nodes.count(node) for node in set(nodes)}
    size = sizes.pop()
    return size if not sizes and 1 < size < base.data else None


def _with_microbatches(model: ModelProfile, shape: Shape) -> Iterator[Shape]:
    """The shape with every schedule and every number of micro-batches that divides the batch."""
    if shape.pipeline == 1:
        yield from _with_accumulation(model, shape)
        return
    if model.batch_size % shape.data or (model.batch_norm and model.exact):
        return
    samples = model.batch_size // shape.data
    for many in _divisors(samples, MOST_MICROBATCHES):
        if many & (many - 1) and many % shape.pipeline:
            continue
        for recompute in (False, True):
            cut = replace(shape, microbatches=many, recompute=recompute)
            if many == 1:
                continue  # no two stages would work at the same time
            if many < shape.pipeline:
                yield replace(cut, schedule="gpipe")  # else 1F1B is as fast and needs less memory
                continue
            yield replace(cut, schedule="1f1b")
            if not recompute:  # zero-bubble walks a stage's graph twice
                yield replace(cut, schedule="zero-bubble")
            if 2 * shape.pipeline <= len(model.layers) and many % shape.pipeline == 0:
                yield replace(cut, schedule="interleaved", chunks=2)


def _with_accumulation(model: ModelProfile, shape: Shape) -> Iterator[Shape]:
    """The shape with gradient accumulation; without a pipeline, micro-batches only save memory."""
    many = 1
    while many == 1 or many * shape.data <= model.batch_size:
        for recompute in (False, True):
            yield replace(shape, microbatches=many, recompute=recompute)
        if model.batch_norm and model.exact:
            return
        many *= 2


def _divisors(number: int, most: int = MOST_WORKERS) -> list[int]:
    """Divisors up to ``most``, because the batch size is untrusted input."""
    return [each for each in range(1, min(number, most) + 1) if number % each == 0]
