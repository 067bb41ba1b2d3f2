"""The small parts that exactness and recovery rest on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fairlead.training.batch_ranges import rank_range
from fairlead.training.group import explain_error
from fairlead.training.history import History
from fairlead.training.randomness import Layout, sample_mask
from fairlead.training.seeds import epoch_order, mix
from fairlead.training.snapshots.flat_state import read_state
from fairlead.training.snapshots.snapshotter import Snapshots


@given(st.integers(0, 1000), st.lists(st.floats(0.01, 10), min_size=1, max_size=9))
def test_parts_are_contiguous_and_take_everything_once(total: int, shares: list[float]) -> None:
    taken = [place for rank in range(len(shares)) for place in rank_range(total, shares, rank)]
    assert taken == list(range(total))


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ("[/__w/pytorch/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:46237: Connection reset by peer. This "
         "is typically caused by a remote worker hanging", "the connection to another rank is gone"),
        ("[/__w/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1",
         "the connection to another rank is gone"),
        ("[../gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 2000ms for recv operation to complete",
         "another rank did not answer in time"),
        ("[../gloo/algorithm.cc:9] something\n else", "something else"),
    ],
)  # fmt: skip
def test_a_lost_peer_is_toldin_words_and_not_in_source_lines(raw: str, words: str) -> None:
    assert explain_error(RuntimeError(raw)) == words


@given(st.integers(1, 500), st.integers(0, 5))
def test_an_epoch_visits_every_sample_once(samples: int, epoch: int) -> None:
    assert sorted(epoch_order(1, epoch, samples).tolist()) == list(range(samples))


def test_numbers_made_from_other_numbers_do_not_repeat() -> None:
    made = {mix(seed, step, 2) for seed in range(30) for step in range(300)}
    assert len(made) == 9000


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.9])
def test_masks_look_random(keep: float) -> None:
    mask = sample_mask(mix(5, 6), torch.arange(2000), Layout(0, 1), torch.Size((2000, 300)), keep).double()
    assert mask.mean() == pytest.approx(keep, abs=0.003)
    assert mask.mean(0).std() < 3 * (keep * (1 - keep) / 2000) ** 0.5
    assert mask.mean(1).std() < 3 * (keep * (1 - keep) / 300) ** 0.5
    centred = mask - keep
    for left, right in ((centred[:-1], centred[1:]), (centred[:, :-1], centred[:, 1:])):
        assert abs(float((left * right).mean())) < 0.002  # neighbours know nothing of each other
    other = sample_mask(mix(5, 7), torch.arange(2000), Layout(0, 1), torch.Size((2000, 300)), keep).double()
    assert abs(float((centred * (other - keep)).mean())) < 0.002  # nor do steps


def test_a_samples_mask_depends_on_nobody_else() -> None:
    whole = sample_mask(9, torch.tensor([4, 8, 15]), Layout(1, 2), torch.Size((5, 6, 7)), 0.5)
    alone = sample_mask(9, torch.tensor([8]), Layout(1, 2), torch.Size((5, 2, 7)), 0.5)
    assert torch.equal(whole[:, 2:4], alone)
    assert sample_mask(9, torch.tensor([8]), Layout(0, 1), torch.Size((1, 50)), 1.0).all()


def test_history_survives_being_handed_over() -> None:
    history, other = History(2), History(2)
    for step in range(5):
        history.add(100.0 + step, 1.0 / (step + 1))
    history.record_metrics(2, {"accuracy": 0.5})
    other.load(history.state())
    assert list(other.rows(0)) == list(history.rows(0))
    assert [row["epoch"] for row in other.rows(0)] == [0, 0, 1, 1, 2]
    assert other.last_metrics == {"accuracy": 0.5}


CPU = torch.device("cpu")


def snapshots(folder: Path, node: str = "n0") -> Snapshots:
    return Snapshots(folder, folder / "memory" / "job" / node, lambda *_: None)


def test_only_the_newest_two_snapshots_are_kept_and_other_nodes_memories_are_found(tmp_path: Path) -> None:
    store = snapshots(tmp_path)
    for step in (9, 10, 100):
        store.write(step, {"step": step}, wait=True)
    found = [(stored.step, stored.where) for stored in snapshots(tmp_path, "n1").find()]
    assert found == [(100, "memory"), (100, "disk"), (10, "memory"), (10, "disk")]
    data = snapshots(tmp_path, "n1").find()[0].read()
    assert data is not None and read_state(data, CPU) == {"step": 100}
    assert not list(tmp_path.rglob("*.tmp"))


def test_without_memory_a_snapshot_goes_to_disk(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = Snapshots(tmp_path, tmp_path / "file" / "job" / "n0", lambda *_: None)
    store.write(3, {"step": 3})
    (stored,) = store.find()
    data = stored.read()
    assert data is not None and (stored.where, read_state(data, CPU)) == ("disk", {"step": 3})
