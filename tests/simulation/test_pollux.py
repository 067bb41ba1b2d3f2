"""Pollux's jobs behave as its study measured them, and Tiresias on them gives the published figures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.errors import NotFound
from fairlead.scheduling.curves import FAR, NEAR
from fairlead.simulation.engine import simulate
from fairlead.simulation.trace_formats import pollux
from fairlead.simulation.trace_formats.goodput import Application
from fairlead.simulation.trace_formats.step_times import StepTimes, normal
from fairlead.simulation.yardsticks.tiresias import for_trace
from tests.simulation.builders import TRACES, needs_traces, profile, step_s


@pytest.fixture
def application(tmp_path: Path) -> Application:
    return Application(profile(tmp_path / "made-up"))


@needs_traces
def test_tiresias_on_workload_6_gives_the_published_average_to_the_digit() -> None:
    trace = pollux.read(TRACES / "pollux/workloads/workload-6.csv")
    outcome = simulate(trace.rigid(), trace.nodes, for_trace(trace))
    figures = outcome.figures()
    assert figures["avg_jct_s"] == pytest.approx(3469.69375, abs=0.001)
    assert figures["makespan_s"] == pytest.approx(78_556, abs=1)
    assert figures["p99_jct_s"] == pytest.approx(46_336, abs=1)
    assert figures["jobs"] == 160


@needs_traces
def test_every_gang_up_to_the_widest_has_a_speed_on_the_measured_cluster() -> None:
    trace = pollux.read(TRACES / "pollux/workloads/workload-1.csv")
    for job in {job.facts["application"]: job for job in trace.jobs}.values():
        curve = job.model.curve(0.0)
        near, far = curve.speeds["t4"]
        assert all(near[size - 1] > 0 for size in curve.sizes if size <= 4)
        assert all(far[size - 1] > 0 for size in curve.sizes if size > 1)
        assert np.isfinite([*near, *far]).all()
        assert job.max_workers == curve.sizes[-1]


def test_placements_that_a_ring_cannot_tell_apart_have_one_name() -> None:
    assert normal((4, 1, 3)) == normal((1, 3, 4)) == normal((3, 4, 1)) == (1, 3, 4)
    assert normal((4, 3, 1)) == (1, 4, 3)
    assert normal((8,)) == normal((4, 4)) == (4, 4)
    assert normal((6,)) == (2, 4)


def test_what_was_measured_is_used_and_between_it_is_interpolated(tmp_path: Path) -> None:
    steps = StepTimes(profile(tmp_path / "app"))
    assert steps.of((4, 4), np.array([16.0, 24.0]))[:, 0] == pytest.approx([step_s(2, 8, 16), step_s(2, 8, 24)])
    not_measured = steps.of((2, 4, 4, 4, 4), np.array([20.0]))
    assert not_measured[0, 0] == pytest.approx(step_s(5, 18, 20))


def test_a_corner_that_nobody_measured_takes_the_nearest_that_was(tmp_path: Path) -> None:
    steps = StepTimes(profile(tmp_path / "app"))
    assert np.isfinite(steps.of((1,) * 40, np.array([8.0, 32.0]))).all()


@given(batch=st.floats(16, 256), workers=st.integers(1, 16))
@settings(max_examples=200, deadline=None)
def test_no_pass_is_larger_than_a_device_holds_and_no_batch_larger_than_allowed(batch: float, workers: int) -> None:
    app = _MADE_UP[0]
    local, more = (float(values[0]) for values in app._split(np.array([batch]), workers))
    assert 1 <= local <= app.largest_local
    assert workers * local * (more + 1) <= app.largest_batch
    assert workers * local * (more + 1) >= batch - workers * (more + 1) or local * workers * (more + 1) >= batch


_MADE_UP: list[Application] = []


@pytest.fixture(autouse=True, scope="module")
def _made_up(tmp_path_factory: pytest.TempPathFactory) -> None:
    _MADE_UP[:] = [Application(profile(tmp_path_factory.mktemp("profiles") / "app"))]


def test_a_single_worker_accumulates_when_it_goes_beyond_the_first_batch(application: Application) -> None:
    local, more = application._split(np.array([16.0, 32.0]), 1)
    assert list(more) == [0.0, 1.0]
    assert list(local) == [16.0, 16.0]


def test_progress_per_second_is_what_the_equation_says(application: Application) -> None:
    """Batch 64 on 4 devices, first epoch: noise 4 and signal 1 at four times the first batch."""
    gain = (4.0 + 1.0) / (4.0 / 4.0 + 1.0)
    assert application.rate(0, (4,), 64) == pytest.approx(gain / step_s(1, 4, 16))


def test_a_job_with_a_free_hand_is_never_slower_than_with_the_batch_its_user_asked_for(tmp_path: Path) -> None:
    """The law here has the same noise for all batch sizes, so what the job believes is the truth."""
    app = Application(profile(tmp_path / "app"))
    for spread in ((1,), (4,), (4, 4)):
        for batch in (16 * sum(spread), 32 * sum(spread)):
            assert app.rate(1, spread, None) >= app.rate(1, spread, batch) * 0.97


def test_the_curve_says_what_the_gang_will_really_do(application: Application) -> None:
    curve = application.curve(1, application.sizes, None)
    assert curve.speed("t4", 4, NEAR) == pytest.approx(application.rate(1, (4,), None))
    assert curve.speed("t4", 8, FAR) == pytest.approx(application.rate(1, (4, 4), None))
    assert curve.speed("t4", 8, NEAR) == 0.0
    assert curve.speed("t4", 1, FAR) == 0.0


def test_a_curve_stays_the_same_object_until_the_epoch_ends(application: Application) -> None:
    job = pollux.PolluxJob(application, application.sizes)
    assert job.changes_at(0.0) == 100.0
    assert job.curve(0.0) is job.curve(99.0)
    assert job.curve(100.0) is not job.curve(99.0)
    assert job.work == 300.0
    assert job.declared_work_left(120.0) == 180.0


def test_an_epoch_takes_whole_seconds(application: Application) -> None:
    job = pollux.PolluxJob(application, (4,), 64)
    course = job.begin()
    ran = course.run(10_000.0, "t4", (4,), 30.0)
    by_epoch = [round(100.0 / application.rate(epoch, (4,), 64)) for epoch in range(3)]
    assert course.finished
    assert ran.took_s == 30.0 + sum(by_epoch)
    assert ran.service_s == sum(by_epoch)


def _workload(folder: Path, *rows: str) -> Path:
    (folder / "workloads").mkdir()
    path = folder / "workloads" / "w.csv"
    path.write_text("\n".join(["name,time,application,num_replicas,batch_size", *rows]))
    return path


def test_jobs_can_be_run_elastic_or_as_their_users_asked(tmp_path: Path) -> None:
    profile(tmp_path / "traces" / "app")
    trace = pollux.read(_workload(tmp_path, "b,120,app,8,128", "a,60,app,4,64"))
    assert [job.id for job in trace.jobs] == ["a", "b"]
    elastic, rigid = trace.jobs[1], trace.rigid().jobs[1]
    assert (elastic.min_workers, elastic.max_workers) == (1, 32)
    assert (rigid.min_workers, rigid.max_workers) == (8, 8)
    assert rigid.model.rate(0.0, "t4", (4, 4)) == pytest.approx(rigid.model.curve(0.0).speed("t4", 8, FAR))
    assert rigid.exclusive_s == pytest.approx(sum(100.0 / rigid.model.rate(at, "t4", (4, 4)) for at in (0, 100, 200)))


def test_ncf_stays_on_one_device_with_its_batch_size(tmp_path: Path) -> None:
    profile(tmp_path / "traces" / "ncf", locals_=(256, 32768), batches=(256, 32768))
    (job,) = pollux.read(_workload(tmp_path, "n,0,ncf,1,32768")).jobs
    assert job.max_workers == 1
    assert job.model.curve(0.0).sizes == (1,)


def test_other_devices_than_those_measured_are_of_no_use(application: Application) -> None:
    job = pollux.PolluxJob(application, application.sizes)
    assert job.rate(0.0, "a100", (4,)) == 0.0


def test_a_missing_profile_is_named_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no profile of app") as caught:
        pollux.read(_workload(tmp_path, "a,0,app,1,16"))
    assert "placements.csv" in (caught.value.fix or "")
