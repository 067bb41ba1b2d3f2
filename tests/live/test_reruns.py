"""A live platform makes the same again: the weights of a rerun are those of the first run, bit by bit."""

from __future__ import annotations

import pytest

from fairlead.errors import NotFound, Refused
from tests.chaos.crashable import PROGRAMS, Crashable

NODES = "2"
PATIENCE_S = 400.0

pytestmark = pytest.mark.timeout(900)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_rerun_gives_the_same_weights_bit_by_bit(platform: Crashable, workers: int) -> None:
    first = platform.train(f"first-{workers}", workers=str(workers), steps=60, pause_s=0.03)
    platform.wait_for_end(first.id, PATIENCE_S)
    client = platform.client
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
