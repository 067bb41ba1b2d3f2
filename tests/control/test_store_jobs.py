"""Jobs and their generations: one job per key, found as people name them, a tenant's own only."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from typing import Any

import pytest

from fairlead.cluster import Member
from fairlead.control.records import ENDED, Generation, GenerationPhase, Job, JobPhase
from fairlead.control.store import generations, job_counts, jobs
from fairlead.errors import Conflict, InvalidSpec, NotFound

from .stores import Opened, a_job, run, submit


def test_a_job_comes_back_as_it_was_stored(db: Opened) -> None:
    job = a_job(
        demand={"cpu": 0.5, "memory": 2e9}, device_type="a100", then=JobPhase.QUEUED, speeds={1: 10.5, 4: 30.0},
        loss=0.25, result={"accuracy": 0.9, "artifacts": ["model.safetensors"]}, finish_by_s=2.0, message="ünïcode",
    )  # fmt: skip
    submit(db, job)
    found = db.read(jobs.get, job.id)
    assert found == job
    assert isinstance(found.since_s, float)
    assert isinstance(found.elastic, bool)
    assert db.read(jobs.get, "nobody") is None


def test_an_id_is_the_name_and_six_characters() -> None:
    assert re.fullmatch(r"train-[a-z2-7]{6}", jobs.new_id("train"))
    assert len({jobs.new_id("x") for _ in range(1000)}) == 1000


def test_spec_and_labels_are_kept(db: Opened) -> None:
    job, other = a_job(), a_job()
    spec = {"name": "train", "params": {"lr": 0.001, "big": 10**25, "nul": "\0"}}
    db.write(jobs.insert, job, spec, {"team": "a"}, None, "d")
    submit(db, other)
    assert db.read(jobs.stored_spec, job.id) == spec
    assert db.read(jobs.labels_of, [job.id, other.id, "nobody"]) == {job.id: {"team": "a"}, other.id: {}}
    with pytest.raises(NotFound):
        db.read(jobs.stored_spec, "nobody")


def test_the_same_key_twice_is_one_job(db: Opened) -> None:
    first = submit(db, a_job(), key="k")
    again, new = db.write(jobs.insert, a_job(), {}, {}, "k", "d")
    assert (again.id, new) == (first.id, False)
    assert len(db.read(jobs.active)) == 1


def test_the_same_key_with_another_request_is_a_conflict(db: Opened) -> None:
    submit(db, a_job(), key="k", digest="one")
    with pytest.raises(Conflict, match="'k'"):
        submit(db, a_job(), key="k", digest="two")


def test_a_key_belongs_to_its_tenant(db: Opened) -> None:
    assert submit(db, a_job(), key="k").id != submit(db, a_job(tenant="text"), key="k").id


def test_jobs_without_a_key_are_all_new(db: Opened) -> None:
    assert len({submit(db, a_job()).id for _ in range(3)}) == 3


def test_an_id_that_is_taken_is_replaced(db: Opened) -> None:
    first = submit(db, a_job())
    second = submit(db, replace(a_job(), id=first.id))
    assert second.id != first.id
    assert second.id.startswith("train-")
    assert db.read(jobs.stored_spec, second.id) == {"name": "train"}


def test_one_key_from_many_at_once_is_one_job(db: Opened) -> None:
    async def crowd() -> list[tuple[Job, bool]]:
        ask = [db.store.write(lambda conn: jobs.insert(conn, a_job(), {}, {}, "k", "d")) for _ in range(50)]
        return list(await asyncio.gather(*ask))

    outcomes = run(crowd())
    assert len({job.id for job, _ in outcomes}) == 1
    assert [new for _, new in outcomes].count(True) == 1


def test_one_key_through_two_stores_at_once_is_one_job(db: Opened, unopened) -> None:  # type: ignore[no-untyped-def]
    other = unopened()

    async def crowd() -> list[tuple[Job, bool]]:
        ask = [
            store.write(lambda conn, k=f"k{n}": jobs.insert(conn, a_job(), {}, {}, k, "d"), unfenced=True)
            for n in range(20)
            for store in (db.store, other)
        ]
        return list(await asyncio.gather(*ask))

    outcomes = run(crowd())
    assert len({job.id for job, _ in outcomes}) == 20
    assert len(db.read(jobs.active)) == 20


def test_a_key_that_is_too_long_is_refused(db: Opened) -> None:
    with pytest.raises(InvalidSpec, match="300"):
        submit(db, a_job(), key="k" * 300)


def test_a_job_of_no_tenant_is_refused_and_leaves_nothing(db: Opened) -> None:
    with pytest.raises(NotFound, match="nobody"):
        submit(db, a_job(tenant="nobody"), key="k")
    assert db.read(jobs.active) == []


def test_active_are_those_that_have_not_ended_oldest_first(db: Opened) -> None:
    for number, phase in enumerate(reversed(JobPhase)):
        submit(db, a_job(name=phase.value, phase=phase, submitted_s=float(number)))
    assert [job.name for job in db.read(jobs.active)] == ["stopping", "running", "starting", "queued"]


def test_active_follows_every_change(db: Opened) -> None:
    """Reads recollect what they have seen; what they show must be the truth all the same."""
    first, second = submit(db, a_job()), submit(db, a_job(submitted_s=2e6))
    assert [job.step for job in db.read(jobs.active)] == [0, 0]
    db.write(jobs.update, first.id, step=7, result={"a": 1})
    assert [(job.step, job.result) for job in db.read(jobs.active)] == [(7, {"a": 1}), (0, {})]
    db.write(jobs.update, first.id, phase=JobPhase.SUCCEEDED)
    assert [job.id for job in db.read(jobs.active)] == [second.id]
    db.write(jobs.update, first.id, phase=JobPhase.QUEUED)
    assert [job.step for job in db.read(jobs.active)] == [7, 0]


def test_update_changes_what_it_is_told(db: Opened) -> None:
    job = submit(db, a_job())
    changes = {"phase": JobPhase.STOPPING, "then": JobPhase.FAILED, "speeds": {2: 5.0}, "message": "out of memory"}
    db.write(jobs.update, job.id, **changes)
    assert db.read(jobs.get, job.id) == replace(job, **changes)
    with pytest.raises(NotFound):
        db.write(jobs.update, "nobody", step=1)


def test_a_job_is_found_by_id_name_or_beginning(db: Opened) -> None:
    old, new = submit(db, a_job(submitted_s=1.0)), submit(db, a_job(submitted_s=2.0))
    longer = submit(db, a_job(name="train-more", submitted_s=3.0))
    assert db.read(jobs.find, old.id, None).id == old.id
    assert db.read(jobs.find, "train", None).id == new.id, "a name is its newest job, not the beginning of others"
    assert db.read(jobs.find, old.id[:-1], None).id == old.id
    assert db.read(jobs.find, "train-more-", None).id == longer.id


def test_what_means_no_job_is_not_found_with_a_fix(db: Opened) -> None:
    submit(db, a_job())
    for ref in ("nobody", "", "tra", "%", "____", "train-%", "Train", "train'--"):
        with pytest.raises(NotFound) as refused:
            db.read(jobs.find, ref, None)
        assert refused.value.fix


def test_a_beginning_of_several_names_them(db: Opened) -> None:
    both = [submit(db, a_job()), submit(db, a_job())]
    with pytest.raises(NotFound, match="several") as refused:
        db.read(jobs.find, "train-", None)
    assert all(job.id in refused.value.message for job in both)


def test_the_job_of_another_tenant_is_not_found(db: Opened) -> None:
    job = submit(db, a_job(tenant="text"))
    for ref in (job.id, job.name, job.id[:-2]):
        with pytest.raises(NotFound, match="there is no job"):
            db.read(jobs.find, ref, "vision")
        assert db.read(jobs.find, ref, "text") == job


def test_pages_show_every_job_once_newest_first(db: Opened) -> None:
    for number in range(7):
        submit(db, a_job(submitted_s=float(number // 2)))  # pairs of the same moment
    seen: list[Job] = []
    cursor, pages = None, 0
    while pages == 0 or cursor is not None:
        found, cursor, total = db.read(jobs.page, limit=3, before=cursor)
        assert total == 7
        seen += found
        pages += 1
    assert pages == 3
    assert len({job.id for job in seen}) == 7
    assert seen == sorted(seen, key=lambda job: (job.submitted_s, job.id), reverse=True)


def test_pages_filter_by_tenant_phase_and_name(db: Opened) -> None:
    submit(db, a_job())
    submit(db, a_job(name="other", phase=JobPhase.FAILED))
    submit(db, a_job(tenant="text"))
    names = [
        [job.name for job in db.read(jobs.page, **chosen)[0]]
        for chosen in ({"tenant": "vision"}, {"phases": ["failed"]}, {"name": "train"}, {"tenant": "x"})
    ]
    assert names[1:] == [["other"], ["train", "train"], []]
    assert sorted(names[0]) == ["other", "train"]
    assert db.read(jobs.page, phases=[], limit=5) == ([], None, 0)


def test_a_page_that_makes_no_sense_is_refused(db: Opened) -> None:
    for chosen in ({"before": "nonsense"}, {"before": "x~y"}, {"phases": ["asleep"]}):
        with pytest.raises(InvalidSpec):
            db.read(jobs.page, **chosen)


def test_counts_are_per_tenant_and_phase(db: Opened) -> None:
    assert db.read(job_counts.counts_by_tenant) == {}
    for job in (a_job(), a_job(), a_job(phase=JobPhase.RUNNING), a_job(tenant="text")):
        submit(db, job)
    assert db.read(job_counts.counts_by_tenant) == {"vision": {"queued": 2, "running": 1}, "text": {"queued": 1}}


def a_generation(job: Job, number: int, phase: GenerationPhase = GenerationPhase.PLANNED) -> Generation:
    members = (Member("w0", 0, "n1", 0), Member("w3", 1, "n2", 1))
    return Generation(job.id, number, phase, members, "first", "there is room", 1.5)


def test_a_generation_comes_back_as_it_was_stored_and_changed(db: Opened) -> None:
    job = submit(db, a_job())
    first = a_generation(job, 1)
    db.write(generations.insert, first)
    (stored,) = db.read(generations.of_job, job.id)
    assert stored == first
    changes = {
        "phase": GenerationPhase.RUNNING,
        "running_s": 2.0,
        "members": first.members[:1],
        "rendezvous": "a 127.0.0.1:1",
    }
    db.write(generations.update, job.id, 1, **changes)
    assert db.read(generations.get, job.id, 1) == replace(first, **changes)
    with pytest.raises(NotFound):
        db.write(generations.update, job.id, 2, running_s=1.0)


def test_current_are_those_not_ended_in_order(db: Opened) -> None:
    one, two, three = (submit(db, a_job()) for _ in range(3))
    for number, phase in ((3, GenerationPhase.PLANNED), (1, GenerationPhase.ENDED), (2, GenerationPhase.RUNNING)):
        db.write(generations.insert, a_generation(one, number, phase))
    db.write(generations.insert, a_generation(two, 1, GenerationPhase.ENDED))
    db.write(generations.insert, a_generation(three, 1))
    found = db.read(generations.live_by_job, {one.id, two.id})
    assert {job: [g.number for g in live] for job, live in found.items()} == {one.id: [2, 3]}


def test_a_reader_sees_every_change_of_many_waiting_jobs(db: Opened) -> None:
    """Readers recollect the jobs they made last time: what changed since must not be among the recollections."""

    async def crowd() -> None:
        works = [lambda conn: jobs.insert(conn, a_job(), {}, {}, None, "d") for _ in range(300)]
        await asyncio.gather(*map(db.store.write, works))

    run(crowd())
    for step in range(1, 9):
        waiting = db.read(jobs.active)
        assert len(waiting) == 300
        db.write(lambda conn, job=waiting[step].id, step=step: jobs.update(conn, job, step=step))
        assert next(job.step for job in db.read(jobs.active) if job.id == waiting[step].id) == step


def test_the_queue_tells_what_runs_what_waits_and_what_has_ended_page_by_page(db: Opened) -> None:
    submitted = {"old-wait": 1.0, "old-run": 2.0, "old-end": 3.0, "wait": 4.0, "run": 5.0, "end": 6.0, "stop": 7.0}
    phases = {"wait": JobPhase.QUEUED, "run": JobPhase.RUNNING, "end": JobPhase.FAILED, "stop": JobPhase.STOPPING}
    for name, submitted_s in submitted.items():
        phase = phases[name.removeprefix("old-")]
        submit(db, a_job(name, id=name, submitted_s=submitted_s, phase=phase, finished_s=None))
    wanted = ["stop", "run", "old-run", "old-wait", "wait", "end", "old-end"]
    for limit in (1, 2, 3, 5, 7, 10):
        found: list[str] = []
        cursor: str | None = None
        while True:
            page, cursor, total = db.read(jobs.page, limit=limit, before=cursor, order="queue")
            assert total == len(wanted) and len(page) <= limit
            found += [job.id for job in page]
            if cursor is None:
                break
        assert found == wanted, limit
    active = [phase for phase in JobPhase if phase not in ENDED]
    page, cursor, total = db.read(jobs.page, phases=active, order="queue", limit=4)
    assert ([job.id for job in page], total) == (wanted[:4], 5)
    page, cursor, _ = db.read(jobs.page, phases=active, order="queue", limit=4, before=cursor)
    assert ([job.id for job in page], cursor) == (wanted[4:5], None)


@pytest.mark.parametrize("cursor", ["", "3~1.0~a", "0", "0~x~a", "1.0~a"])
def test_a_cursor_of_another_order_is_refused(db: Opened, cursor: str) -> None:
    with pytest.raises(InvalidSpec, match="is not a valid cursor"):
        db.read(jobs.page, order="queue", before=cursor)


def test_a_list_shows_the_first_metrics_and_says_how_many_it_leaves_out(db: Opened) -> None:
    plain = {f"m{at}": 0.5 for at in range(16)}
    results: dict[str, dict[str, Any]] = {
        "few": {"metrics": {"loss": 0.5}, "value": {"kind": "plain"}},
        "many": {"metrics": plain | {"more": 1.0, "b": 2.0}},
        "long": {"metrics": {"x" * 600: 1.0, "y" * 600: 2.0, "z": 3.0}}, "none": {}, "missing": {"missing": ["a"]},
    }  # fmt: skip
    for name, result in results.items():
        submit(db, a_job(name, id=name, result=result))
    found, _, _ = db.read(lambda conn: jobs.page(conn))
    assert {job.id: job.result for job in found} == {
        "few": {"metrics": {"loss": 0.5}}, "many": {"metrics": plain, "left_out": 2},
        "long": {"metrics": {"x" * 600: 1.0}, "left_out": 2}, "none": {}, "missing": {},
    }  # fmt: skip
    assert all((job := db.read(jobs.get, name)) is not None and job.result == results[name] for name in results)
