"""Routes of nodes."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Response

from fairlead.api.context import CONFLICT, NOT_FOUND, PROBLEMS, Platform, Who, answer, answer_list
from fairlead.views.jobs import NodeView

router = APIRouter(prefix="/nodes", tags=["nodes"], responses=PROBLEMS)

NodeName = Annotated[str, Path(max_length=100, description="The node's name.")]


@router.get("", summary="List nodes", response_model=list[NodeView])
async def nodes(platform: Platform, who: Who) -> Response:
    """All nodes with state, capacity and use."""
    return answer_list(await platform.nodes(who))


@router.post("/{name}/cordon", summary="Cordon a node", response_model=NodeView, responses=NOT_FOUND | CONFLICT)
async def cordon(platform: Platform, who: Who, name: NodeName) -> Response:
    """Start no new work on the node; running jobs continue."""
    return answer(await platform.node_action(who, name, "cordon"))


@router.post("/{name}/uncordon", summary="Uncordon a node", response_model=NodeView, responses=NOT_FOUND | CONFLICT)
async def uncordon(platform: Platform, who: Who, name: NodeName) -> Response:
    """Allow work on the node again after cordon or drain."""
    return answer(await platform.node_action(who, name, "uncordon"))


@router.post("/{name}/drain", summary="Drain a node", response_model=NodeView, responses=NOT_FOUND | CONFLICT)
async def drain(platform: Platform, who: Who, name: NodeName) -> Response:
    """Start no new work on the node and move its jobs, with their state, elsewhere."""
    return answer(await platform.node_action(who, name, "drain"))
