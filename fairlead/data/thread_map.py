"""Maps a function over items in several threads, with results in order and few items in memory."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

A = TypeVar("A")
B = TypeVar("B")


def thread_count(wanted: int | None) -> int:
    """The number of threads: ``wanted``, or one per core up to 8."""
    return max(1, wanted or min(8, len(os.sched_getaffinity(0))))


def map_in_order(work: Callable[[A], B], items: Iterable[A], threads: int) -> Iterator[B]:
    """Like ``map``, over threads: at most ``threads + 1`` items are taken ahead of the result that is handed out."""
    if threads <= 1:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="map") as pool:
        pending: deque[Future[B]] = deque()
        try:
            for item in items:
                pending.append(pool.submit(work, item))
                if len(pending) > threads:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
