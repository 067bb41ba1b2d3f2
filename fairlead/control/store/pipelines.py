"""Stores pipelines and their stages: submits once per idempotency key, finds by id, prefix or name."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, func, select
from sqlalchemy import insert as insert_rows
from sqlalchemy import update as update_rows

from fairlead.control.pipelines.records import RUNNING, PipelineRecord, StageRecord
from fairlead.control.store.jobs import new_id
from fairlead.control.store.pipeline_schema import pipelines, stages
from fairlead.control.store.row_mapping import column_values, row_of
from fairlead.errors import Conflict, NotFound
from fairlead.pipelines.next_steps import StagePhase

_PIPELINE = [pipelines.c[name] for name in PipelineRecord.__slots__]
_STAGE = [stages.c[name] for name in StageRecord.__slots__]
_PHASE = StageRecord.__slots__.index("phase")
_MIN_PREFIX = 4


def insert(conn: Connection, made: PipelineRecord, own: Iterable[StageRecord]) -> tuple[PipelineRecord, bool]:
    """The stored pipeline and whether it is new. The same key and request again returns the first one."""
    if made.key is not None:
        same = (pipelines.c.tenant == made.tenant) & (pipelines.c.key == made.key)
        row = conn.execute(select(*_PIPELINE).where(same)).one_or_none()
        if row is not None:
            first = PipelineRecord(*row)
            if first.request_digest != made.request_digest:
                raise Conflict(f"the idempotency key {made.key!r} already stands for another request, {first.id}",
                               field="Idempotency-Key", value=made.key, fix="use a new key")  # fmt: skip
            return first, False
    while conn.execute(select(pipelines.c.id).where(pipelines.c.id == made.id)).one_or_none() is not None:
        made = replace(made, id=new_id(made.name))
    conn.execute(insert_rows(pipelines), row_of(made))
    conn.execute(insert_rows(stages), [row_of(replace(stage, pipeline=made.id)) for stage in own])
    return made, True


def key_exists(conn: Connection, tenant: str, key: str | None) -> bool:
    """True if a pipeline was submitted with this idempotency key."""
    same = (pipelines.c.tenant == tenant) & (pipelines.c.key == key)
    return key is not None and conn.execute(select(pipelines.c.id).where(same)).first() is not None


def get(conn: Connection, pipeline: str) -> PipelineRecord | None:
    row = conn.execute(select(*_PIPELINE).where(pipelines.c.id == pipeline)).one_or_none()
    return None if row is None else PipelineRecord(*row)


def find(conn: Connection, ref: str, tenant: str | None) -> PipelineRecord:
    """The pipeline with this id, this name (the newest) or this beginning of an id.

    Only the tenant's own if one is given.
    """
    own = [] if tenant is None else [pipelines.c.tenant == tenant]
    newest = select(*_PIPELINE).where(*own).order_by(pipelines.c.submitted_s.desc(), pipelines.c.id.desc())
    for exact in (pipelines.c.id == ref, pipelines.c.name == ref):
        row = conn.execute(newest.where(exact).limit(1)).one_or_none()
        if row is not None:
            return PipelineRecord(*row)
    if len(ref) >= _MIN_PREFIX:
        rows = conn.execute(newest.where(pipelines.c.id >= ref, pipelines.c.id < ref + "~").limit(2)).all()
        if len(rows) == 1:
            return PipelineRecord(*rows[0])
        if rows:
            raise NotFound(f"{ref!r} is the beginning of several pipeline ids", value=ref, fix="write more of the id")
    raise NotFound(f"there is no pipeline {ref!r}", value=ref, fix="list them with fairlead pipeline list")


def running_ids(conn: Connection) -> list[str]:
    """Ids of the unfinished pipelines, oldest first."""
    query = select(pipelines.c.id).where(pipelines.c.phase == RUNNING).order_by(pipelines.c.submitted_s, pipelines.c.id)
    return list(conn.execute(query).scalars())


def list_running(conn: Connection) -> list[tuple[str, str, bool]]:
    """Of each unfinished pipeline, oldest first: id, tenant, and whether it is being cancelled."""
    columns = pipelines.c.id, pipelines.c.tenant, pipelines.c.cancelled_by.is_not(None)
    query = select(*columns).where(pipelines.c.phase == RUNNING).order_by(pipelines.c.submitted_s, pipelines.c.id)
    return [(name, tenant, bool(cancelled)) for name, tenant, cancelled in conn.execute(query)]


def count_unfinished(conn: Connection, tenant: str) -> tuple[int, int]:
    """Number of the tenant's unfinished pipelines, and of all their stages."""
    own = (pipelines.c.tenant == tenant) & (pipelines.c.phase == RUNNING)
    count = conn.execute(select(func.count()).select_from(pipelines).where(own)).scalar_one()
    of_them = stages.c.pipeline.in_(select(pipelines.c.id).where(own))
    return int(count), int(conn.execute(select(func.count()).select_from(stages).where(of_them)).scalar_one())


def stage_states(conn: Connection, pipeline: str, names: Collection[str]) -> dict[str, tuple[str, str | None]]:
    """Phase and job of these stages by name."""
    columns = stages.c.name, stages.c.phase, stages.c.job
    query = select(*columns).where(stages.c.pipeline == pipeline, stages.c.name.in_(list(names)))
    return {name: (phase, job) for name, phase, job in conn.execute(query)}


def newest(conn: Connection, tenant: str | None, limit: int) -> list[PipelineRecord]:
    own = [] if tenant is None else [pipelines.c.tenant == tenant]
    query = select(*_PIPELINE).where(*own).order_by(pipelines.c.submitted_s.desc(), pipelines.c.id.desc())
    return [PipelineRecord(*row) for row in conn.execute(query.limit(limit))]


def update(conn: Connection, pipeline: str, **changes: Any) -> None:
    conn.execute(update_rows(pipelines).where(pipelines.c.id == pipeline).values(column_values(changes)))


def stages_of(conn: Connection, wanted: Collection[str]) -> dict[str, dict[str, StageRecord]]:
    """Stages by pipeline and name."""
    found: dict[str, dict[str, StageRecord]] = {pipeline: {} for pipeline in wanted}
    query = select(*_STAGE).where(stages.c.pipeline.in_(list(wanted))).order_by(stages.c.pipeline, stages.c.name)
    for row in conn.execute(query):
        stage = _stage(row)
        found[stage.pipeline][stage.name] = stage
    return found


def update_stage(conn: Connection, pipeline: str, name: str, **changes: Any) -> None:
    this = (stages.c.pipeline == pipeline) & (stages.c.name == name)
    conn.execute(update_rows(stages).where(this).values(column_values(changes)))


def reusable_stages(conn: Connection, tenant: str, prints: Collection[str]) -> dict[str, StageRecord]:
    """By fingerprint: the tenant's newest stage whose result is still kept."""
    this = (stages.c.tenant == tenant) & stages.c.fingerprint.in_(list(prints)) & stages.c.kept
    query = select(*_STAGE).where(this).order_by(stages.c.finished_s)
    return {stage.fingerprint: stage for stage in map(_stage, conn.execute(query))} if prints else {}


def mark_results_gone(conn: Connection, tenant: str, fingerprint: str) -> None:
    """The results of this fingerprint are gone: no later pipeline may reuse them."""
    this = (stages.c.tenant == tenant) & (stages.c.fingerprint == fingerprint)
    conn.execute(update_rows(stages).where(this).values(kept=False))


def _stage(row: Iterable[Any]) -> StageRecord:
    values = list(row)
    values[_PHASE] = StagePhase(values[_PHASE])
    return StageRecord(*values)
