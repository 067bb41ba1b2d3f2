"""Tenants above and below each other: what is refused with field, value and fix, and what is said of lending."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fairlead.cluster import DEVICE, Node
from fairlead.control.reconcile.cluster_state import tenant_state
from fairlead.control.records import Tenant
from fairlead.control.store import tenants
from fairlead.control.tenant_tree import check_tenant, tenant_shares
from fairlead.errors import FairleadError, InvalidSpec, NotFound, Refused
from fairlead.specs import parse_tenant
from fairlead.units import parse_counts, shown_counts

from .made import tenant
from .stores import Opened

NODES = [Node(f"n{at}", {DEVICE: 2.0}, kind) for at, kind in enumerate(["v100", "v100", "k80"])]


def team(name: str, **fields: Any) -> Tenant:
    return replace(tenant(name), **fields)


ORG = team("org", guarantee={"v100": 3})
TEAM = team("team", parent="org", guarantee={"v100": 2})
OTHER = team("other", parent="org")


def refused(changed: Tenant, *others: Tenant) -> FairleadError:
    with pytest.raises(FairleadError) as caught:
        check_tenant(changed, others, NODES)
    assert caught.value.field in ("parent", "guarantee") and caught.value.fix and caught.value.value is not None
    assert caught.value.status in (404, 409)
    return caught.value


def test_what_fits_is_let_through() -> None:
    for changed in (ORG, TEAM, OTHER, replace(OTHER, guarantee={"v100": 1}), team("alone", guarantee={"v100": 1})):
        check_tenant(changed, [ORG, TEAM, OTHER], NODES)


def test_a_parent_that_nobody_knows_is_refused() -> None:
    error = refused(team("a", parent="gone"), ORG)
    assert isinstance(error, NotFound) and "gone" in error.message and "org" in str(error.fix)
    assert "a," not in str(error.fix)


def test_nobody_stands_below_itself_however_far() -> None:
    deep = team("deep", parent="team")
    error = refused(replace(ORG, parent="deep"), TEAM, deep)
    assert isinstance(error, Refused) and error.message.endswith("org below deep below team below org")


def test_guarantees_of_those_below_a_tenant_are_within_its_own() -> None:
    error = refused(replace(OTHER, guarantee={"v100": 2}), ORG, TEAM)
    assert "team 2, other 2" in error.message and "3 that are guaranteed to org" in error.message
    assert error.fix == "raise that one first: fairlead tenant update org --guarantee v100=4"
    assert "0 that are guaranteed to org" in refused(replace(OTHER, guarantee={"k80": 1}), ORG, TEAM).message
    assert "lower theirs first" in str(refused(replace(ORG, guarantee={"v100": 1}), TEAM, OTHER).fix)


def test_guarantees_are_within_what_there_is() -> None:
    assert "the 4 devices of type v100" in refused(team("alone", guarantee={"v100": 2}), ORG, TEAM).message
    assert "no node has devices of type a100" in refused(team("alone", guarantee={"a100": 1}), ORG).message


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"guarantee": {"v100": 3}, "most": {"v100": 2}}, "exceed its maximum of 2"),
        ({"guarantee": {"v100": 3, "k80": 2}, "quota": 4}, "exceed its quota of 4"),
        ({"parent": "vision"}, "cannot be its own parent"),
        ({"guarantee": {"v100": -1}}, "-1"),
        ({"guarantee": {"V 100": 1}}, "V 100"),
        ({"most": {"v100": 1.5}}, "1.5"),
        ({"parent": "Vision!"}, "Vision!"),
    ],
)
def test_a_spec_that_contradicts_itself_is_refused(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        parse_tenant({"name": "vision", **fields})
    assert complaint in f"{caught.value} {caught.value.value}" and caught.value.fix


def test_the_store_keeps_the_place_in_the_tree_and_the_limits(db: Opened) -> None:
    spec = parse_tenant({"name": "nlp", "parent": "vision", "guarantee": {"cpu": 1}, "most": {"cpu": 2, "v100": 0}})
    kept = db.write(tenants.insert, spec)
    assert (kept.parent, kept.guarantee, kept.most) == ("vision", {"cpu": 1}, {"cpu": 2, "v100": 0})
    assert db.read(tenants.get, "nlp") == kept
    seen = tenant_state(kept)
    assert (seen.parent, seen.guarantee, seen.most) == (kept.parent, kept.guarantee, kept.most)
    assert db.write(tenants.update, "nlp", parent=None, guarantee={}).parent is None


def test_who_has_devices_of_whom() -> None:
    teams = [team("org", weight=3.0), team("a", parent="org"), team("b", parent="org"), team("alone")]
    found = tenant_shares(teams, {"alone": 6.0}, {"alone": 6, "a": 2}, 8)
    assert {name: one.share for name, one in found.items()} == {"org": 6.0, "a": 3.0, "b": 3.0, "alone": 2.0}
    assert {name: one.borrowed for name, one in found.items()} == {"org": -4.0, "a": -1.0, "b": -3.0, "alone": 4.0}
    assert (found["org"].below, found["a"].below) == (2, 0)
    assert found["alone"].entitlement == 6.0 and found["b"].entitlement == 3.0  # one without jobs is told its share


def test_what_nobody_uses_is_idle_and_not_lent() -> None:
    found = tenant_shares([team("a"), team("b"), team("c")], {}, {"a": 4}, 9)
    assert {name: one.borrowed for name, one in found.items()} == {"a": 1.0, "b": -0.5, "c": -0.5}


def test_devices_by_type_are_written_and_read() -> None:
    assert parse_counts("v100=4, cpu=2") == {"v100": 4, "cpu": 2} == parse_counts(shown_counts({"cpu": 2, "v100": 4}))
    for wrong in ("", "v100", "v100=", "=4", "v100=x", "v100=1,v100=2", "v100=-1"):
        with pytest.raises(ValueError, match="v100=4"):
            parse_counts(wrong)
