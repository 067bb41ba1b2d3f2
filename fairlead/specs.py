"""What people write: tenants and jobs, as YAML or Python alike, checked where they enter."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from fairlead import json_values
from fairlead.errors import InvalidSpec
from fairlead.spec_errors import DATA_PATTERN, NAME_PATTERN, PLACE_PATTERN, SECRET_PATTERN, invalid
from fairlead.units import is_duration, parse_duration, parse_size

__all__ = [
    "API_VERSION", "LONGEST_SECRET", "NAME_PATTERN", "SECRET_PATTERN", "SHORTEST_SECRET", "SLA_CLASSES",
    "Budget", "JobSpec", "Name", "Placement", "Policy", "Retention",
    "Seconds", "Size", "Sla", "Spec", "TenantSpec", "WorkerResources", "Workers", "invalid", "parse_duration",
    "parse_job", "parse_size", "parse_tenant",
]  # fmt: skip

API_VERSION = "fairlead/v1"
PLATFORM_PREFIX = "FAIRLEAD_"  # of environment variables that no job sets
SHORTEST_SECRET, LONGEST_SECRET = 4, 32_768  # a shorter one could not be told from any other text in a log

SLA_CLASSES: Mapping[str, float] = {"gold": 60.0, "silver": 600.0, "bronze": 3600.0}
"""A class promises that the job starts within this many seconds of its submission."""


def _parse_deadline(value: Any) -> Any:
    if is_duration(value):
        try:
            return timedelta(seconds=parse_duration(value))
        except OverflowError:
            raise ValueError("is too far away; write it like 2h or 30d") from None
    return value


LONGEST_DEADLINE = timedelta(days=3653)
LAST_DEADLINE = datetime(2200, 1, 1, tzinfo=UTC)
"""Nothing is promised for a time beyond: forecasts and calendars end somewhere."""

STORED: Mapping[str, Any] = {"stored": True}
"""Context for specs that were taken in before: what is stored is read, whatever the bounds were then."""


def _bounded(value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
    if info.context is not STORED:
        json_values.check(value)
    return value


FreeForm = Annotated[dict[str, Any], AfterValidator(_bounded)]
"""Whatever JSON a function is given, within the bounds of :mod:`fairlead.json_values`."""
Size = Annotated[int, BeforeValidator(parse_size), Field(gt=0, lt=1 << 62)]
Seconds = Annotated[float, BeforeValidator(parse_duration), Field(ge=0, le=1e10, allow_inf_nan=False)]
Word = Annotated[str, Field(max_length=100_000)]
"""Of a command, or the value of a variable: no system starts a process with a longer one."""
Name = Annotated[str, Field(pattern=NAME_PATTERN)]
ByType = dict[Name, Annotated[int, Field(ge=0, le=1_000_000, strict=True)]]
"""Whole devices by type, such as ``{v100: 4}``."""


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
        if isinstance(value, Mapping):
            return {"max": value["min"], **value} if "min" in value else value
        if isinstance(value, int) and not isinstance(value, bool):
            return {"min": value, "max": value}
        if isinstance(value, str):
            low, colon, high = value.partition(":")
            if len(value) < 20 and low.strip().isdecimal() and (not colon or high.strip().isdecimal()):
                return {"min": int(low), "max": int(high if colon else low)}
        if isinstance(value, Workers):
            return value
        raise ValueError("is not a number of workers; write 4 or 1:4")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min: {self.min} is more than workers.max, {self.max}; swap them or raise workers.max")
        return self


class WorkerResources(Spec):
    """What each worker needs; what is not said is its slot's fair part of the node."""

    cpu: float | None = Field(default=None, gt=0, le=1e6, allow_inf_nan=False)
    memory: Size | None = None
    gpu: int = Field(default=0, ge=0, le=1_000_000)
    device: Name | None = None  # device type, such as cpu, v100 or a100; None takes any

    def demand(self) -> dict[str, float]:
        """The map the scheduler reckons with, on top of the one device that every worker takes."""
        named = {"cpu": self.cpu, "memory": self.memory, "gpu": self.gpu or None}
        return {name: float(amount) for name, amount in named.items() if amount is not None}


Place = Annotated[str, Field(pattern=PLACE_PATTERN)]
DataRef = Annotated[str, Field(pattern=DATA_PATTERN)]
"""A data set: ``bank``, as it is when the job is handed in, or one version of it, ``bank@3f2a9c``."""


class Placement(Spec):
    """Where it may run and where it would rather run: zones, racks, nodes or labels, as ``fairlead nodes`` has them."""

    only: list[Place] = Field(default_factory=list, max_length=64)  # residency: nowhere else; empty: anywhere
    near: list[Place] = Field(default_factory=list, max_length=64)  # locality: where its data lies


class Sla(Spec):
    """What was promised: nothing, a finish time, or a class with a time to start."""

    deadline: Annotated[datetime | timedelta, BeforeValidator(_parse_deadline)] | None = None
    class_: Literal["gold", "silver", "bronze"] | None = Field(default=None, alias="class")
    strict: bool | None = Field(default=None, strict=True)  # whether a job whose deadline cannot be kept is refused

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    @field_validator("deadline")
    @classmethod
    def _within_sight(cls, value: datetime | timedelta | None, info: ValidationInfo) -> datetime | timedelta | None:
        if isinstance(value, timedelta) and value > LONGEST_DEADLINE:
            value, words = LONGEST_DEADLINE, "is more than ten years away; write it like 2h or 30d"
        elif isinstance(value, datetime) and value.year >= LAST_DEADLINE.year:
            value, words = LAST_DEADLINE, f"is after the year {LAST_DEADLINE.year - 1}; write it like 2h or 30d"
        else:
            return value
        if info.context is STORED:
            return value
        raise ValueError(words)

    @model_validator(mode="after")
    def _one_promise(self) -> Self:
        if self.deadline is not None and self.class_ is not None:
            raise ValueError("class: stands beside a deadline, and only one can be promised; keep one of them")
        if isinstance(self.deadline, datetime) and self.deadline.tzinfo is None:
            raise ValueError(f"deadline: {self.deadline.isoformat()} has no time zone; add one, such as Z or +02:00")
        if isinstance(self.deadline, timedelta) and self.deadline.total_seconds() <= 0:
            raise ValueError("deadline: is over as soon as the job is submitted; write a time to come, like 2h")
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

    apiVersion: Literal["fairlead/v1"] = "fairlead/v1"
    kind: Literal["Job"] = "Job"
    name: Name
    tenant: Name | None = None  # None: the tenant of the token that submits
    labels: dict[Annotated[str, Field(max_length=63)], Annotated[str, Field(max_length=255)]] = Field(
        default_factory=dict, max_length=64
    )
    # file.py:function or package.module:function returning a fairlead.Training
    run: str | None = Field(default=None, max_length=1000)
    command: list[Word] | None = Field(default=None, max_length=10_000)
    params: FreeForm = Field(default_factory=dict)
    workers: Workers = Workers()
    resources: WorkerResources = WorkerResources()
    placement: Placement = Placement()
    sla: Sla | None = None  # None: the tenant's default
    priority: int = Field(default=0, ge=-1000, le=1000, strict=True)
    workload: Literal["training", "tuning", "inference", "batch"] = "training"
    plan: Literal["auto", "single", "dp", "ddp", "fsdp", "tp", "pp"] = "auto"  # how a Training is spread
    takes: Annotated[Seconds, Field(gt=0)] | None = None  # about so long with the fewest workers; None: not known
    data: list[DataRef] = Field(default_factory=list, max_length=64)  # data sets it reads; it runs near them if it can
    env: dict[str, Word] = Field(default_factory=dict, max_length=1000)
    secrets: list[Annotated[str, Field(pattern=SECRET_PATTERN)]] = Field(default_factory=list, max_length=64)
    venv: str | None = Field(default=None, max_length=4096)
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

    @field_validator("venv")
    @classmethod
    def _whole_path(cls, venv: str | None) -> str | None:
        if venv is not None and not venv.startswith("/"):
            raise ValueError("is not a whole path; write it like /home/me/project/.venv")
        return venv

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
            if len(name) > json_values.LONGEST_KEY:
                raise ValueError(f"a name has more than {json_values.LONGEST_KEY} characters; shorten it")
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                raise ValueError(f"{name}: is not the name of an environment variable; use letters, digits and _")
            if name.startswith(PLATFORM_PREFIX):
                raise ValueError(f"{name}: would be the platform's own; choose a name without {PLATFORM_PREFIX}")
            if "\0" in value:
                raise ValueError(f"{name}: holds a zero byte; remove it")
        return env

    @model_validator(mode="after")
    def _one_thing_to_run(self) -> Self:
        if self.run is None and self.command is None:
            raise ValueError("run: is required; add run: train.py:training, or command: [python, train.py]")
        if self.run is not None and self.command is not None:
            raise ValueError("command: stands beside run, and a job runs one thing; keep one of them")
        if self.plan != "auto" and self.run is None:
            raise ValueError("plan: is how a Training is spread, and a command spreads itself; remove it")
        if self.plan in ("fsdp", "tp", "pp") and self.workers.max == 1:
            raise ValueError(f"plan: {self.plan} spreads a model over several workers; set workers to 2 or more")
        if self.params and self.run is None:
            raise ValueError("params: are for the function of run; put arguments of a command into command")
        if twice := sorted(set(self.env) & set(self.secrets)):
            raise ValueError(f"env: {twice[0]} stands in secrets as well; keep one of them")
        return self

    def facts(self) -> dict[str, Any]:
        """What the job says about itself that a policy may want to know."""
        said: dict[str, Any] = {"class": None if self.workload == "training" else self.workload, "takes_s": self.takes}
        said |= {"plan": None if self.plan == "auto" else self.plan}
        said |= {"only": self.placement.only or None, "near": self.placement.near or None}
        said |= {"data": list(dict.fromkeys(ref.partition("@")[0] for ref in self.data)) or None}
        return {name: value for name, value in said.items() if value is not None}

    @property
    def elastic(self) -> bool:
        """Whether a running gang may change its size: a Training can, a plain command starts over instead."""
        return self.run is not None and self.workers.max > self.workers.min


class Retention(Spec):
    """How long what an ended job leaves behind is kept; what is not said is kept for ever."""

    logs: Seconds | None = None
    metrics: Seconds | None = None
    results: Seconds | None = None
    jobs: Seconds | None = None  # all of it; what is not said: as long as any of the rest

    @property
    def rows(self) -> float | None:
        """How long the platform knows of an ended job; None: for ever."""
        if self.jobs is not None:
            return self.jobs
        rest = (self.logs, self.metrics, self.results)
        known = [seconds for seconds in rest if seconds is not None]
        return max(known) if len(known) == len(rest) else None


class Policy(Spec):
    """What a tenant's jobs may reach and how much they may leave behind, as an administrator decides."""

    network: Literal["closed", "open"] = "closed"  # closed: a gang reaches itself only; open: what the machine reaches
    # readable inside its sandbox, never writable
    folders: list[Annotated[str, Field(max_length=4096)]] = Field(default_factory=list, max_length=64)
    disk: Size = 10 * 1024**3  # of one job: code, home, temporary files, snapshots and output together
    kept: Size = 100 * 1024**3  # of all its ended jobs together: logs and output, of which the oldest go first
    log: Size = 64 * 1024**2  # the newest bytes of each worker's log that are kept
    files: int = Field(default=65_536, ge=64, le=1_048_576)  # open at once, in each process
    processes: int = Field(default=4096, ge=16, le=100_000)  # and threads, of one worker
    jobs: int = Field(default=10_000, ge=1, le=1_000_000)  # that run and wait at once
    grid: Size = 2 * 1024**3  # of each node's memory, for blocks of its data; taken as it is used
    grid_encrypted: bool = False  # in memory, too: no other way to the bytes, and no zero-copy
    retention: Retention = Retention()

    @field_validator("folders")
    @classmethod
    def _whole_paths(cls, folders: list[str]) -> list[str]:
        for folder in folders:
            if not folder.startswith("/") or ".." in folder.split("/") or folder.rstrip("/") == "":
                raise ValueError(f"{folder}: is not a whole path of a folder; write it like /data/images")
        return [folder.rstrip("/") for folder in folders]


class Budget(Spec):
    """How much device time a tenant may use in each day, week (from Monday) or month, all in UTC."""

    device_hours: float = Field(gt=0, le=1e9, allow_inf_nan=False)
    per: Literal["day", "week", "month"] = "month"
    warn_at: float = Field(default=0.8, gt=0, le=1, allow_inf_nan=False)  # fraction at which a warning is given


class TenantSpec(Spec):
    """One team: its weight in the shares, what it may never exceed, and its default promise."""

    apiVersion: Literal["fairlead/v1"] = "fairlead/v1"
    kind: Literal["Tenant"] = "Tenant"
    name: Name
    weight: float = Field(default=1.0, gt=0, le=1e6, allow_inf_nan=False)
    quota: int | None = Field(default=None, ge=1, le=1_000_000)  # devices at the same time; None: no limit of its own
    sla: Sla = Sla()
    policy: Policy = Policy()
    budget: Budget | None = None
    parent: Name | None = None  # the tenant whose share it divides with its siblings; None: a part of the whole
    guarantee: ByType = Field(default_factory=dict, max_length=64)  # devices that it gets whenever it wants them
    most: ByType = Field(default_factory=dict, max_length=64)  # devices of a type that it never exceeds

    @model_validator(mode="after")
    def _guarantees_within_limits(self) -> Self:
        if self.parent == self.name:
            raise ValueError(f"parent: {self.name} cannot stand below itself; name another tenant, or none")
        for kind, devices in self.guarantee.items():
            if devices > self.most.get(kind, devices):
                raise ValueError(f"guarantee: {devices} of {kind} are more than its most of {self.most[kind]}; "
                                 "lower the guarantee or raise most")  # fmt: skip
        if self.quota is not None and (sure := sum(self.guarantee.values())) > self.quota:
            raise ValueError(f"guarantee: {sure} devices are more than its quota of {self.quota}; "
                             "lower the guarantee or raise the quota")  # fmt: skip
        return self


def parse_job(data: Any, *, source: str | None = None) -> JobSpec:
    """The job that the data describes, or :class:`InvalidSpec` naming field, value and fix."""
    return _parse(JobSpec, data, source)


def parse_tenant(data: Any, *, source: str | None = None) -> TenantSpec:
    return _parse(TenantSpec, data, source)


def _parse(kind: type[S], data: Any, source: str | None) -> S:
    if not isinstance(data, Mapping):
        name = kind.__name__.removesuffix("Spec").lower()
        found = "nothing" if data is None else f"a {type(data).__name__}"
        message = f"is a mapping of fields, and this is {found}"
        field = f"{source}: {name}" if source else name
        raise InvalidSpec(message, field=field, fix="write one line per field, like name: my-job")
    try:
        return kind.model_validate(dict(data))
    except ValidationError as error:
        raise invalid(error, kind, source) from None
