"""What people read about data sets and lineage: the shapes of those answers."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from fairlead.views.jobs import JobView, View


class DataSetView(View):
    """One version of a data set."""

    name: str
    tenant: str
    version: str
    number: int  # 1, 2, 3, ...: in the order in which they came
    parent: str | None = None
    rows: int
    size_bytes: int
    blocks: int
    recipe: str = ""  # hash of the fitted recipe; empty: none
    job: str = ""  # that loaded it
    created_s: float
    created_by: str = ""
    resident: dict[str, int] = Field(default_factory=dict)  # bytes of it that nodes hold in memory


class DataSetDetail(DataSetView):
    """One version with its manifest, the others of its name, and who read them."""

    manifest: dict[str, Any] = Field(default_factory=dict)
    fitted: dict[str, Any] | None = None
    versions: list[DataSetView] = Field(default_factory=list)
    readers: dict[str, list[str]] = Field(default_factory=dict)  # version -> jobs


class StretchView(View):
    """Steps that were taken alike: by how many workers, where, under which plan."""

    generation: int
    workers: int
    nodes: list[str]
    plan: str | None = None
    first_step: int | None = None
    outcome: str | None = None


class InputView(View):
    """A version of data that a job read."""

    name: str
    version: str
    recipe: str = ""
    rows: int = 0
    blocks: list[str] = Field(default_factory=list)
    loaded_by: str = ""  # the job that made it; empty: it was dropped since


class LineageView(View):
    """Where a job's result came from: data, recipe, blocks, code, run, weights."""

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
    same_weights: bool | None = None  # of a rerun that ended: whether its weights are the first one's, bit by bit
    repeats: str = ""  # bits or tolerance: what a rerun of it would give
    why: str = ""


class RerunView(View):
    """A rerun that was handed in, and what may be expected of it."""

    job: JobView
    rerun_of: str
    repeats: str  # bits or tolerance
    why: str
