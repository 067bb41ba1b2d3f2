"""Tenants above and below each other on the command line: made, shown as a tree, refused with a fix, taken apart."""

from __future__ import annotations

import pytest

from fairlead.cli import limit_options
from fairlead.cli.tenant_table import in_tree, lent, table
from fairlead.errors import InvalidSpec
from fairlead.views.jobs import TenantView

from .conftest import Platform


def test_a_tree_of_tenants_is_made_shown_and_taken_apart(platform: Platform) -> None:
    admin = platform.admin
    admin("tenant", "create", "org", "--guarantee", "cpu=1")
    line = "tenant create org-team --parent org --weight 3 --guarantee cpu=1 --most cpu=2 --json"
    made = admin(*line.split()).data["tenant"]
    assert (made["parent"], made["guarantee"], made["most"]) == ("org", {"cpu": 1}, {"cpu": 2})
    try:
        shown = admin("tenants").out.splitlines()
        at = next(place for place, text in enumerate(shown) if text.startswith("org "))
        assert {"GUARANTEE", "MAX", "ENTITLED", "LENT"} <= set(shown[0].split())
        assert shown[at + 1].startswith("  org-team ") and "cpu=2" in shown[at + 1]
        told = admin("tenant", "show", "org-team").out
        assert "parent       org" in told and "guarantee    cpu=1" in told and "maximum      cpu=2" in told
        refused = admin("tenant", "update", "org", "--parent", "org-team", code=4).err
        assert "parent: org would stand below itself" in refused and "fix: " in refused
        assert "there is no tenant 'gone'" in admin("tenant", "update", "org", "--parent", "gone", code=3).err
        assert "--guarantee none" in admin("tenant", "update", "org", "--guarantee", "none", code=4).err
    finally:
        admin("tenant", "update", "org-team", "--parent", "none", "--guarantee", "none", "--most", "none")
        admin("tenant", "update", "org", "--guarantee", "none")
    assert "GUARANTEE" not in admin("tenants").out


def test_tenants_follow_the_one_they_stand_below() -> None:
    names = [("b", None), ("a1", "a"), ("a", None), ("a2", "a1"), ("lonely", "unseen"), ("a3", "a")]
    found = [(each.name, depth) for each, depth in in_tree([TenantView(name=n, weight=1, parent=p) for n, p in names])]
    assert found == [("b", 0), ("a", 0), ("a1", 1), ("a2", 2), ("a3", 1), ("lonely", 0)]


def test_it_is_said_whose_devices_are_used(capsys: pytest.CaptureFixture[str]) -> None:
    rich = TenantView(name="rich", weight=1, borrowed=2.0, devices=3, devices_below=1, guarantee={"v100": 4})
    assert [lent(TenantView(name="a", weight=1, borrowed=by)) for by in (2.0, -0.6667, 0.0)] == [
        "borrowed 2", "lent 0.67", "–",
    ]  # fmt: skip
    table([rich])
    assert capsys.readouterr().out.splitlines()[1].split() == (
        ["rich", "1", "v100=4", "–", "0", "4", "borrowed", "2"]
    )


@pytest.mark.parametrize("text", ["v100", "v100=", "4", "v100=-1", "v100=1.5", "v100=1,v100=2", ""])
def test_devices_by_type_that_cannot_be_read_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        limit_options._counts("--most", text)
    assert refused.value.field == "--most" and "v100=4,cpu=2" in str(refused.value.fix)
