"""What measured steps teach about a model: corrections of its predicted times, by kind of plan."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from msgspec.structs import replace

from fairlead.planning.profiles import ALL_KINDS, Hardware, ModelProfile, correction

MOST, LEAST = 50.0, 0.02
"""Whatever is measured beyond this says something about an accident, not about the model."""


PREDICTABLE = 16.0
"""A prediction that is off by more does not know what the time goes into; a crowded machine alone may do less."""


def with_ratio(seen: Mapping[str, float], kind: str, ratio: float) -> dict[str, float]:
    """What was seen, with one more of this kind: the correction that would have predicted what was measured.

    A known one moves half of the way, so that one odd run does not rule.
    """
    bounded = min(MOST, max(LEAST, ratio))
    known = seen.get(kind)
    return {**seen, kind: bounded if known is None else (known * bounded) ** 0.5}


def is_predictable(seen: Mapping[str, float]) -> bool:
    """Whether predictions are near enough to plan by: else what takes the time is nothing that a profile shows.

    A model that waits for files or other machines is such a one; how it gets faster can only be tried. Where computing
    was measured by itself, that decides: exchanges on a crowded machine may take any time.
    """
    judged = [seen[ALL_KINDS]] if ALL_KINDS in seen else list(seen.values())
    return all(1 / PREDICTABLE <= ratio <= PREDICTABLE for ratio in judged)


def correction_factors(model: ModelProfile, hardware: Hardware, seen: Mapping[str, float]) -> dict[str, float]:
    """The corrections that follow: what all kinds have in common apart, so that no ranking depends on who was measured.

    A machine that is twice as slow as it seemed slows down all plans, also those that nobody has run yet: the time of
    computing alone says how slow it is (``EVERY``), if somebody measured that, else what all kinds share.
    """
    if not seen:
        return {}
    plain = uncorrected(model)
    usual = {name: correction(plain, hardware.devices.values(), name) for name in seen}
    common = seen[ALL_KINDS] if ALL_KINDS in seen else median(seen[name] / usual[name] for name in seen)
    return {ALL_KINDS: common, **{name: ratio / common for name, ratio in seen.items() if name != ALL_KINDS}}


def uncorrected(model: ModelProfile) -> ModelProfile:
    return _with_factors(model, {})


def corrected(model: ModelProfile, hardware: Hardware, seen: Mapping[str, float]) -> ModelProfile:
    """The model as one should reckon with it; one that was never timed is taken as it is."""
    return _with_factors(model, correction_factors(model, hardware, seen))


def _with_factors(model: ModelProfile, known: Mapping[str, float]) -> ModelProfile:
    if model.calibration is None:
        return model
    return replace(model, calibration=replace(model.calibration, factors=dict(known)))
