"""What users write: clusters, tenants, plain CSV and Slurm's accounting; and how mistakes are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.cluster import Node
from fairlead.errors import FairleadError, InvalidSpec, NotFound, Refused
from fairlead.simulation.clusters import cluster
from fairlead.simulation.policies import POLICIES, entry
from fairlead.simulation.runs import compare, run, spread_over_tenants
from fairlead.simulation.tenants import read_tenants
from fairlead.simulation.trace_reader import detect, read_trace

PLAIN = """id,arrival_s,duration_s,devices,tenant,deadline_s,min_devices,max_devices,speed.a100,speed.t4
one,0,600,2,red,900,1,4,2.0,1.0
two,30,60,1,blue,,,,1.0,
"""
SACCT = """JobID|User|Account|Submit|ElapsedRaw|AllocTRES|State
17|ann|vision|2024-03-01T10:00:00|600|billing=8,cpu=8,gres/gpu=2,mem=64G,node=1|COMPLETED
17.batch|||2024-03-01T10:00:00|600|cpu=8,mem=64G,node=1|COMPLETED
18|bob|speech|2024-03-01T10:05:00|90|cpu=4,gres/gpu:a100=1,gres/gpu=1|FAILED
19|bob|speech|2024-03-01T10:06:00|0||CANCELLED
20|eve|desk|2024-03-01T10:07:00|50|cpu=4,mem=1G|COMPLETED
"""


def total(nodes: tuple[Node, ...]) -> dict[str, int]:
    found: dict[str, int] = {}
    for node in nodes:
        found[node.device_type] = found.get(node.device_type, 0) + node.devices
    return found


def written(folder: Path, text: str, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_cluster_is_pools_or_nodes_or_both() -> None:
    nodes = cluster("8xv100, 16x4xT4,8xv100")
    assert total(nodes) == {"v100": 16, "t4": 64}
    assert len(nodes) == 18
    assert len({node.name for node in nodes}) == 18
    assert nodes[1].topology == ("t4-rack-000", "t4-0000")


def test_a_cluster_may_be_a_file(tmp_path: Path) -> None:
    text = "- {type: t4, nodes: 4, devices: 2, rack: 2}\n- {type: a100, devices: 8}\n"
    nodes = cluster(str(written(tmp_path, text, "cluster.yaml")))
    assert total(nodes) == {"t4": 8, "a100": 8}
    assert len({node.topology[0] for node in nodes if node.device_type == "t4"}) == 2


@pytest.mark.parametrize("text", ["", "8", "v100", "0xv100", "8x0xv100", "8xv100,", "-8xv100", "nowhere.yaml"])
def test_what_is_not_a_cluster_is_told(text: str) -> None:
    with pytest.raises(InvalidSpec) as told:
        cluster(text)
    assert told.value.field == "--cluster"


def test_a_plain_csv_says_all_that_a_job_is(tmp_path: Path) -> None:
    path = written(tmp_path, PLAIN)
    assert detect(path) == "csv"
    one, two = read_trace(path).jobs
    assert (one.id, one.tenant, one.deadline_s) == ("one", "red", 900.0)
    assert (one.min_workers, one.asked, one.max_workers) == (1, 2, 4)
    curve = one.model.curve(0.0)
    assert curve.speed("t4", 2) == pytest.approx(1.0)
    assert curve.speed("a100", 2) == pytest.approx(2.0)
    assert curve.speed("t4", 1) < 1.0 < curve.speed("t4", 4) < 2.0
    assert two.model.curve(0.0).speed("t4", 1) == 0.0


def test_a_job_takes_as_long_as_the_csv_says(tmp_path: Path) -> None:
    outcome = run(read_trace(written(tmp_path, PLAIN)), "fifo", cluster("1x4xa100"))
    ends = {job.id: job.jct_s for job in outcome.jobs}
    assert ends == {"one": pytest.approx(300.0), "two": pytest.approx(60.0)}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("x,0,ten,1", "duration_s"), ("x,0,-1,1", "duration_s"), ("x,0,1,2,red,,3,4", "not between"),
        ("x,,1,1", "arrival_s"), ("x,0,nan,1", "duration_s"), ("x,0,1,1,red,,,,0,", "speed.a100"),
        ("x,0,1,1,red,,,,,", "no type"),
    ],
)  # fmt: skip
def test_a_wrong_line_is_told_with_its_number(tmp_path: Path, line: str, said: str) -> None:
    header = PLAIN.splitlines()[0]
    with pytest.raises(InvalidSpec, match=said) as told:
        read_trace(written(tmp_path, f"{header}\n{line}\n"))
    assert str(told.value.field).startswith("trace.csv: line 2: ")


def test_slurms_accounting_gives_jobs_with_devices_only(tmp_path: Path) -> None:
    path = written(tmp_path, SACCT, "sacct.txt")
    assert detect(path) == "sacct"
    trace = read_trace(path)
    assert [(job.id, job.tenant, job.arrival_s, job.min_workers) for job in trace.jobs] == [
        ("17", "vision", 0.0, 2), ("18", "speech", 300.0, 1)
    ]  # fmt: skip
    assert [job.exclusive_s for job in trace.jobs] == [600.0, 90.0]
    assert {job.tenant for job in read_trace(path, tenant_column="User").jobs} == {"ann", "bob"}


def test_tenants_are_a_file_of_names_and_weights(tmp_path: Path) -> None:
    tenants = read_tenants(written(tmp_path, "name,weight,quota\nred,3,\nblue,1,4\n"))
    assert [(tenant.name, tenant.weight, tenant.quota) for tenant in tenants] == [("red", 3.0, None), ("blue", 1.0, 4)]
    named = read_tenants(written(tmp_path, "quota,name\n4,blue\n,red\n"))
    assert [(one.name, one.weight, one.quota) for one in named] == [("blue", 1.0, 4), ("red", 1.0, None)]
    with pytest.raises(InvalidSpec, match="there is no 'wieght' of a tenant"):
        read_tenants(written(tmp_path, "name,wieght\nred,3\n"))
    below = read_tenants(written(tmp_path, "ann,2,,bob,v100=4;k80=1,v100=8\nbob,1,,,,\n"))
    assert (below[0].parent, below[0].guarantee, below[0].most) == ("bob", {"v100": 4, "k80": 1}, {"v100": 8})
    assert (below[1].parent, below[1].guarantee, below[1].most) == (None, {}, {})
    trace = read_trace(written(tmp_path, "arrival_s,duration_s,devices\n0,10,1\n0,10,1\n", "plain.csv"))
    assert [job.tenant for job in spread_over_tenants(trace, tenants).jobs] == ["red", "blue"]


@pytest.mark.parametrize("text", ["", "hello\n", "a,b\n1,2\n", "\x00\x01\x02", "arrival_s,duration_s,devices\n"])
def test_what_is_no_trace_is_told(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidSpec):
        read_trace(written(tmp_path, text))


def test_what_is_missing_is_told(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no trace"):
        read_trace(tmp_path / "nothing.csv")
    with pytest.raises(NotFound, match="no policy"):
        entry("magic")
    with pytest.raises(InvalidSpec, match="no format"):
        read_trace(written(tmp_path, PLAIN), "xml")
    with pytest.raises(FairleadError, match="names no cluster"):
        run(read_trace(written(tmp_path, PLAIN)), "fifo")


def test_a_job_that_can_never_run_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="job one needs 2 devices"):
        run(read_trace(written(tmp_path, PLAIN)), "fifo", cluster("1xa100"))


def test_policies_that_are_promised_can_be_made_and_run(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, PLAIN))
    promised = [
        *("fairlead", "fifo", "srtf", "las", "tiresias", "gavel-maxmin", "gavel-ftf", "gavel-makespan", "themis"),
        *("shockwave", "sia", "elasticflow", "drf", "edf"),
    ]
    assert set(promised) <= set(POLICIES)
    outcomes = compare(trace, promised, cluster("2x4xa100"))
    assert {name: len(outcome.jobs) for name, outcome in outcomes.items()} == dict.fromkeys(promised, 2)
