"""A live platform loads data sets, trains on them by name near where they lie, and makes the same again bit by bit."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from fairlead.errors import NotFound, Refused
from fairlead.sdk.jobs import Job
from fairlead.views.datasets import DataSetView
from tests.chaos.crashable import PROGRAMS, Crashable, wait_until

NODES = "2"
PATIENCE_S = 400.0
OWN = Path(__file__).parent / "programs"

pytestmark = pytest.mark.timeout(900)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_rerun_gives_the_same_weights_bit_by_bit(platform: Crashable, workers: int) -> None:
    client = platform.client
    first = client.submit(
        "train.py:training", folder=PROGRAMS, name=f"first-{workers}", tenant="alpha", workers=workers, plan="dp",
        params={"steps": 60, "pause_s": 0.03},
    )  # fmt: skip
    platform.wait_for_end(first.id, PATIENCE_S)
    again = client.rerun(first.id)
    assert (again.rerun_of, again.repeats) == (first.id, "bits")
    platform.wait_for_end(again.job.id, PATIENCE_S)
    before, after = client.lineage(first.id), client.lineage(again.job.id)
    assert before.weights is not None
    assert before.weights.startswith("sha256:")
    assert after.weights == before.weights, platform.story(again.job.id)
    assert after.same_weights
    assert (after.rerun_of, after.code, after.params, after.seed) == (
        first.id, before.code, before.params, before.seed,
    )  # fmt: skip
    assert [len(stretch.nodes) for stretch in after.history][-1] == workers
    assert before.environment["torch"]


def test_a_command_is_not_repeated_and_a_stranger_sees_no_lineage(platform: Crashable) -> None:
    client = platform.client
    job = client.submit(["true"], folder=PROGRAMS, name="plain", tenant="alpha")
    platform.wait_for_end(job.id, PATIENCE_S)
    told = client.lineage(job.id)
    assert (told.command, told.weights, told.repeats) == (["true"], None, "tolerance")
    with pytest.raises(Refused, match="command"):
        client.rerun(job.id)
    with pytest.raises(NotFound):
        client.lineage("nothing-like-it")


def people(path: Path, rows: int, mode: str = "w") -> Path:
    draw = random.Random(rows)
    lines = [] if mode == "a" else ["age,job,rich"]
    jobs, rich = ["clerk", "smith"], ["yes", "no"]
    lines += [f"{draw.randint(18, 80)},{draw.choice(jobs)},{draw.choice(rich)}" for _ in range(rows)]
    with path.open(mode) as file:
        file.write("\n".join(lines) + "\n")
    return path


def ended(platform: Crashable, job: Job) -> Job:
    platform.wait_for_end(job.id, PATIENCE_S)
    assert job.refresh().state == "succeeded", platform.story(job.id)
    return job


def loaded(platform: Crashable, name: str) -> DataSetView:
    return next(each for each in platform.client.datasets(tenant="alpha") if each.name == name)


def node_of(platform: Crashable, job: Job) -> list[str]:
    return [seat for stretch in platform.client.lineage(job.id).history for seat in stretch.nodes]


@pytest.fixture(scope="module")
def source(platform: Crashable, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that was loaded as people on the node that comes last, where nobody would look for it first."""
    path = people(tmp_path_factory.mktemp("data") / "people.csv", 300)
    client = platform.client
    client.cordon("node-0")
    ended(platform, client.load_data(path, "people", target="rich", test=0.2, workers=1, tenant="alpha"))
    client.uncordon("node-0")
    wait_until(lambda: loaded(platform, "people").resident, PATIENCE_S, "the node tells what it holds")
    return path


def test_a_job_runs_where_its_data_lies_and_says_so(platform: Crashable, source: Path) -> None:
    client = platform.client
    version = loaded(platform, "people")
    assert list(version.resident) == ["node-1"]
    job = ended(platform, client.submit("people.py:training", folder=OWN, name="near", tenant="alpha"))
    assert node_of(platform, job) == ["node-1"]
    assert "node-1 holds its data in memory (people and people-test" in client.why(job.id).generations[0].reason.text
    told = client.lineage(job.id)
    assert [each.name for each in told.data] == ["people", "people-test"]
    assert {each.loaded_by for each in told.data} == {version.job}
    assert told.data[0].version == version.version
    assert told.data[0].blocks
    assert client.dataset("people", tenant="alpha").readers[version.version] == [job.id]
    assert client.job(job.id).detail().spec["data"][0] == f"people@{version.version}"


def test_workers_of_other_nodes_get_the_data_and_a_rerun_reads_the_same_version(
    platform: Crashable, source: Path
) -> None:
    client = platform.client
    wide = {"name": "wide", "tenant": "alpha", "workers": 2, "plan": "dp"}
    job = ended(platform, client.submit("people.py:training", folder=OWN, **wide))
    assert sorted(node_of(platform, job)) == ["node-0", "node-1"]
    people(source, 50, "a")
    newer = ended(platform, client.sync_data("people", tenant="alpha"))
    grown = loaded(platform, "people")
    assert (grown.number, grown.job) == (2, newer.id)
    first = client.lineage(job.id)
    again = client.rerun(job.id)
    platform.wait_for_end(again.job.id, PATIENCE_S)
    after = client.lineage(again.job.id)
    assert [each.version for each in after.data] == [each.version for each in first.data]
    assert after.data[0].version == grown.parent
    assert after.weights == first.weights
    assert after.same_weights


HELD = "import json; from fairlead.grid import Grid; print(json.dumps(Grid.of_this_worker().usage().by_label))"


def held(platform: Crashable, name: str) -> set[str]:
    """The labels under which the nodes hold something of a data set now, as a job on each of them sees it."""
    job = platform.client.submit(["python", "-c", HELD], folder=OWN, name="held", tenant="alpha", workers=2)
    ended(platform, job)
    told = [json.loads(line.text) for line in job.logs() if line.text.startswith("{")]
    return {label for labels in told for label in labels if label.startswith(f"dataset/{name}@")}


def test_data_that_is_dropped_leaves_the_memory_of_all_nodes_at_once(platform: Crashable, tmp_path: Path) -> None:
    client, path = platform.client, people(tmp_path / "pets.csv", 100)
    ended(platform, client.load_data(path, "pets", target="rich", tenant="alpha"))
    first = client.dataset("pets", tenant="alpha")
    people(path, 20, "a")
    ended(platform, client.sync_data("pets", tenant="alpha"))
    second = client.dataset("pets", tenant="alpha")
    assert second.parent == first.version and set(first.manifest["labels"]) < set(second.manifest["labels"])
    client.drop_dataset("pets", first.version, tenant="alpha")
    assert held(platform, "pets") == set(second.manifest["labels"]), "the newer version needs them"
    client.drop_dataset("pets", tenant="alpha")
    assert held(platform, "pets") == set()


def test_a_data_set_that_is_not_there_is_refused_when_the_job_is_handed_in(platform: Crashable) -> None:
    with pytest.raises(NotFound, match="nothing"):
        platform.client.submit(["true"], folder=OWN, name="lost", tenant="alpha", data=["nothing"])
    with pytest.raises(NotFound, match="no data set"):
        platform.client.dataset("nothing", tenant="alpha")
