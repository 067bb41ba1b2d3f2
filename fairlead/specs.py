"""What people write: tenants and jobs, as YAML or Python alike, checked where they enter."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from fairlead.errors import InvalidSpec

API_VERSION = "fairlead/v1"
NAME_PATTERN = r"^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$"

_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?b?)\s*$", re.IGNORECASE)
_DURATION = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*$", re.IGNORECASE)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

SLA_CLASSES: Mapping[str, float] = {"gold": 60.0, "silver": 600.0, "bronze": 3600.0}
"""A class promises that the job starts within this many seconds of its submission."""


def parse_size(value: Any) -> Any:
    """Bytes from ``512MB``, ``1.5GiB`` or a plain number; anything else is left for pydantic to refuse."""
    if not isinstance(value, str):
        return value
    match = _SIZE.match(value)
    if match is None:
        raise ValueError("is not a size; write it like 512MB or 2GiB")
    unit = match[2].lower().rstrip("b")
    base = 1024 if unit.endswith("i") else 1000
    power = " kmgt".index(unit.rstrip("i") or " ")
    return int(float(match[1]) * base**power)


def parse_duration(value: Any) -> Any:
    """Seconds from ``90s``, ``30m``, ``2h``, ``1d`` or a plain number."""
    if not isinstance(value, str):
        return value
    match = _DURATION.match(value)
    if match is None:
        raise ValueError("is not a duration; write it like 90s, 30m or 2h")
    return float(match[1]) * _SECONDS[match[2].lower()]


def _parse_deadline(value: Any) -> Any:
    if isinstance(value, str) and _DURATION.match(value):
        return timedelta(seconds=parse_duration(value))
    return value


Size = Annotated[int, BeforeValidator(parse_size), Field(gt=0)]
Seconds = Annotated[float, BeforeValidator(parse_duration), Field(ge=0, allow_inf_nan=False)]
Name = Annotated[str, Field(pattern=NAME_PATTERN)]


class Spec(BaseModel):
    """Base of all specs: immutable, and an unknown field is an error, not a silent nothing."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False)


S = TypeVar("S", bound=Spec)


class Workers(Spec):
    """How many workers a gang may have: ``4``, ``1:4`` or ``{min: 1, max: 4}``."""

    min: int = Field(default=1, ge=1, le=100_000, strict=True)
    max: int = Field(default=1, ge=1, le=100_000, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, value: Any) -> Any:
        if isinstance(value, bool):
            raise ValueError("is not a number of workers; write 4 or 1:4")
        if isinstance(value, int):
            return {"min": value, "max": value}
        if isinstance(value, str):
            low, colon, high = value.partition(":")
            try:
                return {"min": int(low), "max": int(high if colon else low)}
            except ValueError:
                raise ValueError("is not a number of workers; write 4 or 1:4") from None
        return value

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min {self.min} is more than max {self.max}; swap them or raise max")
        return self


class WorkerResources(Spec):
    """What each worker needs; what is not said is its slot's fair part of the node."""

    cpu: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    memory: Size | None = None
    gpu: int = Field(default=0, ge=0)
    device: Name | None = None  # device type, such as cpu, v100 or a100; None takes any

    def demand(self) -> dict[str, float]:
        """The map the scheduler reckons with, on top of the one device that every worker takes."""
        named = {"cpu": self.cpu, "memory": self.memory, "gpu": self.gpu or None}
        return {name: float(amount) for name, amount in named.items() if amount is not None}


class Sla(Spec):
    """What was promised: nothing, a finish time, or a class with a time to start."""

    deadline: Annotated[datetime | timedelta, BeforeValidator(_parse_deadline)] | None = None
    class_: Literal["gold", "silver", "bronze"] | None = Field(default=None, alias="class")

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    @model_validator(mode="after")
    def _one_promise(self) -> Self:
        if self.deadline is not None and self.class_ is not None:
            raise ValueError("has both deadline and class; keep one of them")
        if isinstance(self.deadline, datetime) and self.deadline.tzinfo is None:
            raise ValueError("deadline has no time zone; add one, such as Z or +02:00")
        if isinstance(self.deadline, timedelta) and self.deadline.total_seconds() <= 0:
            raise ValueError("deadline must lie in the future")
        return self

    def finish_by_s(self, submitted_s: float) -> float | None:
        """Epoch seconds by which the job must be done, if a deadline was promised."""
        if self.deadline is None:
            return None
        if isinstance(self.deadline, timedelta):
            return submitted_s + self.deadline.total_seconds()
        return self.deadline.timestamp()

    def start_by_s(self, submitted_s: float) -> float | None:
        """Epoch seconds by which the job must have started, if a class was promised."""
        return None if self.class_ is None else submitted_s + SLA_CLASSES[self.class_]


class JobSpec(Spec):
    """One job: what to run, for whom, on how much, by when."""

    apiVersion: Literal["fairlead/v1"] = "fairlead/v1"  # noqa: N815 (the spelling that people know)
    kind: Literal["Job"] = "Job"
    name: Name
    tenant: Name | None = None  # None: the tenant of the token that submits
    labels: dict[Annotated[str, Field(max_length=63)], Annotated[str, Field(max_length=255)]] = Field(
        default_factory=dict, max_length=64
    )
    run: str | None = None  # file.py:function or package.module:function returning a fairlead.Training
    command: list[str] | None = None
    params: dict[str, Any] = Field(default_factory=dict)
    workers: Workers = Workers()
    resources: WorkerResources = WorkerResources()
    sla: Sla | None = None  # None: the tenant's default
    priority: int = Field(default=0, ge=-1000, le=1000, strict=True)
    env: dict[str, str] = Field(default_factory=dict)
    venv: str | None = None
    retries: int = Field(default=0, ge=0, le=100, strict=True)
    silence_timeout: Seconds | None = None  # None: max(30 s, ten usual steps)
    code: str | None = Field(default=None, pattern=r"^sha256:[0-9a-f]{64}$")  # the bundle it runs from

    @field_validator("run")
    @classmethod
    def _names_a_function(cls, run: str | None) -> str | None:
        if run is not None:
            place, _, function = run.rpartition(":")
            if not place or not function.isidentifier():
                raise ValueError("is not a function; write it like train.py:training or package.module:training")
            if place.startswith("/") or ".." in place.split("/"):
                raise ValueError("must lie inside the submitted folder; write a relative path")
        return run

    @field_validator("command")
    @classmethod
    def _not_empty(cls, command: list[str] | None) -> list[str] | None:
        if command is not None and (not command or not command[0]):
            raise ValueError("is empty; write it like [python, train.py]")
        return command

    @field_validator("env")
    @classmethod
    def _proper_variables(cls, env: dict[str, str]) -> dict[str, str]:
        for name, value in env.items():
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or "\0" in value:
                raise ValueError(f"{name!r} is not the name of an environment variable; use letters, digits and _")
        return env

    @model_validator(mode="after")
    def _one_thing_to_run(self) -> Self:
        if (self.run is None) == (self.command is None):
            raise ValueError("needs either run (file.py:function) or command, and not both")
        if self.params and self.run is None:
            raise ValueError("params are passed to the function of run; a command takes its arguments in command")
        return self

    @property
    def elastic(self) -> bool:
        """Whether a running gang may change its size: a Training can, a plain command starts over instead."""
        return self.run is not None and self.workers.max > self.workers.min


class TenantSpec(Spec):
    """One team: its weight in the shares, what it may never exceed, and its default promise."""

    apiVersion: Literal["fairlead/v1"] = "fairlead/v1"  # noqa: N815
    kind: Literal["Tenant"] = "Tenant"
    name: Name
    weight: float = Field(default=1.0, gt=0, le=1e6, allow_inf_nan=False)
    quota: int | None = Field(default=None, ge=1)  # devices at the same time; None: no limit of its own
    sla: Sla = Sla()


def parse_job(data: Any, *, source: str | None = None) -> JobSpec:
    """The job that the data describes, or :class:`InvalidSpec` naming field, value and fix."""
    return _parse(JobSpec, data, source)


def parse_tenant(data: Any, *, source: str | None = None) -> TenantSpec:
    return _parse(TenantSpec, data, source)


def _parse(kind: type[S], data: Any, source: str | None) -> S:
    if not isinstance(data, Mapping):
        raise InvalidSpec(f"a {kind.__name__} is a mapping of fields, not {type(data).__name__}", fix="write name: ...")
    try:
        return kind.model_validate(dict(data))
    except ValidationError as error:
        raise invalid(error, kind, source) from None


def invalid(error: ValidationError, kind: type[Spec], source: str | None = None) -> InvalidSpec:
    """The first thing that is wrong, as one line for a person."""
    first = error.errors(include_url=False)[0]
    parts = [str(part) for part in first["loc"] if part not in ("class_", "datetime", "timedelta")]
    field = ".".join(parts) or kind.__name__.removesuffix("Spec").lower()
    value = first.get("input")
    message = str(first["msg"]).removeprefix("Value error, ")
    fix: str | None = None
    if first["type"] == "extra_forbidden":
        message, fix = "unknown field", f"remove it, or use one of: {', '.join(_fields(kind, parts[:-1]))}"
    elif first["type"] == "missing":
        message, fix, value = "is required", f"add {field}: ...", None
    elif ";" in message:
        message, _, fix = message.partition("; ")
    if first["type"] not in ("missing", "extra_forbidden") and isinstance(value, str | int | float | bool):
        message = f"{value!r}: {message}"
    prefix = f"{source}: " if source else ""
    shown = value if isinstance(value, str | int | float | bool) else None
    return InvalidSpec(message, field=f"{prefix}{field}", value=shown, fix=fix or "see docs/jobs.md for the fields")


def _fields(kind: type[BaseModel], path: list[str]) -> list[str]:
    for part in path:
        annotation = kind.model_fields[part].annotation if part in kind.model_fields else None
        inner = next((a for a in (annotation, *getattr(annotation, "__args__", ())) if _is_model(a)), None)
        if inner is None:
            break
        kind = inner
    return [info.alias or name for name, info in kind.model_fields.items()]


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
