"""Learns corrections of predicted step times from measured steps, by kind of plan."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from msgspec.structs import replace

from fairlead.planning.profiles import ALL_KINDS, Hardware, ModelProfile, correction

MOST, LEAST = 50.0, 0.02
"""Bounds of a measured ratio; beyond them it reflects an accident, not the model."""


PREDICTABLE = 16.0
"""A ratio beyond this (or its inverse) means that the profile misses the main cost; a busy machine explains less."""


def with_ratio(seen: Mapping[str, float], kind: str, ratio: float) -> dict[str, float]:
    """The ratios by kind (measured / predicted) with a new one added.

    A known ratio moves half of the way (geometrically), so that one odd run does not dominate.
    """
    bounded = min(MOST, max(LEAST, ratio))
    known = seen.get(kind)
    return {**seen, kind: bounded if known is None else (known * bounded) ** 0.5}


def is_predictable(seen: Mapping[str, float]) -> bool:
    """True if predictions are close enough for planning. Else the time goes into something that no profile shows.

    An example is a model that waits for files or other machines. If compute was measured separately, it alone counts,
    because exchanges on a busy machine may take any time.
    """
    judged = [seen[ALL_KINDS]] if ALL_KINDS in seen else list(seen.values())
    return all(1 / PREDICTABLE <= ratio <= PREDICTABLE for ratio in judged)


def correction_factors(model: ModelProfile, hardware: Hardware, seen: Mapping[str, float]) -> dict[str, float]:
    """Correction factors: one common to all kinds, and one per kind relative to it.

    A machine that is half as fast as assumed slows down all plans, also those not yet run. So the ranking must not
    depend on which kinds were measured: the common factor (``ALL_KINDS``) is the measured one of compute alone, or
    else the median over kinds.
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
    """The model with corrections from the measured ratios; a model without calibration is unchanged."""
    return _with_factors(model, correction_factors(model, hardware, seen))


def _with_factors(model: ModelProfile, known: Mapping[str, float]) -> ModelProfile:
    if model.calibration is None:
        return model
    return replace(model, calibration=replace(model.calibration, factors=dict(known)))
