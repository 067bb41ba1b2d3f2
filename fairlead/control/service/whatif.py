"""Exports the state by which the policy decides, for what-if simulations elsewhere."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import msgspec

from fairlead.control.identity.access import require
from fairlead.control.records import Role, Token
from fairlead.control.service.core import Verbs
from fairlead.scheduling.job_speed import expected_work_left, length_known
from fairlead.scheduling.round_memory import memory_to_plain
from fairlead.scheduling.state import ClusterState
from fairlead.views.jobs import StateView

SHOWN_MEMORY = ("accounts", "at_s")
"""The exported part of the policy's memory: what tenants are owed, and since when."""


class WhatIfVerbs(Verbs):
    """Access to the policy's state."""

    async def state(self, who: Token) -> StateView:
        """All nodes, tenants and jobs as the policy sees them now; admins only, as it covers all tenants."""
        require(who, Role.ADMIN, "see the state of all tenants")
        seen = await self._current_state()
        return await asyncio.to_thread(_state_view, seen)


def _state_view(state: ClusterState) -> StateView:
    left = expected_work_left(state, state.jobs)
    owed = memory_to_plain({name: state.memory[name] for name in SHOWN_MEMORY if name in state.memory})
    told: dict[str, Any] = msgspec.to_builtins(replace(state, memory=owed, colocation=None), str_keys=True)
    return StateView(
        state=told,
        left={job.id: one for job, one in zip(state.jobs, left, strict=True)},
        guessed=[job.id for job in state.jobs if not length_known(state, job)],
    )
