"""Specs of tenants and jobs, written in YAML or Python, validated on entry."""

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
PLATFORM_PREFIX = "FAIRLEAD_"  # reserved environment variables
SHORTEST_SECRET, LONGEST_SECRET = 4, 32_768  # shorter secrets could not be masked in logs

SLA_CLASSES: Mapping[str, float] = {"gold": 60.0, "silver": 600.0, "bronze": 3600.0}
"""Seconds from submission within which a job of this class must start."""


def _parse_deadline(value: Any) -> Any:
    if is_duration(value):
        try:
            return timedelta(seconds=parse_duration(value))
        except OverflowError:
            raise ValueError("is too far away; write it like 2h or 30d") from None
    return value


LONGEST_DEADLINE = timedelta(days=3653)
LAST_DEADLINE = datetime(2200, 1, 1, tzinfo=UTC)
"""The last deadline that is accepted."""

STORED: Mapping[str, Any] = {"stored": True}
"""Validation context for stored specs, which were accepted under earlier bounds and are not refused now."""


def _bounded(value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
    if info.context is not STORED:
        json_values.check(value)
    return value


FreeForm = Annotated[dict[str, Any], AfterValidator(_bounded)]
"""Free-form JSON within the bounds of :mod:`fairlead.json_values`."""
Size = Annotated[int, BeforeValidator(parse_size), Field(gt=0, lt=1 << 62)]
Seconds = Annotated[float, BeforeValidator(parse_duration), Field(ge=0, le=1e10, allow_inf_nan=False)]
Word = Annotated[str, Field(max_length=100_000)]
"""A word of a command or the value of a variable; longer ones exceed the limits of execve."""
Name = Annotated[str, Field(pattern=NAME_PATTERN)]
ByType = dict[Name, Annotated[int, Field(ge=0, le=1_000_000, strict=True)]]
"""Whole devices by type, such as ``{v100: 4}``."""


class Spec(BaseModel):
    """Base of all specs: immutable; unknown fields are errors."""

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
    """Resources of each worker; default: an equal part of the node per device."""

    cpu: float | None = Field(default=None, gt=0, le=1e6, allow_inf_nan=False)
    memory: Size | None = None
    gpu: int = Field(default=0, ge=0, le=1_000_000)
    device: Name | None = None  # device type, such as cpu, v100 or a100; None takes any

    def demand(self) -> dict[str, float]:
        """The demand for the scheduler, in addition to one device per worker."""
        named = {"cpu": self.cpu, "memory": self.memory, "gpu": self.gpu or None}
        return {name: float(amount) for name, amount in named.items() if amount is not None}


Place = Annotated[str, Field(pattern=PLACE_PATTERN)]
DataRef = Annotated[str, Field(pattern=DATA_PATTERN)]
"""A data set: ``bank`` (newest version at submission) or one version, ``bank@3f2a9c``."""


class Placement(Spec):
    """Where a job must or should run: zones, racks, nodes or labels, as shown by ``fairlead nodes``."""

    only: list[Place] = Field(default_factory=list, max_length=64)  # residency constraint; empty: anywhere
    near: list[Place] = Field(default_factory=list, max_length=64)  # locality preference


class Sla(Spec):
    """A job's SLA: none, a deadline, or a class with a maximum waiting time."""

    deadline: Annotated[datetime | timedelta, BeforeValidator(_parse_deadline)] | None = None
    class_: Literal["gold", "silver", "bronze"] | None = Field(default=None, alias="class")
    strict: bool | None = Field(default=None, strict=True)  # refuse the job if its deadline cannot be met

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    @field_validator("deadline")
    @classmethod
    def _within_sight(cls, value: datetime | timedelta | None, info: ValidationInfo) -> datetime | timedelta | None:
        if isinstance(value, timedelta) and value > LONGEST_DEADLINE:
            value, problem = LONGEST_DEADLINE, "is more than ten years away; write it like 2h or 30d"
        elif isinstance(value, datetime) and value.year >= LAST_DEADLINE.year:
            value, problem = LAST_DEADLINE, f"is after the year {LAST_DEADLINE.year - 1}; write it like 2h or 30d"
        else:
            return value
        if info.context is STORED:
            return value
        raise ValueError(problem)

    @model_validator(mode="after")
    def _one_promise(self) -> Self:
        if self.deadline is not None and self.class_ is not None:
            raise ValueError("class: excludes deadline; keep one of them")
        if isinstance(self.deadline, datetime) and self.deadline.tzinfo is None:
            raise ValueError(f"deadline: {self.deadline.isoformat()} has no time zone; add one, such as Z or +02:00")
        if isinstance(self.deadline, timedelta) and self.deadline.total_seconds() <= 0:
            raise ValueError("deadline: is not in the future; write a duration like 2h")
        return self

    def finish_by_s(self, submitted_s: float) -> float | None:
        """Epoch seconds by which the job must end; None without a deadline."""
        if self.deadline is None:
            return None
        if isinstance(self.deadline, timedelta):
            return submitted_s + self.deadline.total_seconds()
        return self.deadline.timestamp()

    def start_by_s(self, submitted_s: float) -> float | None:
        """Epoch seconds by which the job must start; None without an SLA class."""
        return None if self.class_ is None else submitted_s + SLA_CLASSES[self.class_]


class JobSpec(Spec):
    """One job: what to run, for which tenant, on which resources, by when."""

    apiVersion: Literal["fairlead/v1"] = "fairlead/v1"
    kind: Literal["Job"] = "Job"
    name: Name
    tenant: Name | None = None  # None: the tenant of the submitting token
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
    plan: Literal["auto", "single", "dp", "ddp", "fsdp", "tp", "pp"] = "auto"  # the kind of parallel plan
    takes: Annotated[Seconds, Field(gt=0)] | None = None  # estimated run time with the fewest workers; None: unknown
    data: list[DataRef] = Field(default_factory=list, max_length=64)  # data sets it reads; placed near them if possible
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
            raise ValueError("is not an absolute path; write it like /home/me/project/.venv")
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
                raise ValueError(f"{name}: is reserved for the platform; choose a name without {PLATFORM_PREFIX}")
            if "\0" in value:
                raise ValueError(f"{name}: holds a zero byte; remove it")
        return env

    @model_validator(mode="after")
    def _one_thing_to_run(self) -> Self:
        if self.run is None and self.command is None:
            raise ValueError("run: is required; add run: train.py:training, or command: [python, train.py]")
        if self.run is not None and self.command is not None:
            raise ValueError("command: excludes run; keep one of them")
        if self.plan != "auto" and self.run is None:
            raise ValueError("plan: applies only to run, not to command; remove it")
        if self.plan in ("fsdp", "tp", "pp") and self.workers.max == 1:
            raise ValueError(f"plan: {self.plan} needs several workers; set workers to 2 or more")
        if self.params and self.run is None:
            raise ValueError("params: apply only to run; put arguments of a command into command")
        if twice := sorted(set(self.env) & set(self.secrets)):
            raise ValueError(f"env: {twice[0]} is also in secrets; keep one of them")
        return self

    def facts(self) -> dict[str, Any]:
        """Properties of the job for scheduling policies."""
        facts: dict[str, Any] = {"class": None if self.workload == "training" else self.workload, "takes_s": self.takes}
        facts |= {"plan": None if self.plan == "auto" else self.plan}
        facts |= {"only": self.placement.only or None, "near": self.placement.near or None}
        facts |= {"data": list(dict.fromkeys(ref.partition("@")[0] for ref in self.data)) or None}
        return {name: value for name, value in facts.items() if value is not None}

    @property
    def elastic(self) -> bool:
        """True if a running gang may change its size: a Training can, a command would have to restart."""
        return self.run is not None and self.workers.max > self.workers.min


class Retention(Spec):
    """How long parts of an ended job are kept; None: forever."""

    logs: Seconds | None = None
    metrics: Seconds | None = None
    results: Seconds | None = None
    jobs: Seconds | None = None  # the whole job; None: as long as any other part

    @property
    def rows(self) -> float | None:
        """How long an ended job stays in the store; None: forever."""
        if self.jobs is not None:
            return self.jobs
        rest = (self.logs, self.metrics, self.results)
        known = [seconds for seconds in rest if seconds is not None]
        return max(known) if len(known) == len(rest) else None


class Policy(Spec):
    """Network, file and size limits of a tenant's jobs, set by an admin."""

    network: Literal["closed", "open"] = (
        "closed"  # closed: workers reach only their own gang; open: every address the machine reaches
    )
    # readable inside its sandbox, never writable
    folders: list[Annotated[str, Field(max_length=4096)]] = Field(default_factory=list, max_length=64)
    disk: Size = 10 * 1024**3  # per job: code, home, temporary files, snapshots and output together
    kept: Size = 100 * 1024**3  # of all ended jobs together: logs and output; the oldest are deleted first
    log: Size = 64 * 1024**2  # newest bytes kept of each worker's log
    files: int = Field(default=65_536, ge=64, le=1_048_576)  # open files per process
    processes: int = Field(default=4096, ge=16, le=100_000)  # and threads, per worker
    jobs: int = Field(default=10_000, ge=1, le=1_000_000)  # running and waiting
    grid: Size = 2 * 1024**3  # memory per node for data blocks; allocated on use
    grid_encrypted: bool = False  # encrypted in memory, without zero-copy reads
    retention: Retention = Retention()

    @field_validator("folders")
    @classmethod
    def _whole_paths(cls, folders: list[str]) -> list[str]:
        for folder in folders:
            if not folder.startswith("/") or ".." in folder.split("/") or folder.rstrip("/") == "":
                raise ValueError(f"{folder}: is not an absolute path of a folder; write it like /data/images")
        return [folder.rstrip("/") for folder in folders]


class Budget(Spec):
    """Device hours that a tenant may use per day, week (from Monday) or month, in UTC."""

    device_hours: float = Field(gt=0, le=1e9, allow_inf_nan=False)
    per: Literal["day", "week", "month"] = "month"
    warn_at: float = Field(default=0.8, gt=0, le=1, allow_inf_nan=False)  # fraction at which a warning is given


class TenantSpec(Spec):
    """One tenant: its weight, limits and default SLA."""

    apiVersion: Literal["fairlead/v1"] = "fairlead/v1"
    kind: Literal["Tenant"] = "Tenant"
    name: Name
    weight: float = Field(default=1.0, gt=0, le=1e6, allow_inf_nan=False)
    quota: int | None = Field(default=None, ge=1, le=1_000_000)  # devices in use at a time; None: unlimited
    sla: Sla = Sla()
    policy: Policy = Policy()
    budget: Budget | None = None
    parent: Name | None = None  # parent tenant, whose share it divides with its siblings; None: top level
    guarantee: ByType = Field(default_factory=dict, max_length=64)  # guaranteed devices by type
    most: ByType = Field(default_factory=dict, max_length=64)  # maximum devices by type

    @model_validator(mode="after")
    def _guarantees_within_limits(self) -> Self:
        if self.parent == self.name:
            raise ValueError(f"parent: {self.name} cannot be its own parent; name another tenant, or none")
        for kind, devices in self.guarantee.items():
            if devices > self.most.get(kind, devices):
                raise ValueError(f"guarantee: {devices} of {kind} exceed its maximum of {self.most[kind]}; "
                                 "lower the guarantee or raise most")  # fmt: skip
        if self.quota is not None and (sure := sum(self.guarantee.values())) > self.quota:
            raise ValueError(f"guarantee: {sure} devices exceed its quota of {self.quota}; "
                             "lower the guarantee or raise the quota")  # fmt: skip
        return self


def parse_job(data: Any, *, source: str | None = None) -> JobSpec:
    """The job spec in the data; :class:`InvalidSpec` names field, value and fix."""
    return _parse(JobSpec, data, source)


def parse_tenant(data: Any, *, source: str | None = None) -> TenantSpec:
    return _parse(TenantSpec, data, source)


def _parse(kind: type[S], data: Any, source: str | None) -> S:
    if not isinstance(data, Mapping):
        name = kind.__name__.removesuffix("Spec").lower()
        found = "nothing" if data is None else f"a {type(data).__name__}"
        message = f"must be a mapping of fields, not {found}"
        field = f"{source}: {name}" if source else name
        raise InvalidSpec(message, field=field, fix="write one line per field, like name: my-job")
    try:
        return kind.model_validate(dict(data))
    except ValidationError as error:
        raise invalid(error, kind, source) from None
