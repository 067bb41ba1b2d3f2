"""Converts the memory that a round hands to the next one to plain values that can be stored, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple
from typing import Any

from fairlead.scheduling.market.estimates import JobEstimate
from fairlead.scheduling.market.tenants import Account

MOST_CLASSES = 200
"""At most so many classes of finished jobs are stored; the oldest are dropped first."""


def memory_to_plain(memory: Mapping[str, Any]) -> dict[str, Any]:
    """The memory of a round in numbers, strings, lists and maps by string."""
    kept = dict(memory)
    if "accounts" in kept:
        kept["accounts"] = {name: list(astuple(one)) for name, one in kept["accounts"].items()}
    if "seen" in kept:
        kept["seen"] = {name: list(one) for name, one in kept["seen"].items()}
    if "finished" in kept:
        last = list(kept["finished"].items())[-MOST_CLASSES:]
        kept["finished"] = {kind: [list(one) for one in past] for kind, past in last}
    return kept


def memory_from_plain(stored: Mapping[str, Any]) -> dict[str, Any]:
    """The memory as the policy reads it, from what was stored."""
    memory = dict(stored)
    if "accounts" in memory:
        memory["accounts"] = {name: Account(*one) for name, one in memory["accounts"].items()}
    if "seen" in memory:
        memory["seen"] = {name: JobEstimate(*one) for name, one in memory["seen"].items()}
    if "finished" in memory:
        finished = memory["finished"].items()
        memory["finished"] = {kind: tuple(JobEstimate(*one) for one in past) for kind, past in finished}
    return memory


def durable_memory(memory: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """The part that must survive the end of the process: promised seats, the last turns, and whether tenants were told
    that fairness is being corrected."""
    given = {name: seats for name, (seats, _since_s) in memory.get("wanted", {}).items()}
    return given, memory.get("turned"), memory.get("fairness", {}).get("corrects", False)
