"""Makes hints for the operator of a platform that has just started: one line each, with the fix. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fairlead.agent.protocol import Capabilities
from fairlead.data_folder import VARIABLE, covers

FEW = 3


def startup_hints(means: Capabilities, tenants: Mapping[str, Sequence[str]], data: str | None) -> list[str]:
    """The hints, given the folders granted to each tenant and the operator's data folder, if any."""
    found = []
    if means.isolation != "sandbox" and not means.isolation_chosen:
        found.append(
            f"there is no sandbox here (isolation: {means.isolation}), so a second tenant will be refused; fix: "
            "install bubblewrap (apt install bubblewrap) and start again, or accept it: fairlead up --isolation none"
        )
    without = sorted(name for name, folders in tenants.items() if data and not covers(folders, data))
    if data and means.isolation == "sandbox" and (without or not tenants):
        named = ", ".join(without[:FEW]) + (f" and {len(without) - FEW} more" if len(without) > FEW else "")
        who = f"{named} may not read {VARIABLE} ({data})" if named else f"jobs read {VARIABLE} ({data}) by grant"
        first = f"fairlead tenant update {without[0]} --grant {data}" if without else (
            f"fairlead tenant create NAME --grant {data}")  # fmt: skip
        found.append(f"{who}; fix, if wanted: {first}")
    return found
