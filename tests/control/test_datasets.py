"""Data sets in the store: versions are numbered, found by how they begin, kept apart by tenant, and never changed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fairlead import wire
from fairlead.control import datasets as registry
from fairlead.control.records import DataSet
from fairlead.control.store import datasets, jobs, lineage
from fairlead.errors import NotFound

from .stores import Opened, a_job

BANK = DataSet("vision", "bank", "aaaa11" * 8, 0, None, 3, 12, "r1", {"blocks": []}, None, "load-1", 1.0, "tok")


def test_versions_are_numbered_and_the_newest_is_meant_by_the_name(db: Opened) -> None:
    first = db.write(datasets.add, BANK)
    second = db.write(datasets.add, replace(BANK, version="bbbb22" * 8, parent=BANK.version, rows=5))
    assert (first.number, second.number) == (1, 2)
    assert db.read(datasets.find, "vision", "bank").rows == 5
    assert db.read(datasets.find, "vision", "bank", "aaaa11").rows == 3
    assert [each.version for each in db.read(datasets.newest_versions, "vision")] == [second.version]
    assert db.read(registry.pin_versions, "vision", ["bank", "bank@aaaa11"]) == [
        f"bank@{second.version}", f"bank@{first.version}",
    ]  # fmt: skip


def test_the_same_content_again_is_the_same_version(db: Opened) -> None:
    db.write(datasets.add, BANK)
    again = db.write(datasets.add, replace(BANK, job="load-2", created_s=9.0, manifest={"blocks": ["new"]}))
    assert (again.number, again.job, again.manifest) == (1, "load-1", {"blocks": ["new"]})


def test_a_tenant_finds_only_its_own(db: Opened) -> None:
    db.write(datasets.add, BANK)
    for meant in ("bank", "bank@aaaa11"):
        with pytest.raises(NotFound):
            db.read(registry.pin_versions, "text", [meant])
    assert db.read(datasets.newest_versions, "text") == []


def test_a_beginning_that_fits_two_versions_names_neither(db: Opened) -> None:
    db.write(datasets.add, BANK)
    db.write(datasets.add, replace(BANK, version="aaaa11" * 7 + "cccccc"))
    with pytest.raises(NotFound, match="several versions"):
        db.read(datasets.find, "vision", "bank", "aaaa11")


def test_what_is_dropped_is_gone_and_the_rest_stays(db: Opened) -> None:
    db.write(datasets.add, BANK)
    db.write(datasets.add, replace(BANK, version="bbbb22" * 8))
    assert [each.version for each in db.write(datasets.drop, "vision", "bank", "aaaa11")] == [BANK.version]
    assert len(db.read(datasets.versions, "vision", "bank")) == 1
    db.write(datasets.drop, "vision", "bank", None)
    with pytest.raises(NotFound):
        db.write(datasets.drop, "vision", "bank", None)


def test_a_job_gets_the_manifests_as_they_were_when_it_was_handed_in(db: Opened) -> None:
    db.write(datasets.add, BANK)
    db.write(datasets.add, replace(BANK, version="bbbb22" * 8, manifest={"blocks": [1]}, created_s=2e6))
    job = a_job(submitted_s=1e6)
    assert db.read(registry.manifests_for, job, {})["bank"]["manifest"] == {"blocks": []}
    named = db.read(registry.manifests_for, job, {"data": ["bank@bbbb22"]})
    assert named["bank"]["manifest"] == {"blocks": [1]}
    assert db.read(registry.manifests_for, replace(job, training=False), {}) == {}


def test_a_result_says_what_was_read_and_registers_what_was_made(db: Opened) -> None:
    job = a_job()
    db.write(jobs.insert, job, {}, {}, None, "")
    manifest = {"name": "bank", "version": BANK.version, "rows": 0, "blocks": []}
    read = {"data": [{"name": "raw", "version": "cc" * 32}], "weights": "sha256:1"}
    finished = wire.Finished(1, 5, lineage=read, made={"sets": [{"manifest": manifest, "recipe": {}}]})
    for _ in range(2):  # an event may come again
        db.write(registry.store_origin, job, finished, 5.0)
    assert db.read(datasets.find, "vision", "bank").job == job.id
    assert db.read(lineage.inputs, job.id) == [("raw", "cc" * 32)]
    assert db.read(lineage.readers, "vision", "raw") == {"cc" * 32: [job.id]}
    origin = db.read(lineage.get, job.id)
    assert origin is not None
    assert origin.record["weights"] == "sha256:1"


def test_versions_say_under_which_labels_their_blocks_lie(db: Opened) -> None:
    old, new = "dataset/bank@00000001", "dataset/bank@00000002"
    db.write(datasets.add, BANK)
    db.write(datasets.add, replace(BANK, version="bb", manifest={"blocks": [], "labels": [old]}))
    db.write(datasets.add, replace(BANK, version="cc", manifest={"blocks": [], "labels": [old, new]}))
    db.write(datasets.add, replace(BANK, tenant="text", version="cc"))
    assert db.read(datasets.labels_by_version, "vision", ["bank", "other"]) == {
        ("bank", BANK.version): ["dataset/bank"], ("bank", "bb"): [old], ("bank", "cc"): [old, new],
    }  # fmt: skip


@pytest.mark.parametrize("label", ["snapshot/job", "dataset/other@00000001", "dataset/bank@x", "dataset/bank@0000000g"])
def test_a_manifest_names_no_labels_but_its_own(label: str) -> None:
    manifest = {"name": "bank", "version": "aaaa11", "rows": 0, "blocks": []}
    assert registry.check_manifest(manifest | {"labels": ["dataset/bank@00000001", "dataset/bank"]})
    with pytest.raises(ValueError, match="labels"):
        registry.check_manifest(manifest | {"labels": [label]})
