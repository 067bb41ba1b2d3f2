"""Published training throughputs of transformers: model, machines, how it was spread, what was reached (facts)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import msgspec

from fairlead.planning.plan import Plan, Schedule
from fairlead.planning.profiles import ModelProfile
from fairlead.planning.transformer import Transformer

MEGATRON = "Narayanan et al., SC'21 (arXiv:2104.04473), table 1; settings: Megatron-LM examples/sc21/run_table_1.sh"
FOUNDRY = "MosaicML llm-foundry, scripts/train/benchmarking/README.md (A100, 1600 Gbit/s between nodes)"
TITAN = "torchtitan, docs/performance.md (64 A100, Llama 2, FSDP2, no activation checkpointing)"
ALPA = "Alpa, benchmark/alpa/README.md (AWS p3.16xlarge, April 2022)"


@dataclass(frozen=True, slots=True)
class Published:
    """One point. ``value`` is TFLOP/s per device (with recomputation counted) or tokens per second and device."""

    name: str
    source: str
    model: Transformer
    batch: int
    device: str
    devices: int
    value: float
    unit: str
    data: int
    tensor: int = 1
    pipeline: int = 1
    microbatches: int = 1
    sharded: bool = False
    recompute: bool = False
    dtype: str = "bfloat16"

    def profile(self) -> ModelProfile:
        return msgspec.structs.replace(self.model.profile(self.batch), dtype=self.dtype)

    def plan(self, profile: ModelProfile) -> Plan:
        """As it was run there."""
        schedule: Schedule | None = "1f1b" if self.pipeline > 1 else None
        step = self.model.blocks // self.pipeline
        return Plan(
            data=self.data, tensor=self.tensor, pipeline=self.pipeline, microbatches=self.microbatches,
            sharded=self.sharded, recompute=self.recompute, schedule=schedule,
            sync="allreduce" if self.data > 1 else "none",
            buckets=not self.sharded and self.data > 1,
            cuts=tuple(f"blocks.{step * at}" for at in range(1, self.pipeline)),
            splits=tuple(split for layer in profile.layers for split in layer.splits) if self.tensor > 1 else (),
        )  # fmt: skip

    def reached(self, step_s: float) -> float:
        """A step's time in the unit of the publication."""
        if self.unit == "TFLOP/s":
            return self.model.training_flops(self.batch, recompute=self.recompute) / step_s / self.devices / 1e12
        return self.batch * self.model.sequence / step_s / self.devices


def _megatron(name: str, size: tuple[int, int, int], batch: int, devices: int, value: float, **how: Any) -> Published:
    model = Transformer(*size, fused=False)
    plain = Published(f"GPT {name}", MEGATRON, model, batch, "a100", devices, value, "TFLOP/s", data=32, recompute=True)
    return replace(plain, **how)


MPT = {  # blocks, width, heads; all with 50,432 words and sequences of 2,048
    "1B": (24, 2048, 16), "3B": (32, 2560, 32), "7B": (32, 4096, 32), "13B": (40, 5120, 40), "30B": (48, 7168, 64),
    "70B": (80, 8192, 64),
}  # fmt: skip


def _mpt(
    size: str, batch: int, device: str, devices: int, value: float, *, many: int = 1, recompute: bool = False
) -> Published:
    model = Transformer(*MPT[size], vocabulary=50432)
    return Published(
        f"MPT {size}", FOUNDRY, model, batch, device, devices, value, "tokens/s", data=devices, microbatches=many,
        sharded=True, recompute=recompute,
    )  # fmt: skip


POINTS = (
    _megatron("1.7B", (24, 2304, 24), 512, 32, 137),
    _megatron("3.6B", (30, 3072, 32), 512, 64, 138, tensor=2),
    _megatron("7.5B", (36, 4096, 32), 512, 128, 142, tensor=4),
    _megatron("18.4B", (40, 6144, 48), 1024, 256, 135, tensor=8, microbatches=4),
    _megatron("39.1B", (48, 8192, 64), 1536, 512, 138, tensor=8, pipeline=2, microbatches=12),
    _mpt("1B", 448, "a100", 8, 20513, many=4),
    _mpt("13B", 48, "a100", 8, 2262, many=3),
    _mpt("13B", 160, "a100-40", 16, 1993, recompute=True),
    _mpt("13B", 448, "a100-40", 32, 1998, recompute=True),
    _mpt("13B", 1024, "a100-40", 64, 1976, recompute=True),
    _mpt("13B", 2048, "a100-40", 128, 1972, recompute=True),
    Published(
        "Llama 2 13B", TITAN, Transformer(40, 5120, 40, sequence=4096, vocabulary=32000, tied=False), 128, "a100", 64,
        2162, "tokens/s", data=64, sharded=True,
    ),
    Published(
        "GPT 2.6B", ALPA, Transformer(32, 2560, 32, sequence=1024, fused=False), 32, "v100", 8, 37.6, "TFLOP/s", data=2,
        tensor=2, pipeline=2, microbatches=4, recompute=True, dtype="float16",
    ),
)  # fmt: skip

HELD_OUT = (
    _mpt("1B", 112, "h100", 8, 45455),
    _mpt("1B", 1280, "h100", 64, 44402),
    _mpt("3B", 480, "h100", 16, 24142, many=3),
    _mpt("3B", 576, "h100", 32, 23021, many=3),
    _mpt("3B", 1152, "h100", 64, 22525, many=3),
    _mpt("7B", 48, "h100", 8, 10643),
    _mpt("13B", 16, "h100", 8, 4792),
    _mpt("13B", 64, "h100", 32, 4811),
    _mpt("13B", 128, "h100", 64, 4800),
    _mpt("30B", 480, "h100", 16, 2263, many=3, recompute=True),
    _mpt("30B", 1344, "h100", 32, 2308, many=3, recompute=True),
    _mpt("70B", 2048, "h100", 64, 1039, many=4, recompute=True),
)
"""Looked up after the figures of all devices had been set, and never used to set any: an independent test."""
