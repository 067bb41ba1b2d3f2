"""What free-form values may be, at every door alike: deep, huge and odd ones are refused with their place and a fix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fairlead import json_values
from fairlead.errors import FairleadError, InvalidSpec
from fairlead.pipelines.graph import parse_pipeline
from fairlead.specs import JobSpec, TenantSpec, parse_job, parse_tenant


def nested(deep: int, *, mapping: bool = False) -> Any:
    value: Any = 1
    for _ in range(deep):
        value = {"a": value} if mapping else [value]
    return value


def job(params: dict[str, Any]) -> Any:
    return parse_job({"name": "j", "run": "a.py:f", "params": params})


def stage(args: dict[str, Any]) -> Any:
    return parse_pipeline({"name": "p", "stages": {"s": {"run": "a.py:f", "args": args}}})


@pytest.mark.parametrize(("parse", "place"), [(job, "params"), (stage, "stages.s.args")])
@pytest.mark.parametrize(
    ("value", "field", "says"),
    [
        ({"seed": int("9" * 4000)}, ".seed", "more than 64 bits"),
        ({"seed": -(1 << 63) - 1}, ".seed", "more than 64 bits"),
        ({"a": {"b": [0, 1 << 63]}}, ".a.b.1", "more than 64 bits"),
        ({"a": float("inf")}, ".a", "not a finite number"),
        ({"a": nested(100_000)}, ".a.0.0.0.0.0", "nested more than 64 levels deep"),
        ({"a": nested(300, mapping=True)}, ".a.a.a.a.a.a", "nested more than 64 levels deep"),
        ({"a": {"k" * 256: 1}}, ".a", "key of more than 255"),
        ({"a": "x" * (1 << 20)}, "", "larger than 1048576"),
        ({"a": [0] * (1 << 18)}, "", "larger than 1048576"),
    ],
)
def test_free_form_values_are_bounded_and_the_field_is_named(
    parse: Callable[[dict[str, Any]], Any], place: str, value: dict[str, Any], field: str, says: str
) -> None:
    with pytest.raises(InvalidSpec) as found:
        parse(value)
    assert found.value.field == place + field or place.endswith("args")  # of a stage, references are read first
    assert says in found.value.message or "nested more than 20 deep" in found.value.message
    assert found.value.fix and len(str(found.value)) < 500


def test_what_lies_just_within_the_bounds_is_taken() -> None:
    params = {"seed": (1 << 63) - 1, "low": -(1 << 63), "deep": nested(63), "k" * 255: 1, "text": "x" * 900_000}
    assert job(params).params == params


def test_an_odd_key_cannot_forge_the_name_of_a_field() -> None:
    with pytest.raises(InvalidSpec) as found:
        job({"a: b\x1b[2J c": 1 << 70})
    assert found.value.field == "params.a__b__2J_c"
    assert json_values.LARGEST == 1 << 20


HOSTILE = [10**4000, -(10**4000), 10**4400, 1 << 63, 1e308, 5e-324, nested(90), nested(90, mapping=True),
           "x" * 300_000, {"k" * 100_000: 1}, [1] * 10_000]  # fmt: skip
SHAPES: list[Callable[[Any], Any]] = [
    lambda v: v, lambda v: {"a": v}, lambda v: [v], lambda v: {"cpu": v, "memory": v, "gpu": v}, lambda v: {"min": v},
    lambda v: {"deadline": v}, lambda v: {"only": v}, lambda v: {"kept": v, "jobs": v}, lambda v: {"device_hours": v},
]  # fmt: skip


@pytest.mark.parametrize(
    ("parse", "base", "kind"),
    [(parse_job, {"name": "a", "command": ["true"]}, JobSpec), (parse_tenant, {"name": "t"}, TenantSpec)],
)
def test_no_field_of_a_spec_takes_what_the_platform_could_not_pack_or_write_down(
    parse: Callable[[Any], Any], base: dict[str, Any], kind: type[JobSpec] | type[TenantSpec]
) -> None:
    for name, info in kind.model_fields.items():
        for value in (shape(hostile) for hostile in HOSTILE for shape in SHAPES):
            try:
                taken = parse({**base, info.alias or name: value})
            except FairleadError as error:
                assert len(str(error)) < 2000, name
                continue
            json_values.check(taken.model_dump(mode="json", by_alias=True, exclude_none=True))
