"""Names jobs in reasons, and hides the names that a reader may not see.

A sentence names a job in one form only, ``job small-ogkdid of tenant nlp``, so that its tenant can be recognised when
the sentence is shown, even in sentences stored long ago. Facts hold the value itself. A tenant reads the names of its
own jobs; other tenants' jobs appear without their names. Readers who may see all tenants read everything.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
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


def mentioned(jobs: Sequence[MentionedJob]) -> str:
    """At most three of these jobs by name."""
    return f"{', '.join(map(str, jobs[:3]))}{' and others' if len(jobs) > 3 else ''}"


def redact_text(text: str, tenant: str | None) -> str:
    """The sentence without the names of other tenants' jobs; with ``tenant`` None unchanged."""
    if tenant is None or " of tenant " not in text:
        return text
    return _NAMED.sub(lambda found: _own(found[0], tenant), text)


def redact_facts(facts: Mapping[str, Any], tenant: str | None) -> dict[str, Any]:
    """The same for the facts of a reason, as plain values."""
    return {name: _plain(value, tenant) for name, value in facts.items()}


def _own(names: str, tenant: str) -> str:
    """A list of names: the tenant's own unchanged, then the number of the others."""
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
