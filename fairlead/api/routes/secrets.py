"""Routes of secrets: values can be set but never read."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response
from fastapi import Query as QueryParameters
from pydantic import Field

from fairlead.api.context import (
    BODY,
    CONFLICT,
    NOT_FOUND,
    PROBLEMS,
    Platform,
    Query,
    Who,
    answer,
    answer_list,
    body_of,
    read_json,
)
from fairlead.errors import InvalidSpec
from fairlead.specs import LONGEST_SECRET, SECRET_PATTERN, SHORTEST_SECRET, Spec
from fairlead.views.jobs import SecretView

router = APIRouter(prefix="/secrets", tags=["secrets"], responses=PROBLEMS)

SecretName = Annotated[
    str,
    Path(
        max_length=64,
        description="Name of the secret and of its environment variable in jobs.",
        json_schema_extra={"pattern": SECRET_PATTERN},
    ),
]


class SecretQuery(Query):
    """The tenant whose secrets are meant."""

    tenant: str | None = Field(default=None, max_length=40, description="The tenant; needed only with an admin token.")


Whose = Annotated[SecretQuery, QueryParameters()]


class SecretSpec(Spec):
    """A secret's value, which cannot be read again."""

    value: str = Field(min_length=SHORTEST_SECRET, max_length=LONGEST_SECRET)


@router.get("", summary="List secrets", response_model=list[SecretView], responses=NOT_FOUND)
async def secrets(platform: Platform, who: Who, query: Whose) -> Response:
    """Names of the tenant's secrets with their last change, without values."""
    return answer_list(await platform.secrets(who, query.tenant))


@router.put(
    "/{name}",
    summary="Set a secret",
    response_model=SecretView,
    responses=BODY | NOT_FOUND | CONFLICT,
    openapi_extra=body_of(SecretSpec),
)
async def set_secret(request: Request, platform: Platform, who: Who, name: SecretName, query: Whose) -> Response:
    """Store an encrypted value; jobs that list its name in `secrets` get it as an environment variable."""
    return answer(await platform.set_secret(who, name, _value(await read_json(request)), query.tenant))


@router.delete("/{name}", status_code=204, response_class=Response, summary="Remove a secret", responses=NOT_FOUND)
async def remove_secret(platform: Platform, who: Who, name: SecretName, query: Whose) -> Response:
    """Remove the secret. Running jobs keep it until they end; later jobs that need it fail with this reason."""
    await platform.remove_secret(who, name, query.tenant)
    return Response(status_code=204)


def _value(body: Any) -> str:
    """Parsed by hand, because validation errors would repeat the secret value."""
    fix = 'send {"value": "..."}'
    if not isinstance(body, dict) or not isinstance(body.get("value"), str):
        raise InvalidSpec("is not an object with a text value", field="body", fix=fix)
    others = sorted(map(str, body.keys() - {"value"}))
    if others:
        raise InvalidSpec("is not a field of a secret", field=others[0][:100], fix=fix)
    return str(body["value"])
