"""The pipeline spec: its stages, what each takes from others and what each needs; the same in YAML, JSON and Python."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator

from fairlead.errors import InvalidSpec
from fairlead.pipelines import argument_refs
from fairlead.spec_errors import SECRET_PATTERN
from fairlead.specs import (
    STORED,
    DataRef,
    FreeForm,
    JobSpec,
    Name,
    Placement,
    Seconds,
    Sla,
    Spec,
    Word,
    WorkerResources,
    Workers,
    invalid,
)

MAX_STAGES = 500
MAX_EDGES = 5_000
"""Dependencies per pipeline: rounds, pages and the store examine all of them."""
_MAX_NAMED = 12
"""Stages of a cycle that an error names."""
ESTIMATORS = "fairlead.pipelines.estimators:"
"""The module whose functions run the stages of scikit-learn estimators."""


class StageSpec(Spec):
    """One stage: a function with arguments, or a command. References in its arguments say which results it takes."""

    run: str | None = Field(default=None, max_length=1000)  # file.py:function or package.module:function
    command: list[Word] | None = Field(default=None, max_length=10_000)
    args: FreeForm = Field(default_factory=dict, max_length=200)
    after: list[Name] = Field(default_factory=list, max_length=MAX_STAGES)  # further stages that must come first
    workers: Workers = Workers()
    resources: WorkerResources = WorkerResources()
    placement: Placement = Placement()
    retries: int = Field(default=0, ge=0, le=100, strict=True)
    cache: bool = Field(default=True, strict=True)  # reuse an earlier result of the same stage
    trains: bool = Field(default=False, strict=True)  # returns a fairlead.Training: its gang may grow and shrink
    takes: Annotated[Seconds, Field(gt=0)] | None = None
    data: list[DataRef] = Field(default_factory=list, max_length=64)  # data sets that its training reads by name
    env: dict[str, Word] = Field(default_factory=dict, max_length=200)
    secrets: list[Annotated[str, Field(pattern=SECRET_PATTERN)]] = Field(default_factory=list, max_length=64)
    venv: str | None = Field(default=None, max_length=4096)
    source: str | None = Field(
        default=None, pattern=r"^sha256:[0-9a-f]{64}$"
    )  # digest of its own code; None: the whole bundle

    @cached_property
    def inputs(self) -> frozenset[str]:
        """The stages whose results it takes."""
        words = self.args if self.command is None else {**self.args, "command": self.command}
        return frozenset(reference.stage for reference in argument_refs.references(words))

    @cached_property
    def upstream(self) -> frozenset[str]:
        """The stages that must come before it."""
        return self.inputs | frozenset(self.after)

    @property
    def kind(self) -> str:
        """Its kind as shown to people."""
        if self.command is not None:
            return "command"
        if (self.run or "").startswith(ESTIMATORS):
            return "estimator"
        return "training" if self.trains else "function"

    @field_validator("args")
    @classmethod
    def _good_references(cls, args: dict[str, Any]) -> dict[str, Any]:
        for name, value in args.items():
            if not name.isidentifier():
                raise ValueError(f"{name}: is not the name of an argument; use letters, digits and _")
            try:
                list(argument_refs.references(value))
            except argument_refs.BadReference as error:
                raise ValueError(f"{name}: {error}") from None
        return args

    @model_validator(mode="after")
    def _one_thing_to_run(self) -> Self:
        if (self.run is None) == (self.command is None):
            raise ValueError("run: a stage runs one thing; write run: file.py:function, or command: [python, file.py]")
        if self.command is not None and (self.args or self.trains):
            raise ValueError("args: are for the function of run; put the arguments of a command into command")
        if self.run is not None and not self.trains and self.workers.max > 1:
            raise ValueError("workers: a plain function runs in one worker; leave workers out, give it more cpu, or "
                             "let it return a fairlead.Training and set trains: true")  # fmt: skip
        return self


class PipelineSpec(Spec):
    """A graph of stages."""

    apiVersion: Literal["fairlead/v1"] = "fairlead/v1"
    kind: Literal["Pipeline"] = "Pipeline"
    name: Name
    tenant: Name | None = None
    labels: dict[Annotated[str, Field(max_length=63)], Annotated[str, Field(max_length=255)]] = Field(
        default_factory=dict, max_length=60
    )
    stages: dict[Name, StageSpec] = Field(min_length=1, max_length=MAX_STAGES)
    priority: int = Field(default=0, ge=-1000, le=1000, strict=True)
    sla: Sla | None = None  # for each stage
    code: str | None = Field(default=None, pattern=r"^sha256:[0-9a-f]{64}$")

    @model_validator(mode="after")
    def _is_a_graph(self, info: ValidationInfo) -> Self:
        edges = sum(map(len, self.upstream.values()))
        if edges > MAX_EDGES and info.context is not STORED:
            raise ValueError(f"stages: have {edges} dependencies in all, more than {MAX_EDGES}; "
                             "gather results in stages in between")  # fmt: skip
        for name, others in self.upstream.items():
            for other in sorted(others):
                if other not in self.stages:
                    raise ValueError(f"stages.{name}: takes ${other}, and there is no such stage; "
                                     f"{_suggestion(other, self.stages)}")  # fmt: skip
        circle = cycle(self.upstream)
        if circle:
            way = " -> ".join([*circle[:_MAX_NAMED], *(["..."] if len(circle) > _MAX_NAMED else []), circle[0]])
            raise ValueError(f"stages.{circle[0]}: waits for itself: {way}; remove one of these arguments")
        return self

    @cached_property
    def upstream(self) -> dict[str, frozenset[str]]:
        return {name: stage.upstream for name, stage in self.stages.items()}

    @cached_property
    def behind(self) -> dict[str, int]:
        """By stage: the length of the longest chain of stages that wait for it."""
        return behind(self.upstream)


def cycle(upstream: Mapping[str, Iterable[str]]) -> list[str]:
    """The stages of one cycle in order; empty without a cycle."""
    done = {name for level in _levels(upstream) for name in level}
    waits = {name: set(others) - done for name, others in upstream.items() if name not in done}
    if not waits:
        return []
    way = [min(waits)]
    passed = {way[0]: 0}
    while (further := min(waits[way[-1]])) not in passed:
        passed[further] = len(way)
        way.append(further)
    circle = way[passed[further] :][::-1]
    first = circle.index(min(circle))
    return circle[first:] + circle[:first]


def order(upstream: Mapping[str, Iterable[str]]) -> list[str]:
    """The stages in topological order; the same for every order of the same mapping."""
    done = [name for level in _levels(upstream) for name in level]
    if len(done) < len(upstream):
        raise ValueError("the stages wait for each other in a cycle")
    return done


def _levels(upstream: Mapping[str, Iterable[str]]) -> Iterator[list[str]]:
    """Stages that can run side by side, level by level, sorted; stages in or behind a cycle are left out."""
    left = {name: set(others) & upstream.keys() for name, others in upstream.items()}
    waiting: dict[str, list[str]] = {name: [] for name in upstream}
    for name, others in left.items():
        for other in others:
            waiting[other].append(name)
    counts = {name: len(others) for name, others in left.items()}
    free = sorted(name for name, count in counts.items() if count == 0)
    while free:
        yield free
        following = []
        for name in free:
            for later in waiting[name]:
                counts[later] -= 1
                if counts[later] == 0:
                    following.append(later)
        free = sorted(following)


def behind(upstream: Mapping[str, Iterable[str]]) -> dict[str, int]:
    """By stage: the length of the longest chain of stages that wait for it."""
    found = dict.fromkeys(upstream, 0)
    for name in reversed(order(upstream)):
        for earlier in upstream[name]:
            found[earlier] = max(found[earlier], found[name] + 1)
    return found


def stage_job(spec: PipelineSpec, name: str, pipeline: str, params: Mapping[str, Any]) -> JobSpec:
    """The job that runs a stage, under the same rules as any job of its tenant.

    ``params`` may hold results of other stages; raises :class:`InvalidSpec` for values that a job cannot take.
    """
    try:
        return _stage_job(spec, name, pipeline, params)
    except ValidationError as error:
        raise invalid(error, JobSpec) from None


def _stage_job(spec: PipelineSpec, name: str, pipeline: str, params: Mapping[str, Any]) -> JobSpec:
    stage = spec.stages[name]
    return JobSpec(
        name=f"{spec.name[: max(1, 39 - len(name))].rstrip('-')}-{name}"[:40].rstrip("-"),
        tenant=spec.tenant,
        labels={**spec.labels, "pipeline": pipeline, "stage": name},
        run=stage.run,
        command=stage.command,
        params=dict(params) if stage.run is not None else {},
        workers=stage.workers,
        resources=stage.resources,
        placement=stage.placement,
        sla=spec.sla,
        priority=spec.priority,
        workload="training" if stage.trains else "batch",
        takes=stage.takes,
        data=stage.data,
        env=stage.env,
        secrets=stage.secrets,
        venv=stage.venv,
        retries=stage.retries,
        code=spec.code,
    )


def parse_pipeline(data: Any, *, source: str | None = None) -> PipelineSpec:
    """The pipeline in this data, or :class:`InvalidSpec` naming stage, field and fix."""
    place = f"{source}: " if source else ""
    if not isinstance(data, Mapping):
        raise InvalidSpec(f"is a mapping of fields, and this is a {type(data).__name__}", field=f"{place}pipeline",
                          fix="write name: ... and stages: ...")  # fmt: skip
    try:
        spec = PipelineSpec.model_validate(dict(data))
        for name in spec.stages:  # refuse stages that are invalid as jobs now, not when they start
            _stage_job(spec, name, spec.name, {})
    except ValidationError as error:
        raise invalid(error, PipelineSpec, source) from None
    return spec


def stored_pipeline(document: Mapping[str, Any]) -> PipelineSpec:
    """A stored pipeline, perhaps accepted by an earlier version with other limits."""
    return PipelineSpec.model_validate(dict(document), context=STORED)


def _suggestion(name: str, stages: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(stages), n=1)
    return f"did you mean ${close[0]}?" if close else f"add it, or take one of: {', '.join(sorted(stages)[:8])}"
