"""Who may do what."""

from __future__ import annotations

import pytest

from fairlead.control.identity.access import acting_for, refuse_scraper, require, require_grant, require_scraper, scope
from fairlead.control.records import Role
from fairlead.errors import Forbidden, InvalidSpec, NotFound
from tests.control.made import token


@pytest.mark.parametrize("role", [Role.VIEWER, Role.MEMBER, Role.TENANT_ADMIN])
def test_a_tenants_token_sees_its_tenant_only(role: Role) -> None:
    assert scope(token(role)) == "vision"
    assert acting_for(token(role), None) == "vision"
    with pytest.raises(NotFound):
        acting_for(token(role), "text")


def test_an_admin_sees_all_and_must_say_for_whom_it_acts() -> None:
    assert scope(token(Role.ADMIN)) is None
    assert acting_for(token(Role.ADMIN), "text") == "text"
    with pytest.raises(InvalidSpec, match="required"):
        acting_for(token(Role.ADMIN), None)


def test_a_viewer_only_looks() -> None:
    with pytest.raises(Forbidden, match="viewer may not submit"):
        require(token(Role.VIEWER), Role.MEMBER, "submit jobs")


@pytest.mark.parametrize(
    ("who", "role", "tenant", "allowed"),
    [
        (Role.ADMIN, Role.ADMIN, None, True),
        (Role.ADMIN, Role.MEMBER, "text", True),
        (Role.TENANT_ADMIN, Role.TENANT_ADMIN, "vision", True),
        (Role.TENANT_ADMIN, Role.VIEWER, "vision", True),
        (Role.TENANT_ADMIN, Role.ADMIN, None, False),
        (Role.ADMIN, Role.SCRAPER, None, True),
        (Role.TENANT_ADMIN, Role.SCRAPER, None, False),
        (Role.SCRAPER, Role.SCRAPER, None, False),
        (Role.MEMBER, Role.VIEWER, "vision", False),
    ],
)
def test_nobody_hands_out_more_than_they_have(who: Role, role: Role, tenant: str | None, allowed: bool) -> None:
    if allowed:
        require_grant(token(who), role, tenant)
    else:
        with pytest.raises(Forbidden):
            require_grant(token(who), role, tenant)


@pytest.mark.parametrize("role", [Role.ADMIN, Role.SCRAPER])
def test_a_token_for_the_whole_platform_belongs_to_no_tenant(role: Role) -> None:
    with pytest.raises(InvalidSpec, match="have no tenant"):
        require_grant(token(Role.ADMIN), role, "vision")


def test_a_scraper_has_no_tenant_and_so_sees_nothing_rather_than_all() -> None:
    scraper = token(Role.SCRAPER, None)
    for ask in (scope, refuse_scraper, lambda who: acting_for(who, None), lambda who: acting_for(who, "vision")):
        with pytest.raises(Forbidden, match="reads /metrics and nothing else"):
            ask(scraper)
    with pytest.raises(Forbidden, match="scraper may not ask"):
        require(scraper, Role.VIEWER, "ask")
    require_scraper(scraper)
    require_scraper(token(Role.ADMIN))
    with pytest.raises(Forbidden):
        require_scraper(token(Role.TENANT_ADMIN))
