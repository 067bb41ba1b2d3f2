"""The operator's daily verbs: usage, limits of tenants, tokens and the audit log."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from fairlead.cli import limit_options
from fairlead.cli.options import parse_moment
from fairlead.errors import InvalidSpec

from .conftest import Platform


@pytest.fixture(scope="module")
def used(platform: Platform) -> str:
    """A job of vision that has ended, with a label."""
    job: str = platform.vision("run", "--name", "spent", "--label", "team=x", "--json", "--", "true").data["id"]
    platform.vision.until(lambda answer: answer["job"]["state"] == "succeeded", "why", job)
    return job


def test_usage_is_a_table_csv_and_json(platform: Platform, used: str) -> None:
    table = platform.admin("usage", "--by", "tenant,job").out
    assert "DEVICE HOURS" in table and used in table
    rows = list(csv.DictReader(io.StringIO(platform.admin("usage", "--by", "job,user,label:team", "--csv").out)))
    mine = next(row for row in rows if row["job"] == used)
    assert float(mine["device_hours"]) > 0 and mine["label:team"] == "x" and mine["user_label"] == "first token"
    data = platform.vision("usage", "--by", "tenant", "--json").data
    assert [line["keys"] for line in data["lines"]] == [{"tenant": "vision"}]
    assert "no usage in this period" in platform.admin("usage", "--since", "2020-01-01", "--until", "2020-02-01").out


def test_usage_refuses_what_it_cannot_answer(platform: Platform) -> None:
    assert "label:KEY" in platform.admin("usage", "--by", "colour", code=2).err
    assert "write it like 12h" in platform.admin("usage", "--since", "yesterday", code=2).err
    assert "no such tenant" in platform.vision("usage", "--tenant", "text", code=3).err
    for verb in ("usage", "queue"):
        assert "'nobody': no such tenant" in platform.admin(verb, "--tenant", "nobody", code=3).err


def test_every_limit_of_a_tenant_can_be_set_shown_and_taken_away(platform: Platform, tmp_path: Path) -> None:
    line = "--budget 500h/month --warn-at 0.5 --network open --grant /data/a --grant /data/b --disk 20GB --log 8MB"
    kept = ["--keep-logs", "30d", "--keep-results", "90d", "--keep-jobs", "120d"]
    made = platform.admin("tenant", "create", "limited", *line.split(), *kept, "--json").data["tenant"]
    assert made["budget"] == {"device_hours": 500.0, "per": "month", "warn_at": 0.5}
    policy = made["policy"]
    assert (policy["network"], policy["folders"], policy["disk"]) == ("open", ["/data/a", "/data/b"], 20_000_000_000)
    keeps = {"logs": 2592000.0, "metrics": None, "results": 7776000.0, "jobs": 10368000.0}
    assert policy["retention"] == keeps
    assert made["entitlement"] > 0
    line = "--revoke /data/a --grant /data/c --warn-at 0.9 --keep-logs none --json"
    changed = platform.admin("tenant", "update", "limited", *line.split()).data
    assert changed["policy"]["folders"] == ["/data/b", "/data/c"] and changed["budget"]["warn_at"] == 0.9
    assert changed["policy"]["retention"]["logs"] is None and changed["policy"]["retention"]["results"] == 7776000.0
    shown = platform.admin("tenant", "show", "limited").out
    facts = ("0 of 500 device hours used this month", "warning at 90 %", "/data/b, /data/c", "20.0 GB", "open", "90d0h")
    for fact in facts:
        assert fact in shown
    assert "0 % of 500h/month" in platform.admin("tenants").out
    assert "not granted" in platform.admin("tenant", "update", "limited", "--revoke", "/data/z", code=2).err
    assert "nothing to change" in platform.admin("tenant", "update", "limited", code=2).err
    cleared = platform.admin("tenant", "update", "limited", "--budget", "none", "--json").data
    assert cleared["budget"] == {} and cleared["spending"] is None
    assert "this tenant has no budget" in platform.admin("tenant", "update", "limited", "--warn-at", "0.5", code=2).err


@pytest.mark.parametrize("text", ["500", "h/month", "500h/year", "-5h/day", "500h per month", "nan/day", ""])
def test_a_budget_that_is_none_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        limit_options._budget(text, None, None)
    assert "500h/month" in str(refused.value.fix)


def test_a_budget_is_read_as_it_is_written() -> None:
    for text in ("500h/month", "500/month", " 1.5h / day "):
        budget = limit_options._budget(text, None, None)
        assert budget is not None and limit_options.format_budget(budget) in ("500h/month", "1.5h/day")


def test_a_moment_is_so_long_ago_or_a_time_in_utc() -> None:
    assert parse_moment("--since", "1970-01-02") == 86400.0
    assert parse_moment("--since", "1970-01-01T01:00+01:00") == 0.0
    assert parse_moment("--since", "99999d") == 0.0


def test_the_audit_log_shows_the_newest_and_can_be_filtered(platform: Platform, used: str) -> None:
    token = platform.vision("token", "create", "--role", "viewer", "--label", "for a screen", "--json").data
    platform.vision("token", "revoke", token["id"])
    table = platform.vision("audit", "--action", "token.", "-n", "2").out
    assert table.splitlines()[0].split() == ["ID", "TIME", "ACTOR", "ACTION", "TARGET"]
    assert [line.split()[-2:] for line in table.splitlines()[1:]] == [
        ["token.create", token["id"]], ["token.revoke", token["id"]],
    ]  # fmt: skip
    entries = platform.vision("audit", "--json", "-n", "1000").data["entries"]
    assert {entry["tenant"] for entry in entries} == {"vision"}
    assert used in [entry["target"] for entry in entries if entry["action"] == "job.submit"]
    rows = list(csv.DictReader(io.StringIO(platform.admin("audit", "--tenant", "vision", "--csv").out)))
    assert rows[-1]["time"].endswith("Z") and rows[-1]["tenant"] == "vision"
    assert "no matching entries" in platform.admin("audit", "--actor", "nobody").out


def test_a_member_who_tries_more_is_refused_and_on_record(platform: Platform) -> None:
    member = platform.vision("token", "create", "--role", "member", "--label", "a curious one", "--json").data
    curious = type(platform.vision)(platform.vision.home, member["token"])
    curious("nodes", "drain", "node-0", code=4)
    curious("audit", code=4)
    noted = platform.admin("audit", "--action", "refused", "--actor", member["id"], "--json").data["entries"]
    assert [entry["target"] for entry in noted] == ["POST /api/v1/nodes/node-0/drain"]


def test_the_list_of_tokens_leaves_out_what_is_good_no_more(platform: Platform) -> None:
    made = platform.vision("token", "create", "--label", "short-lived", "--expires", "1h", "--json").data
    assert "short-lived" in platform.vision("token", "list").out
    platform.vision("token", "revoke", made["id"])
    listed = platform.vision("token", "list").out
    assert "short-lived" not in listed and "--all" in listed
    assert "short-lived" in platform.vision("token", "list", "--all").out
    used = {token["id"]: token["used_s"] for token in platform.admin("token", "list", "-a", "--json").data["tokens"]}
    assert used[made["id"]] is None and any(used.values())
