"""Computes how long a training worker may stay silent before it counts as hung; the leader and the agents share the
rule."""

from __future__ import annotations

LEAST_S = 30.0
STEPS = 10.0


def limit_s(usual_step_s: float, asked_s: float | None) -> float:
    """The limit the job asked for, else ten of its usual steps, and never less than half a minute."""
    return asked_s or max(LEAST_S, STEPS * usual_step_s)


def usual_step_s(before: float, newest: float) -> float:
    """A slow moving average that follows a slower step at once: killing a slow worker is worse than waiting."""
    return newest if newest > before else 0.9 * before + 0.1 * newest
