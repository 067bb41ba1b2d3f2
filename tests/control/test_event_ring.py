"""Following events: each once and in order for everybody, from store and ring alike, with one reader of the store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection

from fairlead.control.observability import event_metrics, event_ring
from fairlead.control.observability.event_metrics import EventFollower
from fairlead.control.observability.event_ring import EventRing, Filter
from fairlead.control.reconcile.loop import Controller
from fairlead.control.records import LoggedEvent, Role
from fairlead.control.service.core import Core
from fairlead.control.service.queries import EventFeed, QueryVerbs
from fairlead.control.store import events
from fairlead.errors import NotFound
from tests.control import made
from tests.control.stores import Opened, run


def event(id: int, tenant: str = "vision", job: str | None = None, text: str = "x") -> LoggedEvent:
    return LoggedEvent(id, 1.0, "job-started", text, tenant, job, None, {})


class Stored:
    """Events in a store, of which the ring may know some."""

    def __init__(self) -> None:
        self.events: list[LoggedEvent] = []
        self.ring = EventRing()
        self.queries = 0

    def feed(self, after: int, wanted: Filter) -> EventFeed:
        async def read(work: Any) -> Any:
            self.queries += 1
            return work(cast(Connection, self))

        return EventFeed(self.ring, read, after, wanted)


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> Stored:
    return _patched(monkeypatch)


def _patched(monkeypatch: pytest.MonkeyPatch) -> Stored:
    def after(conn: Any, id: int, limit: int, tenant: str | None = None, job: str | None = None) -> list[LoggedEvent]:
        found = [e for e in conn.events if e.id > id and tenant in (None, e.tenant) and job in (None, e.job)]
        return found[:limit]

    monkeypatch.setattr(events, "after", after)
    return Stored()


@given(
    st.lists(st.sampled_from(["new", "ring", "prune", "next", "next"]), max_size=80),
    st.sampled_from([None, "vision", "text"]),
    st.integers(0, 6),
)
def test_each_event_comes_once_and_in_order_whatever_ring_and_store_hold(
    acts: list[str], tenant: str | None, most: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_ring, "MAX_EVENTS", most)
        stored = _patched(patch)
        stored.events = [event(n, ("vision", "text")[n % 2]) for n in range(1, 8)]
        stored.ring.begin(4)
        got: list[int] = []
        pruned = set[int]()
        feed = stored.feed(0, (tenant, None))

        async def play() -> None:
            for act in [*acts, "ring", "next", "next", "next"]:
                if act == "new":
                    last = stored.events[-1].id if stored.events else stored.ring.newest
                    new = max(last, stored.ring.newest) + 1
                    stored.events.append(event(new, ("vision", "text")[new % 3 % 2]))
                elif act == "ring":
                    stored.ring.extend([e for e in stored.events if e.id > stored.ring.newest])
                elif act == "prune":
                    gone = [e for e in stored.events[:2] if e.id <= stored.ring.newest]
                    pruned.update(e.id for e in gone)
                    stored.events = [e for e in stored.events if e not in gone]
                else:
                    got.extend(each.id for each in await feed.next(0.0))

        run(play())
        assert got == sorted(set(got)), "twice, or out of order"
        expected = {e.id for e in stored.events if tenant in (None, e.tenant)}
        assert expected <= set(got), "one was lost that was never pruned"


def test_who_waits_is_woken_by_own_events_only_and_the_store_is_not_asked(stored: Stored) -> None:
    async def check() -> None:
        stored.ring.begin(10)
        wanted: list[Filter] = [(None, None), ("vision", None), ("text", None), ("vision", "a"), ("vision", "b")]
        feeds = [stored.feed(10, each) for each in wanted for _ in range(20)]
        waiting = [asyncio.create_task(feed.next(None)) for feed in feeds]
        await asyncio.sleep(0)
        stored.ring.extend([event(11, "vision", "a")])
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        awake = [task.done() for task in waiting]
        assert awake == [each[0] in (None, "vision") and each[1] in (None, "a") for each in wanted for _ in range(20)]
        shared = {id(task.result()[0]) for task in waiting[20:40]}
        assert len(shared) == 1, "rendered for each"
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert stored.queries == 0 and not stored.ring.has_followers

    run(check())


def test_the_ring_is_bounded_in_events_and_in_bytes() -> None:
    ring = EventRing()
    ring.begin(0)
    for n in range(1, 5000):
        ring.extend([event(n)])
        assert len(ring._entries) <= event_ring.MAX_EVENTS
    for n in range(5000, 5100):
        ring.extend([event(n, text="x" * 300_000)])
    assert ring._chars <= event_ring.MAX_CHARS and ring._chars == sum(kept.chars for kept in ring._entries)
    assert ring.after(ring.since, (None, None), 5000) is not None
    assert ring.after(ring.since - 1, (None, None), 1) is None, "it has gaps and does not say so"
    ring.extend([event(5100, text="x" * (event_ring.MAX_CHARS + 1))])
    assert ring.since == 5100 and ring.after(5100, (None, None), 1) == []


class Published:
    """The controller as the follower knows it."""

    def __init__(self) -> None:
        self.publish_count = 0
        self.worker_meter = SimpleNamespace(tenants=None)
        self._news = asyncio.Event()

    publish = Controller.publish
    wait_for_news = Controller.wait_for_news


def test_the_store_is_read_once_for_each_publish_however_many_follow(
    db: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_metrics, "FOLLOWED_S", 0.0)
    reads: list[Any] = []
    real = db.store.read

    async def read(work: Any) -> Any:
        reads.append(work)
        return await real(work)

    async def check() -> None:
        controller = Published()
        one = EventFollower(db.store, cast(Controller, controller))
        await one.begin()
        verbs = QueryVerbs(cast(Core, SimpleNamespace(store=db.store, ring=one.ring)))
        who = made.token(Role.VIEWER)
        feeds = [await verbs.follow_events(who, 0, None) for _ in range(50)]
        running = asyncio.create_task(one.run())
        waiting = [asyncio.create_task(feed.next(None)) for feed in feeds]
        try:
            await until(lambda: len(one.ring._waiting.get((who.tenant, None), ())) == 50)
            monkeypatch.setattr(db.store, "read", read)
            await db.store.write(lambda c: events.append(c, time_s=1.0, kind="k", text="t", tenant=who.tenant))
            controller.publish()
            found = await asyncio.wait_for(asyncio.gather(*waiting), 30)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        assert all([each.kind for each in batch] == ["k"] for batch in found)
        assert len(reads) <= 2

    run(check())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.002)


def test_of_a_strangers_job_no_events_are_followed(db: Opened) -> None:
    verbs = QueryVerbs(cast(Core, SimpleNamespace(store=db.store, ring=EventRing())))
    with pytest.raises(NotFound):
        run(verbs.follow_events(made.token(Role.VIEWER), 0, "somebodys"))
