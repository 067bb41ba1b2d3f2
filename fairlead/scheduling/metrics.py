"""The figures every run reports, as formulas: TT, RU, S, TP, FI, FRT and SSR of REQUIREMENTS.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence


def jain(values: Iterable[float]) -> float:
    """Fairness index FI = (Σx)² / (n·Σx²): 1 when all are served alike, 1/n when one has everything.

    Nobody served, or nobody there, counts as fair.
    """
    xs = [float(value) for value in values]
    largest = max((abs(x) for x in xs), default=0.0)
    if largest == 0.0:
        return 1.0
    scaled = [x / largest for x in xs]  # so that neither tiny nor huge amounts under- or overflow when squared
    return sum(scaled) ** 2 / (len(scaled) * sum(x * x for x in scaled))


def weighted_jain(amounts: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """FI of what each tenant got for its weight; tenants without a weight are left out."""
    return jain(amount / weights[name] for name, amount in sorted(amounts.items()) if weights.get(name, 0.0) > 0)


def training_time(start_s: float, end_s: float) -> float:
    """TT = T_end − T_start, in seconds."""
    return max(0.0, end_s - start_s)


def utilisation(used: Sequence[float], capacity: float) -> float:
    """RU = ΣU_i / (n·C): the mean of n uses over what was there to use."""
    if not used or capacity <= 0:
        return 0.0
    return sum(used) / (len(used) * capacity)


def utilisation_over_time(busy_device_s: float, devices: float, span_s: float) -> float:
    """RU from the usage ledger: device seconds used over those there were."""
    return utilisation([busy_device_s], devices * span_s)


def scalability(time_base_s: float, time_scaled_s: float) -> float:
    """S = P_base / P_scaled: near 1 when work and devices grow together and the time stays the same."""
    return time_base_s / time_scaled_s if time_scaled_s > 0 else 0.0


def throughput(count: float, seconds: float) -> float:
    """TP = N / TT: samples (or jobs) per second."""
    return count / seconds if seconds > 0 else 0.0


def recovery_time(failure_s: float, recovered_s: float) -> float:
    """FRT = T_recover − T_failure, in seconds."""
    return max(0.0, recovered_s - failure_s)


def sla_satisfaction(kept: int, promised: int) -> float:
    """SSR = N_compliant / N_total; without promises none was broken."""
    return kept / promised if promised else 1.0


def sla_kept(deadline_s: float | None, actual_s: float | None, now_s: float) -> bool | None:
    """Whether one promise was kept; None while that is open, or if there was none."""
    if deadline_s is None:
        return None
    if actual_s is None:
        return False if now_s > deadline_s else None
    return actual_s <= deadline_s
