"""Reads and writes: durable before answered, many to a commit, each alone in its failure."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest
from sqlalchemy import Connection, event, text
from sqlalchemy.exc import DBAPIError

from fairlead.control.store import Store, events, tenants
from fairlead.errors import Conflict, InvalidSpec, Unavailable
from fairlead.specs import TenantSpec

from .stores import Opened, run


def note(text: str) -> Callable[[Connection], int]:
    return lambda conn: events.append(conn, time_s=0.0, kind="note", text=text)


def texts(db: Opened) -> list[str]:
    return [event.text for event in db.read(events.after, 0, 10_000)]


def counted_commits(store: Store) -> list[int]:
    commits: list[int] = []
    event.listen(store._engines.writer, "commit", lambda conn: commits.append(1))
    return commits


def test_many_writes_share_few_commits(db: Opened) -> None:
    commits = counted_commits(db.store)

    async def crowd() -> None:
        await asyncio.gather(*(db.store.write(note(str(n))) for n in range(300)))

    run(crowd())
    assert len(texts(db)) == 300
    assert len(commits) < 30


def test_what_one_raises_undoes_only_itself(db: Opened) -> None:
    def half(conn: Connection) -> None:
        note("half")(conn)
        raise ValueError("changed my mind")

    def broken(conn: Connection) -> None:
        conn.execute(text("SELECT no_such_column FROM jobs"))

    async def crowd() -> list[object]:
        works = [note("a"), half, note("b"), broken, note("c")]
        return list(await asyncio.gather(*map(db.store.write, works), return_exceptions=True))

    outcomes = run(crowd())
    assert [type(outcome).__name__ for outcome in outcomes[:3]] == ["int", "ValueError", "int"]
    assert isinstance(outcomes[3], DBAPIError | Unavailable)
    assert texts(db) == ["a", "b", "c"]


def test_writes_are_applied_in_the_order_they_were_asked_for(db: Opened) -> None:
    async def crowd() -> None:
        await asyncio.gather(*(db.store.write(note(str(n))) for n in range(50)))

    run(crowd())
    assert texts(db) == [str(n) for n in range(50)]


def test_a_read_sees_one_moment_from_beginning_to_end(db: Opened) -> None:
    first_look, written = threading.Event(), threading.Event()

    def twice(conn: Connection) -> tuple[int, int]:
        before = events.newest_id(conn)
        first_look.set()
        assert written.wait(60)
        return before, events.newest_id(conn)

    async def story() -> tuple[int, int]:
        reading = asyncio.ensure_future(db.store.read(twice))
        await asyncio.to_thread(first_look.wait, 20)
        await db.store.write(note("in between"))
        written.set()
        return await reading

    before, after = run(story())
    assert before == after
    assert db.read(events.newest_id) > after


def test_a_read_cannot_write(db: Opened) -> None:
    with pytest.raises((DBAPIError, Unavailable), match=r"read-?\s?only"):
        db.read(note("sneaked in"))
    assert texts(db) == []


def test_a_cancelled_caller_does_not_disturb_the_others(db: Opened) -> None:
    async def story() -> None:
        gone = asyncio.ensure_future(db.store.write(note("gone")))
        await asyncio.sleep(0)
        gone.cancel()
        await db.store.write(note("stays"))

    run(story())
    assert texts(db)[-1] == "stays"


def test_a_closed_store_says_so(db: Opened) -> None:
    run(db.store.close())
    with pytest.raises(Unavailable, match="closed"):
        db.write(note("x"))


def test_closing_finishes_what_was_asked_for(db: Opened, url: str) -> None:
    async def story() -> None:
        writes = [asyncio.ensure_future(db.store.write(note(str(n)))) for n in range(20)]
        await asyncio.sleep(0)
        await db.store.close()
        await asyncio.gather(*writes)

    run(story())
    again = Store.open(url)
    assert run(again.read(events.newest_id)) == 20
    run(again.close())


def test_text_that_a_database_cannot_hold_does_not_stop_the_platform(db: Opened) -> None:
    db.write(note("nul \0 in it"))
    assert texts(db) == ["nul � in it"]


def test_half_a_character_is_refused_as_the_callers_mistake(db: Opened) -> None:
    with pytest.raises(InvalidSpec):
        db.write(events.append, time_s=0.0, kind="k", text="t", facts={"bad": "\ud800"})


def test_a_number_too_large_is_refused_as_the_callers_mistake(db: Opened) -> None:
    with pytest.raises(InvalidSpec):
        db.write(tenants.insert, TenantSpec(name="huge").model_copy(update={"quota": 10**30}))


def test_the_same_tenant_asked_for_at_once_exists_once(db: Opened) -> None:
    async def crowd() -> list[object]:
        ask = [db.store.write(lambda conn: tenants.insert(conn, TenantSpec(name="new"))) for _ in range(10)]
        return list(await asyncio.gather(*ask, return_exceptions=True))

    outcomes = run(crowd())
    assert sum(isinstance(outcome, Conflict) for outcome in outcomes) == 9


KILLED = """
import asyncio, os, signal, sys
from fairlead.control.store import Store, events

async def main():
    store = Store.open(sys.argv[1])
    await store.acquire_lease("doomed")
    note = lambda conn: events.append(conn, time_s=0.0, kind="k", text="x")
    await asyncio.gather(*(store.write(note) for _ in range(20)))
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


def test_what_was_answered_survives_a_kill_at_that_very_moment(url: str) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, url], timeout=60)
    assert done.returncode == -9
    store = Store.open(url)
    assert len(run(store.read(lambda conn: events.after(conn, 0, 100)))) == 20
    run(store.close())


def test_a_lost_connection_fails_what_was_under_way_and_nothing_after(db: Opened, url: str) -> None:
    if not url.startswith("postgresql"):
        return  # SQLite has no connection to lose
    import psycopg

    def cut(conn: Connection) -> None:
        pid = conn.execute(text("SELECT pg_backend_pid()")).scalar()
        with psycopg.connect(url, autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s)", (pid,))
        conn.execute(text("SELECT 1"))

    async def crowd() -> list[object]:
        works = [note("a"), cut, note("b")]
        return list(await asyncio.gather(*map(db.store.write, works), return_exceptions=True))

    outcomes = run(crowd())
    assert all(isinstance(outcome, Unavailable) for outcome in outcomes)
    assert texts(db) == []
    db.write(note("later"))
    assert texts(db) == ["later"]


def test_closing_ends_the_threads_that_read(db: Opened) -> None:
    db.read(lambda connection: None)
    readers = list(db.store._readers._threads)
    assert readers
    run(db.store.close())
    assert not any(thread.is_alive() for thread in readers)
