"""Promises about what was read once: kept while it fits, read again beyond that, never read twice for a look."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pytest

from fairlead.data.spool import Spool
from fairlead.data.thread_map import map_in_order, thread_count

SCHEMA = pa.schema([("a", pa.int64())])


def batch(*values: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, pa.int64())], schema=SCHEMA)


class Counted:
    """A source that counts how many batches were taken from it."""

    schema, rows, watermark_identifies_content = SCHEMA, None, False
    watermark: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, *batches: pa.RecordBatch) -> None:
        self._batches, self.taken, self.begun = batches, 0, 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        self.begun += 1
        for each in self._batches:
            self.taken += 1
            yield each


def values(spool: Spool) -> list[int]:
    return [value for each in spool.batches() for value in each.column("a").to_pylist()]


def test_what_fits_is_read_once_and_counted() -> None:
    source = Counted(batch(1, 2), batch(3))
    spool = Spool(source, memory_bytes=24)
    assert spool.rows is None
    assert values(spool) == values(spool) == [1, 2, 3]
    assert (source.begun, source.taken, spool.rows) == (1, 2, 3)


def test_what_does_not_fit_is_read_again_and_counted_all_the_same() -> None:
    source = Counted(batch(1, 2), batch(3), batch(4))
    spool = Spool(source, memory_bytes=23)
    assert values(spool) == values(spool) == [1, 2, 3, 4]
    assert (source.begun, spool.rows) == (2, 4)


def test_no_more_is_held_than_fits() -> None:
    source = Counted(batch(1, 2), batch(3), batch(4), batch(5))
    following = Spool(source, memory_bytes=16).batches()
    assert next(following).column("a").to_pylist() == [1, 2]
    assert source.taken == 2  # the second one was too much; the rest stays where it is
    assert [each.column("a").to_pylist() for each in following] == [[3], [4], [5]]


def test_a_look_at_the_first_rows_costs_no_second_reading() -> None:
    source = Counted(batch(), batch(1), batch(2))
    spool = Spool(source, memory_bytes=0)
    for _ in range(2):
        first = spool.first_batch()
        assert first is not None and first.column("a").to_pylist() == [1]
    assert (source.begun, source.taken) == (1, 2)
    assert values(spool) == [1, 2] and source.begun == 1
    assert values(spool) == [1, 2] and source.begun == 2  # the look was used up
    kept = Spool(Counted(batch(), batch(7)))
    assert values(kept) == [7]
    assert (again := kept.first_batch()) is not None and again.column("a").to_pylist() == [7]
    assert Spool(Counted(batch())).first_batch() is None


def test_batches_are_numbered_by_place_and_first_row() -> None:
    spool = Spool(Counted(batch(1, 2), batch(3), batch(4, 5)))
    assert [(place, first) for place, first, _ in spool.numbered()] == [(0, 0), (1, 2), (2, 3)]


def test_a_kept_batch_can_be_swapped_for_a_better_form_of_it() -> None:
    spool = Spool(Counted(batch(1), batch(2)))
    spool.replace_batch(0, batch(9))  # nothing is kept yet
    assert values(spool) == [1, 2]
    spool.replace_batch(1, batch(8))
    spool.replace_batch(2, batch(7))  # there is no such place
    assert values(spool) == [1, 8]


def test_work_side_by_side_comes_in_order_with_few_items_under_way() -> None:
    open_, lock, begun = threading.Event(), threading.Lock(), list[int]()

    def work(item: int) -> int:
        with lock:
            begun.append(item)
        if item == 0:
            assert open_.wait(10)
        return item * 10

    taken = list[int]()

    def items() -> Iterator[int]:
        for item in range(20):
            taken.append(item)
            yield item

    found = map_in_order(work, items(), 2)
    reader = threading.Thread(target=open_.set)
    reader.start()
    assert next(found) == 0
    assert len(taken) <= 4  # two at work, one waits, one is asked for
    assert list(found) == [item * 10 for item in range(1, 20)]
    reader.join()
    assert list(map_in_order(lambda item: -item, range(3), 1)) == [0, -1, -2]


def test_an_error_of_one_item_comes_at_its_turn() -> None:
    found = map_in_order(lambda item: 6 // (2 - item), range(9), 3)
    assert [next(found), next(found)] == [3, 6]
    with pytest.raises(ZeroDivisionError):
        next(found)


def test_threads_are_those_asked_for_and_at_most_eight_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    assert thread_count(3) == 3
    assert thread_count(-2) == 1
    for cores, wanted in ((1, 1), (5, 5), (64, 8)):
        monkeypatch.setattr("os.sched_getaffinity", lambda _, cores=cores: range(cores))
        assert thread_count(None) == wanted
