"""Models growing batch sizes in Shockwave's workloads: gradient noise scale (GNS), or Accordion's critical regimes."""

from __future__ import annotations

SAMPLES = {
    "ResNet-18": 50_000, "ResNet-50": 100_000, "Transformer": 10_000, "LM": 59_675, "Recommendation": 117_907,
    "CycleGAN": 6_287, "A3C": 4,
}  # fmt: skip
"""Samples of an epoch, by model."""

LARGEST = {"ResNet-18": 256, "ResNet-50": 128, "Transformer": 128, "LM": 80, "Recommendation": 8192}
SMALLEST = {"ResNet-18": 16, "ResNet-50": 16, "Transformer": 16, "LM": 5, "Recommendation": 512}
SCALABLE = {name: size for name, size in LARGEST.items() if name != "Transformer"}

DOUBLES_AT: dict[tuple[str, int, int], tuple[int, ...]] = {
    ("ResNet-18", 16, 1): (31, 41, 51, 71), ("ResNet-18", 16, 2): (21, 31, 91, 111),
    ("ResNet-18", 16, 4): (11, 21, 81, 91), ("ResNet-18", 32, 1): (21, 31, 51), ("ResNet-18", 32, 2): (11, 21, 41),
    ("ResNet-18", 32, 4): (21, 31, 61), ("ResNet-18", 64, 1): (11, 31), ("ResNet-18", 64, 2): (21, 41),
    ("ResNet-18", 64, 4): (11, 61), ("ResNet-18", 128, 1): (11,), ("ResNet-18", 128, 2): (41,),
    ("ResNet-18", 128, 4): (11,), ("ResNet-50", 32, 2): (101, 111), ("ResNet-50", 32, 4): (131, 221),
    ("ResNet-50", 64, 1): (101,), ("ResNet-50", 64, 2): (81,), ("ResNet-50", 64, 4): (191,),
    ("LM", 5, 1): (31, 41, 61, 71), ("LM", 5, 2): (31, 51, 61, 71), ("LM", 5, 4): (11, 31, 71, 91),
    ("LM", 10, 1): (11, 21, 41), ("LM", 10, 2): (11, 31, 41), ("LM", 10, 4): (11, 31, 61), ("LM", 20, 1): (11, 41),
    ("LM", 20, 2): (31, 41), ("LM", 20, 4): (11, 61), ("LM", 40, 1): (11,), ("LM", 40, 2): (11,),
    ("LM", 40, 4): (61,), ("Recommendation", 512, 1): (21, 41, 71, 91), ("Recommendation", 1024, 1): (21, 51, 91),
    ("Recommendation", 2048, 1): (21, 41), ("Recommendation", 4096, 1): (41,),
}  # fmt: skip
"""Epochs at which the gradient noise lets the batch double, as measured: by model, first batch size and gang."""


def gns_batch(model: str, first: int, gang: int, epoch: int, epochs: int) -> int:
    """The batch size of one epoch; a last epoch beyond the first doubling falls back to the first size."""
    doublings = sum(at <= epoch for at in DOUBLES_AT.get((model, first, gang), ()))
    if doublings > 1 and epoch == epochs - 1:
        return first
    return min(first * 2**doublings, LARGEST.get(model, first)) if doublings else first


def accordion_batches(model: str, first: int, epochs: int) -> list[int]:
    """As a job's profile has it: large batches outside the critical regimes, never in the first 30 %."""
    if model not in SCALABLE:
        return [first] * epochs
    large = SCALABLE[model]
    return [first if epoch <= epochs * 0.3 or _critical(model, first, epoch) else large for epoch in range(epochs)]


def _critical(model: str, first: int, epoch: int) -> bool:
    if model == "Recommendation" and (60 <= epoch < 70 or 80 <= epoch < 90):
        return True
    return in_critical_regime(model, first, epoch)


def in_critical_regime(model: str, first: int, epoch: int) -> bool:
    """As a running job notices it."""
    match model:
        case "LM":
            return epoch < 10
        case "Recommendation":
            return epoch < {512: 30, 1024: 30, 2048: 40}.get(first, 10)
        case "ResNet-50":
            return epoch % 30 < 10
        case "ResNet-18":
            return epoch < (20 if first == 256 else 10) or 150 <= epoch < 160 or 250 <= epoch < 260
    return True


def profile(model: str, first: int, gang: int, mode: str, epochs: int) -> list[int]:
    """The batch size of each epoch, as the job's profile foretells it."""
    if mode == "accordion":
        return accordion_batches(model, first, epochs)
    if mode == "gns":
        return [gns_batch(model, first, gang, epoch, epochs) for epoch in range(epochs)]
    return [first] * epochs
