"""Every policy on clusters with several types of device, with jobs that do not run on all of them."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from fairlead.scheduling.state import ClusterState, Reason, Round, Start
from fairlead.simulation.clusters import cluster
from fairlead.simulation.engine import SimulationError, simulate
from fairlead.simulation.policies import POLICIES
from fairlead.simulation.runs import run
from fairlead.simulation.trace import Trace
from fairlead.simulation.trace_reader import read_trace

PLAIN = """id,arrival_s,duration_s,devices,speed.v100,speed.k80
a,0,100,2,1,
b,0,100,2,,1
c,5,100,1,1,0.5
d,6,100,2,,1
"""

TABLED = """job_id,submit_time,iteration,model_name,ddl,batch_size,num_gpu,duration
0,0,100,small,5000,64,1,50
1,5,100,small,5000,64,8,50
2,6,100,small,5000,64,3,50
"""

SPEEDS = "global_batch_size,1,2,4,8\n64,1,1.8,3,5\n"


@pytest.fixture
def plain(tmp_path: Path) -> Trace:
    (tmp_path / "jobs.csv").write_text(PLAIN)
    return read_trace(tmp_path / "jobs.csv")


@pytest.fixture
def tabled(tmp_path: Path) -> Trace:
    (tmp_path / "throughputs_T4").mkdir()
    (tmp_path / "throughputs_T4" / "small.csv").write_text(SPEEDS)
    (tmp_path / "jobs.csv").write_text(TABLED)
    return read_trace(tmp_path / "jobs.csv")


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_policy_finishes_jobs_that_run_on_some_types_only(plain: Trace, policy: str) -> None:
    outcome = run(plain, policy, cluster("4xv100,4xk80"))
    assert {job.id for job in outcome.jobs} == {"a", "b", "c", "d"}


@pytest.mark.parametrize("policy", sorted(POLICIES.keys() - {"shockwave"}))
def test_every_policy_finishes_jobs_whose_gangs_were_measured_over_several_nodes_only(
    tabled: Trace, policy: str
) -> None:
    """A gang of eight is more than a node, one of three was not measured, and devices of another type are no use."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        outcome = run(tabled, policy, (*cluster("4x4xt4"), *cluster("8xa100")))
    assert {job.id for job in outcome.jobs} == {"0", "1", "2"}


def test_a_policy_that_seats_a_job_where_it_does_not_run_is_found_out(plain: Trace) -> None:
    def stubborn(state: ClusterState) -> Round:
        return Round(tuple(Start(job.id, ("v100",) * 2, Reason("x", "x")) for job in state.jobs if job.id == "b"), {})

    with pytest.raises(SimulationError, match="wait for ever"):
        simulate(plain, cluster("4xv100,4xk80"), stubborn)
