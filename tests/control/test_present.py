"""Records as people read them: what was stored names jobs, and who reads it is told only those that are its own."""

from __future__ import annotations

import pytest

from fairlead.control.present import event_view, generation_views, job_fields, reason_of
from fairlead.control.records import Generation, GenerationPhase, JobPhase, LoggedEvent
from fairlead.scheduling.state import Hold, Reason
from tests.control.made import job

OLD = "shrinks from 4 to 3 workers: gives 1 device to waiting job small-1 of tenant nlp, whose promise would be broken"
FOR_STRANGERS = OLD.replace("waiting job small-1 of tenant nlp", "a waiting job of another tenant")
SHOWN = pytest.mark.parametrize(("tenant", "text"), [(None, OLD), ("nlp", OLD), ("vision", FOR_STRANGERS)])
GENERATION = Generation("big-1", 2, GenerationPhase.RUNNING, (), "make-room", OLD, created_s=1.0)


@SHOWN
def test_a_generation_that_was_stored_long_ago_names_nobody_to_strangers(tenant: str | None, text: str) -> None:
    (view,) = generation_views([GENERATION], tenant)
    assert (view.reason.code, view.reason.text) == ("make-room", text)


@SHOWN
def test_why_a_job_runs_as_it_does_names_nobody_to_strangers(tenant: str | None, text: str) -> None:
    reason = reason_of(job(id="big-1"), GENERATION, None, tenant)
    assert reason is not None and reason.text == text


@SHOWN
def test_an_event_that_was_stored_long_ago_names_nobody_to_strangers(tenant: str | None, text: str) -> None:
    event = LoggedEvent(1, 1.0, "job-resizing", f"big-1: {OLD}", "vision", "big-1", facts={"why": [OLD], "size": 3})
    view = event_view(event, tenant)
    assert view.text == f"big-1: {text}" and view.facts == {"why": [text], "size": 3}


@pytest.mark.parametrize(("start_s", "shown"), [
    (1e15, None), (float("inf"), None), (float("nan"), None), (4e8, None), (2e8, 2e8), (0.0, 0.0),
])  # fmt: skip
def test_a_start_in_a_time_that_nobody_can_tell_is_not_known(start_s: float, shown: float | None) -> None:
    waits = job(id="big-1", phase=JobPhase.QUEUED)
    hold = Hold("big-1", Reason("full", "all devices are taken", {}), expected_start_s=start_s)
    assert job_fields(waits, {}, [], hold, 100.0, None)["expected_start_s"] == shown
