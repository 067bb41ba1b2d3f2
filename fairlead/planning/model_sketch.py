"""Makes a coarse profile from the first passes of a model: one layer that runs only as whole copies."""

from __future__ import annotations

from typing import Protocol

from fairlead.planning.profiles import Calibration, Layer, ModelProfile

STATE_BYTES = 8.0
COPIED_BYTES_PER_S = 5e9


class Glance(Protocol):
    """Timings of the first passes; :class:`fairlead.wire.Glance` implements it."""

    @property
    def fixed_s(self) -> float: ...

    @property
    def sample_s(self) -> float: ...

    @property
    def kept_bytes(self) -> float: ...


def sketch_profile(parameters: int, batch_size: int, samples: int, seen: Glance) -> ModelProfile:
    """A profile to compare one process with replicas; assumes an optimiser state as large as Adam's."""
    update_s = parameters * (8.0 + 2 * STATE_BYTES) / COPIED_BYTES_PER_S
    return ModelProfile(
        layers=(Layer(name="model", parameters=parameters, activation_bytes=seen.kept_bytes),),
        batch_size=batch_size, samples=samples, copies_only=True, state_bytes=STATE_BYTES,
        working_bytes=seen.kept_bytes / 4,
        calibration=Calibration(
            device="cpu", fixed_s=seen.fixed_s, sample_s=seen.sample_s, optimizer_s=update_s
        ),
    )  # fmt: skip
