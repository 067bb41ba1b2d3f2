"""A worker that is on its way out may die on the way: the others go on without waiting for it."""

from __future__ import annotations

from dataclasses import replace

from fairlead.control.records import GenerationPhase
from tests.control.test_gangs import Model, run_to


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
