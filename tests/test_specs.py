"""Specs: what people write is understood, and what is wrong is refused with the field, the value and the fix."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.errors import InvalidSpec
from fairlead.specs import (
    LAST_DEADLINE,
    LONGEST_DEADLINE,
    STORED,
    JobSpec,
    Sla,
    Workers,
    parse_duration,
    parse_job,
    parse_size,
    parse_tenant,
)

GOOD = {"name": "digits", "run": "train.py:training"}
COMMAND = {"name": "digits", "command": ["python", "x.py"]}
NAMES = "1 to 40 lower-case letters, digits and hyphens"

BAD_JOBS: list[tuple[Any, str, str, str]] = [  # what was written, field, part of the message, part of the fix
    ([], "job", "a list", "name: my-job"),
    ("train", "job", "a str", "name: my-job"),
    (None, "job", "nothing", "name: my-job"),
    ({"run": "train.py:training"}, "name", "is required", "add name"),
    (GOOD | {"name": "My Job"}, "name", "'My Job' is not a name", f"{NAMES}, such as my-job"),
    (GOOD | {"name": ""}, "name", "'' is not a name", NAMES),
    (GOOD | {"name": "x" * 41}, "name", "is not a name", NAMES),
    (GOOD | {"name": "-a-"}, "name", "'-a-'", "such as a"),
    (GOOD | {"name": "a\n"}, "name", "is not a name", NAMES),
    (GOOD | {"name": 7}, "name", "7 is not text", '"7"'),
    (GOOD | {"nmae": "x"}, "nmae", "unknown field", "did you mean name?"),
    (GOOD | {"gpus": 1}, "gpus", "unknown field", "workers, resources"),
    (GOOD | {5: 1}, "5", "is not the name of a field", "text"),
    (GOOD | {"apiVersion": "fairlead/v9"}, "apiVersion", "'fairlead/v9'", "'fairlead/v1'"),
    (GOOD | {"kind": "Pod"}, "kind", "'Pod'", "'Job'"),
    (GOOD | {"tenant": "Team A"}, "tenant", "'Team A'", "team-a"),
    (GOOD | {"labels": ["a"]}, "labels", "is not a mapping", "key: value"),
    (GOOD | {"labels": {"a": 1}}, "labels.a", "1 is not text", '"1"'),
    (GOOD | {"labels": {"a": "x" * 256}}, "labels.a", "longer than 255", "shorten"),
    (GOOD | {"labels": {"k" * 64: "x"}}, "labels." + "k" * 64, "longer than 63", "shorten"),
    (GOOD | {"labels": {f"k{i}": "x" for i in range(65)}}, "labels", "more than 64", "at most 64"),
    ({"name": "digits"}, "run", "is required", "command: [python, train.py]"),
    (GOOD | {"command": ["a"]}, "command", "excludes run", "keep one"),
    (GOOD | {"run": "train.py"}, "run", "'train.py' is not a function", "train.py:training"),
    (GOOD | {"run": "train.py:1st"}, "run", "'train.py:1st'", "train.py:training"),
    (GOOD | {"run": ":training"}, "run", "':training'", "train.py:training"),
    (GOOD | {"run": "/etc/train.py:f"}, "run", "inside the submitted folder", "relative path"),
    (GOOD | {"run": "../train.py:f"}, "run", "'../train.py:f'", "relative path"),
    (GOOD | {"run": 5}, "run", "5 is not text", '"5"'),
    (COMMAND | {"command": []}, "command", "is empty", "[python, train.py]"),
    (COMMAND | {"command": [""]}, "command", "is empty", "[python, train.py]"),
    (COMMAND | {"command": "python x.py"}, "command", "'python x.py' is not a list", "[python, train.py]"),
    (COMMAND | {"params": {"lr": 1}}, "params", "apply only to run", "into command"),
    (GOOD | {"params": [1]}, "params", "is not a mapping", "key: value"),
    (GOOD | {"workers": 0}, "workers.min", "0 is too small", "at least 1"),
    (GOOD | {"workers": -1}, "workers.min", "-1 is too small", "at least 1"),
    (GOOD | {"workers": 200_000}, "workers.min", "200000 is too large", "at most 100000"),
    (GOOD | {"workers": "many"}, "workers", "'many'", "write 4 or 1:4"),
    (GOOD | {"workers": "1:"}, "workers", "'1:'", "write 4 or 1:4"),
    (GOOD | {"workers": "9" * 5000}, "workers", "is not a number of workers", "write 4 or 1:4"),
    (GOOD | {"workers": True}, "workers", "true", "write 4 or 1:4"),
    (GOOD | {"workers": 1.5}, "workers", "1.5", "write 4 or 1:4"),
    (GOOD | {"workers": None}, "workers", "is not a number of workers", "write 4 or 1:4"),
    (GOOD | {"workers": "4:1"}, "workers.min", "4 is more than workers.max, 1", "swap"),
    (GOOD | {"workers": {"min": 2, "max": 1}}, "workers.min", "2 is more than", "raise workers.max"),
    (GOOD | {"workers": {"min": "2"}}, "workers.min", "'2' is not a whole number", "without quotes"),
    (GOOD | {"workers": {"mn": 2}}, "workers.mn", "unknown field", "did you mean min?"),
    (GOOD | {"resources": "big"}, "resources", "'big'", "cpu, memory, gpu, device"),
    (GOOD | {"resources": {"disk": 1}}, "resources.disk", "unknown field", "cpu, memory, gpu, device"),
    (GOOD | {"resources": {"cpu": 0}}, "resources.cpu", "0 is too small", "more than 0"),
    (GOOD | {"resources": {"cpu": "two"}}, "resources.cpu", "'two' is not a number", "0.5"),
    (GOOD | {"resources": {"cpu": float("nan")}}, "resources.cpu", "nan is not a finite number", "0.5"),
    (GOOD | {"resources": {"memory": "lots"}}, "resources.memory", "'lots' is not a size", "512MB"),
    (GOOD | {"resources": {"memory": "0GB"}}, "resources.memory", "'0GB' is too small", "more than 0"),
    (GOOD | {"resources": {"memory": "9" * 400 + "GB"}}, "resources.memory", "more bytes than any", "512MB"),
    (GOOD | {"resources": {"gpu": -1}}, "resources.gpu", "-1 is too small", "at least 0"),
    (GOOD | {"resources": {"gpu": 1.5}}, "resources.gpu", "1.5 is not a whole number", "whole number"),
    (GOOD | {"resources": {"device": "A 100"}}, "resources.device", "'A 100'", "a-100"),
    (GOOD | {"sla": "gold"}, "sla", "'gold' is not a mapping", "deadline, class"),
    (GOOD | {"sla": {"klass": "gold"}}, "sla.klass", "unknown field", "did you mean class?"),
    (GOOD | {"sla": {"class": "platinum"}}, "sla.class", "'platinum'", "'gold', 'silver' or 'bronze'"),
    (GOOD | {"sla": {"class": "gold", "deadline": "1h"}}, "sla.class", "deadline", "keep one"),
    (GOOD | {"sla": {"deadline": "soon"}}, "sla.deadline", "'soon'", "2h, 30m"),
    (GOOD | {"sla": {"deadline": "-5m"}}, "sla.deadline", "'-5m'", "2h, 30m"),
    (GOOD | {"sla": {"deadline": "0s"}}, "sla.deadline", "not in the future", "like 2h"),
    (GOOD | {"sla": {"deadline": "99999999999d"}}, "sla.deadline", "too far away", "30d"),
    (GOOD | {"sla": {"deadline": "99999999d"}}, "sla.deadline", "ten years", "30d"),
    (GOOD | {"sla": {"deadline": "9999-01-01T00:00:00Z"}}, "sla.deadline", "after the year 2199", "30d"),
    (GOOD | {"sla": {"deadline": [1]}}, "sla.deadline", "neither a time nor a duration", "2h"),
    (GOOD | {"sla": {"deadline": "2030-01-01T00:00:00"}}, "sla.deadline", "no time zone", "+02:00"),
    (GOOD | {"priority": 1001}, "priority", "1001 is too large", "at most 1000"),
    (GOOD | {"priority": "high"}, "priority", "'high' is not a whole number", "whole number"),
    (GOOD | {"env": ["A=1"]}, "env", "is not a mapping", "key: value"),
    (GOOD | {"env": {"1A": "x"}}, "env.1A", "not the name of an environment variable", "letters, digits"),
    (GOOD | {"env": {"A": 1}}, "env.A", "1 is not text", '"1"'),
    (GOOD | {"env": {"A": "x\0"}}, "env.A", "zero byte", "remove"),
    (GOOD | {"venv": 5}, "venv", "5 is not text", '"5"'),
    (GOOD | {"venv": "my/env"}, "venv", "'my/env' is not an absolute path", ".venv"),
    (GOOD | {"retries": -1}, "retries", "-1 is too small", "at least 0"),
    (GOOD | {"retries": 101}, "retries", "101 is too large", "at most 100"),
    (GOOD | {"silence_timeout": "1 week"}, "silence_timeout", "'1 week' is not a duration", "90s"),
    (GOOD | {"silence_timeout": -1}, "silence_timeout", "-1 is too small", "at least 0"),
    (GOOD | {"silence_timeout": float("inf")}, "silence_timeout", "inf is too large", "at most 10000000000"),
    (GOOD | {"env": {"FAIRLEAD_JOB": "x"}}, "env.FAIRLEAD_JOB", "reserved for the platform", "without FAIRLEAD_"),
    (GOOD | {"secrets": ["token"]}, "secrets.0", "'token' is not the name of a secret", "such as API_KEY"),
    (GOOD | {"placement": {"only": ["~eu"]}}, "placement.only.0", "'~eu' is not the name of a place", "fairlead nodes"),
    (GOOD | {"code": "sha256:1"}, "code", "'sha256:1' is not the hash of a bundle", "remove it"),
]

BAD_TENANTS: list[tuple[Any, str, str, str]] = [
    ("vision", "tenant", "a str", "name: my-job"),
    ({"weight": 1}, "name", "is required", "add name"),
    ({"name": "Vision!"}, "name", "'Vision!'", "such as vision"),
    ({"name": "a", "weight": 0}, "weight", "0 is too small", "more than 0"),
    ({"name": "a", "weight": "x"}, "weight", "'x' is not a number", "0.5"),
    ({"name": "a", "weight": float("inf")}, "weight", "inf is not a finite number", "0.5"),
    ({"name": "a", "weight": 2e6}, "weight", "is too large", "at most 1000000"),
    ({"name": "a", "quota": 0}, "quota", "0 is too small", "at least 1"),
    ({"name": "a", "wieght": 1}, "wieght", "unknown field", "did you mean weight?"),
    ({"name": "a", "kind": "Job"}, "kind", "'Job'", "'Tenant'"),
    ({"name": "a", "sla": {"class": "x"}}, "sla.class", "'x'", "'gold'"),
]


def check(error: InvalidSpec, field: str, says: str, fix: str) -> None:
    assert error.field == field
    assert says in error.message and str(error).startswith(f"{field}: ")
    assert error.fix is not None and fix in error.fix and "docs/" not in error.fix
    assert "\n" not in str(error) and "Input should" not in str(error)
    json.dumps(error.problem(), allow_nan=False)


@pytest.mark.parametrize(
    ("written", "field", "says", "fix"), BAD_JOBS, ids=[f"{i}-{bad[1][:20]}" for i, bad in enumerate(BAD_JOBS)]
)
def test_a_bad_job_is_refused_with_field_value_and_fix(written: Any, field: str, says: str, fix: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        parse_job(written)
    check(caught.value, field, says, fix)


@pytest.mark.parametrize(("written", "field", "says", "fix"), BAD_TENANTS)
def test_a_bad_tenant_is_refused_with_field_value_and_fix(written: Any, field: str, says: str, fix: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        parse_tenant(written)
    check(caught.value, field, says, fix)


def test_the_file_is_named_in_front_of_the_field() -> None:
    with pytest.raises(InvalidSpec) as caught:
        parse_job(GOOD | {"workers": "4:1"}, source="job.yaml")
    assert str(caught.value).startswith("job.yaml: workers.min: 4 is more than")


def test_a_long_value_is_cut_in_the_message() -> None:
    with pytest.raises(InvalidSpec) as caught:
        parse_job(GOOD | {"name": "X" * 10_000})
    assert len(str(caught.value)) < 120


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(JobSpec.model_fields)), json_values, max_size=5))
def test_whatever_is_written_is_either_a_job_or_refused_in_one_line(written: dict[str, Any]) -> None:
    try:
        assert isinstance(parse_job(GOOD | written), JobSpec)
    except InvalidSpec as error:
        assert error.field and error.fix
        json.dumps(error.problem(), allow_nan=False)


@pytest.mark.parametrize(
    ("written", "low", "high"),
    [(4, 4, 4), ("4", 4, 4), ("1:4", 1, 4), (" 2 : 3 ", 2, 3), ({"min": 1, "max": 4}, 1, 4), ({"min": 3}, 3, 3)],
)
def test_workers_can_be_written_in_short(written: Any, low: int, high: int) -> None:
    workers = parse_job(GOOD | {"workers": written}).workers
    assert (workers.min, workers.max) == (low, high)
    assert parse_job(GOOD | {"workers": Workers(min=low, max=high)}).workers == workers


@pytest.mark.parametrize(
    ("written", "size"),
    [("512MB", 512_000_000), ("2GiB", 2 << 30), ("1.5k", 1500), ("7", 7), (9, 9), ("1 TB", 10**12), ("3b", 3)],
)
def test_sizes_are_written_with_units(written: Any, size: int) -> None:
    assert parse_size(written) == size


@pytest.mark.parametrize(
    ("written", "seconds"), [("90s", 90), ("30m", 1800), ("2h", 7200), ("1d", 86400), ("5ms", 0.005), (3, 3)]
)
def test_durations_are_written_with_units(written: Any, seconds: float) -> None:
    assert parse_duration(written) == seconds


def test_a_job_survives_the_way_through_json() -> None:
    full = GOOD | {
        "tenant": "vision", "labels": {"team": "a"}, "params": {"lr": 0.1}, "workers": "1:4", "priority": 5,
        "resources": {"cpu": 0.5, "memory": "1GB", "device": "cpu"}, "sla": {"class": "gold"}, "env": {"A": "1"},
    }  # fmt: skip
    job = parse_job(full)
    assert parse_job(json.loads(job.model_dump_json(by_alias=True))) == job
    assert job.elastic and job.resources.demand() == {"cpu": 0.5, "memory": 1e9}


def test_promises_become_times() -> None:
    assert Sla(deadline=timedelta(hours=1)).finish_by_s(100.0) == 3700.0
    assert Sla(deadline=timedelta(days=3653)).finish_by_s(0.0) == 3653 * 86400.0


@pytest.mark.parametrize("deadline", ["99999999d", "9999-01-01T00:00:00Z"])
def test_a_deadline_beyond_the_bounds_that_was_stored_before_is_the_last_that_can_be(deadline: str) -> None:
    sla = Sla.model_validate({"deadline": deadline}, context=STORED)
    assert (sla.finish_by_s(0.0) or 0.0) in (LONGEST_DEADLINE.total_seconds(), LAST_DEADLINE.timestamp())
    new_year = datetime(2030, 1, 1, tzinfo=UTC)
    assert Sla(deadline=new_year).finish_by_s(0.0) == new_year.timestamp()
    assert parse_job(GOOD | {"sla": {"class": "gold"}}).sla == Sla(class_="gold")
    assert Sla(class_="gold").start_by_s(100.0) == 160.0
    assert Sla().finish_by_s(0.0) is None and Sla().start_by_s(0.0) is None


def test_a_command_is_not_elastic() -> None:
    assert not parse_job(COMMAND | {"workers": "1:4"}).elastic


def test_a_job_says_where_it_may_run_and_where_its_data_lies() -> None:
    spec = parse_job({"name": "j", "command": ["true"], "placement": {"only": ["eu", "gdpr"], "near": ["rack-1"]}})
    assert (spec.facts()["only"], spec.facts()["near"]) == (["eu", "gdpr"], ["rack-1"])
    assert "only" not in parse_job({"name": "j", "command": ["true"]}).facts()
    with pytest.raises(InvalidSpec, match="only"):
        parse_job({"name": "j", "command": ["true"], "placement": {"only": ["not a place"]}})
