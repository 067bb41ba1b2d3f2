"""Response models for data sets and lineage."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from fairlead.views.jobs import JobView, View


class DataSetView(View):
    """One version of a data set."""

    name: str
    tenant: str
    version: str
    number: int  # 1, 2, 3, ... in order of loading
    parent: str | None = None
    rows: int
    size_bytes: int
    blocks: int
    recipe: str = ""  # hash of the fitted recipe; empty: none
    job: str = ""  # the job that loaded it
    created_s: float
    created_by: str = ""
    resident: dict[str, int] = Field(default_factory=dict)  # node -> bytes in memory


class DataSetDetail(DataSetView):
    """One version with its manifest, all versions of its name, and the jobs that read them."""

    manifest: dict[str, Any] = Field(default_factory=dict)
    fitted: dict[str, Any] | None = None
    versions: list[DataSetView] = Field(default_factory=list)
    readers: dict[str, list[str]] = Field(default_factory=dict)  # version -> jobs


class StretchView(View):
    """One generation of a job: its workers, nodes and plan, from which step."""

    generation: int
    workers: int
    nodes: list[str]
    plan: str | None = None
    first_step: int | None = None
    outcome: str | None = None


class InputView(View):
    """A data set version that a job read."""

    name: str
    version: str
    recipe: str = ""
    rows: int = 0
    blocks: list[str] = Field(default_factory=list)
    loaded_by: str = ""  # the job that loaded it; empty: dropped meanwhile


class LineageView(View):
    """The data, recipe, blocks, code, settings and weights of a job's result."""

    job: str
    tenant: str
    state: str
    code: str | None = None  # the bundle's hash
    run: str | None = None
    command: list[str] | None = None
    params: dict[str, Any] = Field(default_factory=dict)
    seed: int | None = None
    data: list[InputView] = Field(default_factory=list)
    history: list[StretchView] = Field(default_factory=list)
    environment: dict[str, Any] = Field(default_factory=dict)
    weights: str | None = None
    made: list[DataSetView] = Field(default_factory=list)  # data sets that it loaded
    rerun_of: str | None = None
    same_weights: bool | None = None  # of an ended rerun: whether its weights are identical to the original's
    repeats: str = ""  # bits or tolerance: how close a rerun would be
    why: str = ""


class RerunView(View):
    """A submitted rerun and how close its weights will be."""

    job: JobView
    rerun_of: str
    repeats: str  # bits or tolerance
    why: str
