"""A worker that is on its way out may die on the way: the others go on without waiting for it."""

from __future__ import annotations

from dataclasses import replace

from fairlead.control.reconcile import gang_state_machine
from fairlead.control.reconcile.gang_state_machine import WorkerFact
from fairlead.control.records import GenerationPhase, JobPhase
from tests.control.test_gang_state_machine import Model, run_to


def test_a_gang_that_shrinks_does_not_wait_for_a_leaving_worker_that_died() -> None:
    model = Model()
    run_to(model, 4)
    model.plan(3)
    model.settle()
    assert "leave:1" in model.told
    staying = {member.worker for member in model.live()[-1].members}
    for worker, fact in model.workers.items():  # its node is killed: its peers notice and are out of the generation
        model.workers[worker] = replace(fact, phase="broken") if worker in staying else replace(fact, exited=True)
    model.settle()
    model.workers_react()
    model.settle()
    (newest,) = model.live()
    assert newest.phase is GenerationPhase.RUNNING
    assert {member.worker for member in newest.members} == staying == set(model.workers)


def test_a_gang_that_left_for_a_generation_that_was_abandoned_trains_again() -> None:
    model = Model()
    run_to(model, 1)
    model.plan(2)
    model.settle()
    model.workers_react()  # the newcomer is ready
    model.settle()
    assert "leave:1" in model.told
    model.workers["w1"] = replace(model.workers["w1"], exited=True)  # and dies before anybody has left
    model.settle()
    model.workers_react()
    model.settle()
    (first,) = model.live()
    assert first.broken_s is not None, "a round must see that it needs another generation"
    run_to(model, 1)
    (newest,) = model.live()
    assert newest.phase is GenerationPhase.RUNNING and model.workers["w0"].phase == "joined"


def test_a_job_that_is_stopped_before_its_workers_were_started_ends() -> None:
    model = Model()
    model.plan(2)
    model.workers = {m.worker: WorkerFact(m.node, "asked", device=m.device) for m in model.live()[0].members}
    model.carry_out(gang_state_machine.BeginStop(JobPhase.CANCELLED, "cancelled"))
    model.settle()
    assert model.job.phase is JobPhase.CANCELLED and model.workers == {}
