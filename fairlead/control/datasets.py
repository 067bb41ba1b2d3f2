"""Registers versions of data sets when the job that made them succeeds, and selects the manifests that a job gets."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection

from fairlead import wire
from fairlead.control.lineage import check_origin
from fairlead.control.records import DataSet, Job
from fairlead.control.store import datasets, events, lineage
from fairlead.spec_errors import NAME_PATTERN

MOST_BYTES = 16 << 20  # of one manifest with its recipe
MOST_SETS = 16  # made by one job
MOST_HANDED = 8 << 20  # of all manifests that a job gets without naming them
_MOST_LABELS = 10_000  # loads that one version is made of
_VERSION = re.compile(r"^[0-9a-f]{6,64}$")
_MOST = 2**53


class ManifestBlock(msgspec.Struct, frozen=True):
    """One block of a data set; other fields of the manifest are stored unread."""

    id: str
    rows: int
    bytes: int = 0


class ManifestOutline(msgspec.Struct, frozen=True):
    """The fields of a manifest that the control plane reads."""

    name: str
    version: str
    rows: int
    blocks: list[ManifestBlock]
    parent: str | None = None
    recipe: str = ""
    labels: list[str] = []


def check_manifest(manifest: Mapping[str, Any]) -> ManifestOutline:
    """The manifest's outline, if an honest worker could have written it; ValueError otherwise."""
    if len(msgspec.msgpack.encode(manifest)) > MOST_BYTES:
        raise ValueError("a manifest that is too large")
    try:
        found = msgspec.convert(dict(manifest), ManifestOutline)
    except msgspec.ValidationError as error:
        raise ValueError(f"a manifest that cannot be read: {error}") from None
    counts = [found.rows, *(count for block in found.blocks for count in (block.rows, block.bytes))]
    good_parent = found.parent is None or _VERSION.match(found.parent)
    if not re.match(NAME_PATTERN, found.name) or not _VERSION.match(found.version) or not good_parent:
        raise ValueError("a manifest without a proper name and version")
    label = re.compile(rf"dataset/{re.escape(found.name)}(@[0-9a-f]{{8}})?")
    if len(found.labels) > _MOST_LABELS or not all(map(label.fullmatch, found.labels)):
        raise ValueError("a manifest with labels of blocks that are not its own")
    if not all(0 <= count <= _MOST for count in counts) or sum(block.rows for block in found.blocks) != found.rows:
        raise ValueError("a manifest with impossible numbers")
    return found


def store_origin(connection: Connection, job: Job, finished: wire.Finished, now_s: float) -> None:
    """Store the origin of a job's result, and the data sets that it made."""
    for made in _sets(finished.made):
        register(connection, job, made, now_s)
    try:
        said = check_origin(finished.lineage)
    except ValueError as error:  # an invalid origin must not lose a trained model
        plain: dict[str, Any] = {"why_not": str(error)}
    else:
        plain = msgspec.to_builtins(said) if finished.lineage else {}
        lineage.record_inputs(connection, job.id, job.tenant, [(each.name, each.version) for each in said.data])
    lineage.record_facts(connection, job.id, job.tenant, plain, now_s)


def _sets(made: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    sets = made.get("sets", [])
    if not isinstance(sets, list) or len(sets) > MOST_SETS or not all(isinstance(each, dict) for each in sets):
        raise ValueError("data sets that are none")
    return sets


def register(connection: Connection, job: Job, made: Mapping[str, Any], now_s: float) -> DataSet:
    """Register a new version; ValueError if the report is invalid."""
    manifest, fitted = made.get("manifest"), made.get("recipe")
    if not isinstance(manifest, dict) or not (fitted is None or isinstance(fitted, dict)):
        raise ValueError("a data set without a manifest")
    if fitted is not None and len(msgspec.msgpack.encode(fitted)) > MOST_BYTES:
        raise ValueError("a recipe that is too large")
    found = check_manifest(manifest)
    stored = datasets.add(connection, DataSet(
        tenant=job.tenant, name=found.name, version=found.version, number=0, parent=found.parent, rows=found.rows,
        size_bytes=sum(block.bytes for block in found.blocks), recipe=found.recipe, manifest=manifest, fitted=fitted,
        job=job.id, created_s=now_s, created_by=job.submitted_by,
    ))  # fmt: skip
    text = f"{found.name}@{found.version[:12]} has {found.rows} rows in {len(found.blocks)} blocks"
    events.append(connection, time_s=now_s, kind="data-loaded", text=text, tenant=job.tenant, job=job.id,
                  facts={"name": found.name, "version": found.version, "number": stored.number})  # fmt: skip
    return stored


def split_reference(ref: str) -> tuple[str, str | None]:
    """Name and version (or its beginning) of a reference such as ``bank@3f2a9c``."""
    name, _, version = ref.partition("@")
    return name, version or None


def pin_versions(connection: Connection, tenant: str, refs: Sequence[str]) -> list[str]:
    """The references, each with the version that it means now; raises NotFound."""
    found = (datasets.find(connection, tenant, *split_reference(ref)) for ref in refs)
    return [f"{each.name}@{each.version}" for each in found]


def manifests_for(connection: Connection, job: Job, spec: Mapping[str, Any]) -> dict[str, Any]:
    """The manifests that a job's workers get: of the data sets that the job names, or else of all, as of its
    submission.

    Every worker of every generation gets the same.
    """
    if not job.training:
        return {}
    if refs := spec.get("data"):
        return {
            each.name: _manifest_and_recipe(each)
            for each in (datasets.find(connection, job.tenant, *split_reference(ref)) for ref in refs)
        }
    told: dict[str, Any] = {}
    room = MOST_HANDED
    for each in sorted(
        datasets.newest_versions(connection, job.tenant, job.submitted_s), key=lambda one: one.size_bytes
    ):
        room -= len(msgspec.msgpack.encode(_manifest_and_recipe(each)))
        if room < 0:
            break  # a job that means one of the rest names it
        told[each.name] = _manifest_and_recipe(each)
    return told


def _manifest_and_recipe(data: DataSet) -> dict[str, Any]:
    return {"manifest": dict(data.manifest), "recipe": None if data.fitted is None else dict(data.fitted)}
