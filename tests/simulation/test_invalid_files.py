"""Mistakes in what a simulation is given: each is told in one line with its place, its value and a fix."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.errors import FairleadError, InvalidSpec, Refused
from fairlead.scheduling.state import TenantState
from fairlead.simulation.clusters import cluster
from fairlead.simulation.engine import Settings
from fairlead.simulation.runs import run, spread_over_tenants
from fairlead.simulation.tenants import check_owners, read_tenants
from fairlead.simulation.trace_reader import read_trace

PHILLY = "timestamp,duration,num_gpus,cluster\n"
TIRESIAS = "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n"
POLLUX = "name,time,application,num_replicas,batch_size\n"
CSV = "id,arrival_s,duration_s,devices,weight,deadline_s,max_devices,serial\n"
SACCT = "JobID|User|Account|Submit|ElapsedRaw|AllocTRES|State\n"
GAVEL = "LM (batch size 5)\tpython3 x\tlm\t-n\t1\t36\t1\t1\t-1.000000\t0\n"


def written(folder: Path, text: str | bytes, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def refusal(call: object, *given: object, **how: object) -> str:
    """All that is said: one line with a place, and a fix."""
    with pytest.raises(FairleadError) as told:
        call(*given, **how)  # type: ignore[operator]
    assert told.value.field and told.value.fix, str(told.value)
    assert "\n" not in f"{told.value}{told.value.fix}"
    return str(told.value)


@pytest.mark.parametrize("text", [
    PHILLY + "2017-10-03 00:00:00,100,1,a\n2017-10-03 00:00:00,10,0,b\n2017-10-03 00:00:05,10,2,b\n",
    TIRESIAS + "1,1,0,1,x,10,1\n2,0,0,1,x,10,1\n3,2,5,1,x,10,1\n",
])  # fmt: skip
def test_rows_without_devices_are_left_out_and_counted(tmp_path: Path, text: str) -> None:
    trace = read_trace(written(tmp_path, text))
    assert (len(trace.jobs), trace.left_out) == (2, 1)
    assert len(run(trace, "fairlead").jobs) == 2


@pytest.mark.parametrize(("text", "where"), [
    (PHILLY + "2017-10-03 00:00:00,-100,1,a\n", "line 2: duration: -100"),
    (PHILLY + "2017-10-03 00:00:00,100,1,a\n2017-10-03 00:00:01,100\n", "line 3: num_gpus: nothing"),
    (PHILLY + "yesterday,100,1,a\n", "line 2: timestamp: 'yesterday'"),
    (TIRESIAS + "1,2\n", "line 2: duration: nothing"),
    (TIRESIAS + "1,1,0,1,x,-10,1\n", "line 2: duration: -10"),
    (POLLUX + "a,0,cifar10,1\n", "line 2: "),
    (CSV + "a,0,10,1,0\n", "line 2: weight: 0"),
    (CSV + "a,0,10,1,nan\n", "line 2: weight: nan"),
    (CSV + "a,0,10,1,-1\n", "line 2: weight: -1"),
    (CSV + "a,0,10,1,1,nan\n", "line 2: deadline_s: nan"),
    (CSV + "a,0,10,1,1,soon\n", "line 2: deadline_s: 'soon'"),
    (CSV + "a,0,10,1.5\n", "line 2: devices: 1.5"),
    (CSV + "a,0,1e300,1\n", "line 2: duration_s: 1e300"),
    (CSV + "a,0,10,1,1,,1,3\n", "line 2: serial: 3"),
    (CSV + "a,0,10,1\na,5,10,1\n", "called 'a'"),
    ("", "the file is empty"),
    (CSV, "no jobs in this trace: it has no rows"),
    (SACCT, "no jobs in this trace: it has no rows"),
    (SACCT + "1|u|a|yesterday|600|gres/gpu=2|COMPLETED\n", "job 1: Submit: 'yesterday'"),
    (SACCT + "1|u|a|2026-01-01T00:00:00|ten|gres/gpu=2|COMPLETED\n", "job 1: ElapsedRaw: 'ten'"),
    ("id,arrival_s,duration_s,devices\nä,0,10,1\n".encode("latin-1"), "no UTF-8"),
])  # fmt: skip
def test_a_wrong_cell_is_told_with_its_place(tmp_path: Path, text: str | bytes, where: str) -> None:
    (tmp_path / "traces").mkdir()
    assert where in refusal(read_trace, written(tmp_path, text), speeds=_profiles(tmp_path, text))


def _profiles(folder: Path, text: str | bytes) -> Path | None:
    """For the one format that looks for profiles before it looks at the numbers."""
    if not (isinstance(text, str) and text.startswith(POLLUX)):
        return None
    from tests.simulation.builders import profile

    return profile(folder / "traces" / "cifar10").parent


def test_an_empty_sacct_is_told_its_columns(tmp_path: Path) -> None:
    assert "JobID" in refusal(read_trace, written(tmp_path, ""), "sacct")


def test_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path: Path) -> None:
    mark = "\ufeff"
    for text in (CSV + "a,0,10,1\n", SACCT + "1|u|a|2026-01-01T00:00:00|600|gres/gpu=2|COMPLETED\n",
                 PHILLY + "2017-10-03 00:00:00,100,1,a\n", TIRESIAS + "1,1,0,1,x,10,1\n"):  # fmt: skip
        assert len(read_trace(written(tmp_path, mark + text)).jobs) == 1
    assert [one.name for one in read_tenants(written(tmp_path, f"{mark}name,weight\nred,2\n", "t.csv"))] == ["red"]


def test_a_gang_grows_no_wider_than_the_cluster(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, CSV + "a,0,10,1,1,,1000000000\n"), devices=8)
    assert trace.jobs[0].max_workers == 8


def test_broken_speeds_are_not_blamed_on_the_trace(tmp_path: Path) -> None:
    trace = written(tmp_path, GAVEL, "x.trace")
    for at, text in enumerate(("{bad", "[]", '{"v100":{"x":1}}')):
        assert refusal(read_trace, trace, "gavel", written(tmp_path, text, f"s{at}.json")).startswith("--speeds: s")
    plain = written(tmp_path, CSV + "a,0,10,1\n")
    assert refusal(read_trace, plain, speeds=tmp_path).startswith("--speeds: a trace of format csv")


def test_slurm_tells_zones_times_and_types_in_many_ways(tmp_path: Path) -> None:
    header = "JobID|User|Account|Submit|Elapsed|AllocTRES|State\n"
    rows = ["1|u|a|2026-01-01T12:00:00+02:00|10:00|gres/gpu:a100=2,gres/gpu:t4=3|COMPLETED",
            "2|u|a|2026-01-01T10:00:30|01:00:00|gres/gpu=4,gres/gpu:a100=4|COMPLETED"]  # fmt: skip
    trace = read_trace(written(tmp_path, header + "\n".join(rows) + "\n", "sacct.txt"))
    told = [(job.arrival_s, job.exclusive_s, job.min_workers) for job in trace.jobs]
    assert told == [(0.0, 600.0, 5), (30.0, 3600.0, 4)]


@pytest.mark.parametrize(("text", "said"), [
    ("red,2x,4\n", "line 1: weight: '2x'"),
    ("name,weight\nred,inf\n", "line 2: weight: 'inf'"),
    ("name,quota\nred,-1\n", "line 2: quota: '-1'"),
    ("name,weight\nred,1\nred,2\n", "line 3: name: there is a tenant 'red' already"),
    ("name,parent\nred,up\n", "parent of red: there is no tenant 'up'"),
    ("name,parent\nred,blue\nblue,red\n", "goes round in a circle"),
    ("name,guarantee\nred,many\n", "line 2: guarantee: 'many'"),
])  # fmt: skip
def test_a_wrong_tenant_is_told_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    assert said in refusal(read_tenants, written(tmp_path, text))


def test_what_a_cluster_or_a_trace_makes_void_is_told(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, "id,arrival_s,duration_s,devices,tenant\na,0,10,2,red\n"))
    nodes = cluster("4xt4")
    sure = [TenantState("red", guarantee={"t4": 3}), TenantState("blue", guarantee={"t4": 3})]
    assert "6 devices of type t4 are guaranteed, and there are 4" in refusal(check_owners, sure, trace, nodes)
    assert "those of the trace are red" in refusal(check_owners, [TenantState("rde")], trace, nodes)
    assert check_owners([TenantState("red"), TenantState("blue")], trace, nodes) == ["blue"]


@pytest.mark.parametrize("tenants", [
    [TenantState("red", quota=1)], [TenantState("red", most={"t4": 1})],
    [TenantState("red", parent="up"), TenantState("up", quota=1)],
])  # fmt: skip
def test_a_job_that_its_tenants_limits_never_let_start_is_refused_at_once(
    tmp_path: Path, tenants: list[TenantState]
) -> None:
    trace = read_trace(written(tmp_path, "id,arrival_s,duration_s,devices,tenant\na,0,10,2,red\n"))
    with pytest.raises(Refused, match=r"job a needs 2 devices, and tenant (red|up) may have 1"):
        run(spread_over_tenants(trace, tenants), "fairlead", cluster("4xt4"), Settings(tenants=tenants))


@pytest.mark.parametrize(("text", "said"), [
    ("[{type: t4", "this is no YAML"), ("", "no groups"), ("hello", "'hello' is not a list"),
    (b"\xff\xfe\xfa", "this is no YAML"), ("[{type: t4, devices: 4, nods: 3}]", "no 'nods'"),
    ("[{type: t4, devices: 4, nodes: 2.5}]", "is not a group"), ("[{type: t4, devices: 0}]", "too few"),
])  # fmt: skip
def test_a_wrong_cluster_file_is_told(tmp_path: Path, text: str | bytes, said: str) -> None:
    assert said in refusal(cluster, str(written(tmp_path, text, "c.yaml")))


def test_a_trace_without_a_cluster_is_told_how_to_name_one(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, CSV + "a,0,10,1\n"))
    with pytest.raises(InvalidSpec) as told:
        run(trace, "fifo")
    assert "8xv100" in str(told.value.fix)
