"""When a worker that trained has been silent for too long."""

from __future__ import annotations

LEAST_S = 30.0
STEPS = 10.0
GRACE_S = 5.0  # the gang itself gives up first, and says so


def limit_s(usual_step_s: float, asked_s: float | None) -> float:
    """Seconds without a word after which a joined worker counts as hung."""
    return (max(LEAST_S, STEPS * usual_step_s) if asked_s is None else asked_s) + GRACE_S


def usual_step_s(before: float, newest: float) -> float:
    """A slowly moving average that follows a slower step at once: killing a slow worker is worse than waiting."""
    return newest if newest > before else 0.9 * before + 0.1 * newest
