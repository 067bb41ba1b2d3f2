"""Reports fairness between tenants as the policy maintains it (M7).

Only the platform team sees names. A tenant sees its own ratio and what the correction means for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection

from fairlead.control.store import events
from fairlead.views.reports import FairnessView

BEGINS, ENDS = "fairness-correcting", "fairness-restored"


def record_fairness_events(
    connection: Connection, before: Mapping[str, Any], after: Mapping[str, Any], now_s: float
) -> None:
    """Write events for the platform and each tenant concerned when the policy starts or stops correcting."""
    was, is_ = before.get("fairness", {}), after.get("fairness", {})
    if not is_ or bool(was.get("corrects", False)) == is_["corrects"]:
        return
    begins = bool(is_["corrects"])
    found = is_ if begins else was
    figures = {"index": is_["index"], "threshold": is_["threshold"], "within_s": is_["within_s"]}
    kind, text = (BEGINS, is_["text"]) if begins else (ENDS, _restored_text(is_))
    behind, ahead = found.get("behind", {}), found.get("ahead", [])
    events.append(connection, time_s=now_s, kind=kind, text=text, facts=figures | {"behind": behind, "ahead": ahead})
    for name in sorted({*behind, *ahead}):
        own = f"tenant {name}: {_text_for_tenant(is_, name) if begins else text}"
        events.append(connection, time_s=now_s, kind=kind, text=own, tenant=name, facts=figures)


def fairness_view(memory: Mapping[str, Any] | None, tenant: str | None) -> FairnessView | None:
    """The state of fairness after the last round as this tenant may see it; None: the platform team's view."""
    found = (memory or {}).get("fairness")
    if not found:
        return None
    behind = {name: ratio for name, ratio in found["behind"].items() if tenant in (None, name)}
    text = found["text"] if tenant is None or not found["corrects"] else _text_for_tenant(found, tenant)
    return FairnessView(
        index=found.get("now", found["index"]), lasting=found["index"], threshold=found["threshold"],
        corrects=found["corrects"], behind=behind, text=text,
    )  # fmt: skip


def _text_for_tenant(found: Mapping[str, Any], tenant: str) -> str:
    """What the correction means for one tenant, without naming others."""
    low = f"the fairness index between tenants is {found['index']:.2f}"
    within = f"within {found['within_s'] / 60:.0f} minutes"
    if tenant in found["behind"]:
        return f"{low}, and this tenant got {found['behind'][tenant]:.0%} of its due: it is compensated {within}"
    if tenant in found["ahead"]:
        return (
            f"{low}, and this tenant got more than its due: others are compensated {within}, so it gets less until then"
        )
    return f"{low}: other tenants are compensated {within}"


def _restored_text(found: Mapping[str, Any]) -> str:
    hours = found["within_s"] / 3600
    return (
        f"the fairness index between tenants is {found['index']:.2f} again: tenants are compensated within "
        f"{hours:g} hours, as usual"
    )
