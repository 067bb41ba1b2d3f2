"""Errors on their way out: each becomes a problem document that a program and a person can read."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from fairlead import errors
from fairlead.api.problems import (
    SHOWN_CHARS,
    MalformedBody,
    TooFast,
    failure_response,
    invalid_request,
    problem_response,
)
from fairlead.errors import FairleadError, InvalidSpec


def _kinds(kind: type[FairleadError]) -> set[type[FairleadError]]:
    return {kind}.union(*(_kinds(child) for child in kind.__subclasses__()))


OWN = sorted((kind for kind in _kinds(FairleadError) if kind.__module__ == errors.__name__), key=lambda k: k.__name__)


def _document(error: FairleadError) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(bytes(problem_response(error).body))
    return document


@pytest.mark.parametrize("kind", OWN, ids=lambda kind: kind.__name__)
def test_every_error_leaves_with_its_own_status_and_comes_back_as_itself(kind: type[FairleadError]) -> None:
    error = kind("that is wrong", field="workers.max", value=12, fix="lower it")
    response = problem_response(error)
    document = json.loads(bytes(response.body))
    assert response.status_code == document["status"] == kind.status
    assert response.headers["content-type"] == "application/problem+json"
    assert (document["field"], document["value"], document["fix"]) == ("workers.max", 12, "lower it")
    again = FairleadError.from_problem(document)
    assert type(again) is kind and str(again) == str(error)


def test_a_401_says_how_to_authenticate() -> None:
    assert problem_response(errors.Unauthenticated("no")).headers["WWW-Authenticate"].startswith("Bearer")


@pytest.mark.parametrize(("wait_s", "header"), [(0.001, "1"), (0.9, "1"), (1.2, "2"), (30.0, "30")])
def test_a_429_says_when_to_come_again(wait_s: float, header: str) -> None:
    response = problem_response(TooFast("too fast", wait_s=wait_s))
    assert response.status_code == 429 and response.headers["Retry-After"] == header


def test_what_is_not_json_is_a_400_that_clients_know_as_an_invalid_spec() -> None:
    document = _document(MalformedBody("is empty", field="body"))
    assert document["status"] == 400 and isinstance(FairleadError.from_problem(document), InvalidSpec)


@pytest.mark.parametrize("value", [math.nan, math.inf, 10**400, object(), {1, 2}, b"\xff", "x" * 10**6])
def test_whatever_the_value_is_the_problem_can_be_written_and_stays_short(value: Any) -> None:
    body = bytes(problem_response(InvalidSpec(f"{str(value)[:2000]} is wrong", field="name", value=value)).body)
    assert len(body) < 3 * SHOWN_CHARS
    assert json.loads(body)["field"] == "name"


def test_a_failure_of_our_own_names_only_its_id() -> None:
    document = json.loads(bytes(failure_response("abc123").body))
    assert document["status"] == 500 and document["error_id"] == "abc123" and "abc123" in document["detail"]


@pytest.mark.parametrize(
    ("error", "field", "detail", "value"),
    [
        ({"type": "missing", "loc": ("query", "limit"), "msg": "Field required"}, "limit", "is required", None),
        ({"type": "extra_forbidden", "loc": ("query", "limt"), "msg": "no", "input": "3"}, "limt", "unknown", "3"),
        ({"type": "int_parsing", "loc": ("query", "limit"), "msg": "not a number", "input": "x"}, "limit", "'x'", "x"),
        ({"type": "odd", "loc": ("query",), "msg": "wrong", "input": {}}, "query", "wrong", None),
    ],
)
def test_a_wrong_parameter_is_named_with_its_value_and_a_fix(
    error: dict[str, Any], field: str, detail: str, value: Any
) -> None:
    problem = invalid_request([error])
    assert problem.field == field and detail in problem.message and problem.value == value and problem.fix
