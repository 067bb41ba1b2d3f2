"""Jobs that a reason names: a reason is read by one tenant, and what it names may be another's.

A sentence names a job in one way only, ``job small-ogkdid of tenant nlp``, so that who shows the sentence can tell
whose it is, in those that were stored long ago, too. Facts hold the value itself. A tenant is told the names of its own
jobs; of all others it learns that they are there, not what they are. Who sees all tenants is told everything.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

ANOTHER_TENANTS_JOB = "a job of another tenant"

_ONE = r"job [-\w]+ of tenant [-\w]+"
_NAMED = re.compile(rf"\b(?:waiting )?{_ONE}(?:, {_ONE})*")


class MentionedJob(Struct, frozen=True, gc=False):
    """A job in a reason about another job."""

    job: str
    tenant: str

    def __str__(self) -> str:
        return f"job {self.job} of tenant {self.tenant}"


def redact_text(text: str, tenant: str | None) -> str:
    """The sentence as this tenant may read it; None: as it is."""
    if tenant is None or " of tenant " not in text:
        return text
    return _NAMED.sub(lambda found: _own(found[0], tenant), text)


def redact_facts(facts: Mapping[str, Any], tenant: str | None) -> dict[str, Any]:
    """The same for what a reason rests on, as plain values."""
    return {name: _plain(value, tenant) for name, value in facts.items()}


def _own(names: str, tenant: str) -> str:
    """One or several names in a row: the tenant's own as they are, then how many others there are."""
    every = names.split(", ")
    own = [name for name in every if name.endswith(f" of tenant {tenant}")]
    others = len(every) - len(own)
    if not others:
        return names
    if others > 1:
        return ", ".join([*own, f"{others} jobs of other tenants"])
    waits = "a waiting job of another tenant" if every[0].startswith("waiting ") and not own else ANOTHER_TENANTS_JOB
    return ", ".join([*own, waits])


def _plain(value: Any, tenant: str | None) -> Any:
    if value is None or isinstance(value, int | float):  # most are, and a page has hundreds
        return value
    if isinstance(value, MentionedJob):
        return value.job if tenant in (None, value.tenant) else ANOTHER_TENANTS_JOB
    if isinstance(value, str):
        return redact_text(value, tenant)
    if isinstance(value, Mapping):
        return redact_facts(value, tenant)
    return [_plain(one, tenant) for one in value] if isinstance(value, list | tuple) else value
