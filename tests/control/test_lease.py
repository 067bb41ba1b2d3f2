"""The lease: one leads, the next waits, and who was paused too long can neither write nor renew."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest
from sqlalchemy import Connection, text

from fairlead.control.store import Store, events
from fairlead.errors import LostLeadership

from .stores import Clock, run

Open = Callable[[], Store]


def note(store: Store, text: str = "x", **options: bool) -> int:
    return run(store.write(lambda conn: events.append(conn, time_s=0.0, kind="note", text=text), **options))


def texts(store: Store) -> list[str]:
    return [event.text for event in run(store.read(lambda conn: events.after(conn, 0, 100)))]


def test_the_first_leads_and_the_second_waits(unopened: Open) -> None:
    first, second = unopened(), unopened()
    assert run(first.acquire_lease("first")) == 1
    assert run(second.acquire_lease("second")) is None
    assert (first.epoch, second.epoch) == (1, None)


def test_asking_again_while_leading_gives_the_same_epoch_and_more_time(unopened: Open, clock: Clock) -> None:
    first, second = unopened(), unopened()
    run(first.acquire_lease("first"))
    clock.advance(2)
    assert run(first.acquire_lease("first")) == 1
    clock.advance(2)
    assert run(second.acquire_lease("second")) is None


def test_a_lease_that_ran_out_is_taken_over_with_a_higher_epoch(unopened: Open, clock: Clock) -> None:
    first, second, third = unopened(), unopened(), unopened()
    run(first.acquire_lease("first"))
    clock.advance(3.1)
    assert run(second.acquire_lease("second")) == 2
    clock.advance(3.1)
    assert run(third.acquire_lease("third")) == 3


def test_renewing_keeps_the_others_out(unopened: Open, clock: Clock) -> None:
    first, second = unopened(), unopened()
    run(first.acquire_lease("first"))
    for _ in range(5):
        clock.advance(2)
        run(first.renew_lease())
        assert run(second.acquire_lease("second")) is None


def test_a_paused_leader_that_wakes_up_can_neither_write_nor_renew(unopened: Open, clock: Clock) -> None:
    first, second = unopened(), unopened()
    run(first.acquire_lease("first"))
    note(first, "before")
    clock.advance(10)  # the first sleeps
    run(second.acquire_lease("second"))
    note(second, "after")
    with pytest.raises(LostLeadership):
        note(first, "too late")
    assert first.epoch is None
    with pytest.raises(LostLeadership):
        note(first, "still too late")
    with pytest.raises(LostLeadership):
        run(first.renew_lease())
    assert texts(second) == ["before", "after"]


def test_a_paused_leader_learns_it_by_renewing_too(unopened: Open, clock: Clock) -> None:
    first, second = unopened(), unopened()
    run(first.acquire_lease("first"))
    clock.advance(10)
    run(second.acquire_lease("second"))
    with pytest.raises(LostLeadership):
        run(first.renew_lease())
    assert first.epoch is None
    run(second.renew_lease())  # and disturbed nobody


def test_a_leader_that_was_late_but_not_replaced_goes_on(unopened: Open, clock: Clock) -> None:
    first, second = unopened(), unopened()
    run(first.acquire_lease("first"))
    clock.advance(100)
    note(first)
    run(first.renew_lease())
    assert run(second.acquire_lease("second")) is None


def test_whoever_resigns_is_followed_at_once(unopened: Open) -> None:
    first, second = unopened(), unopened()
    run(first.acquire_lease("first"))
    run(first.release_lease())
    assert first.epoch is None
    with pytest.raises(LostLeadership):
        note(first)
    assert run(second.acquire_lease("second")) == 2
    run(first.release_lease())  # has nothing left to give up
    note(second)


def test_the_epoch_grows_also_for_the_same_leader(unopened: Open) -> None:
    store = unopened()
    epochs = []
    for _ in range(3):
        epochs.append(run(store.acquire_lease("me")))
        run(store.release_lease())
    assert epochs == [1, 2, 3]


def test_a_name_alone_is_no_claim_to_the_lease(unopened: Open) -> None:
    first, again = unopened(), unopened()
    run(first.acquire_lease("same"))
    assert run(again.acquire_lease("same")) is None


def test_before_any_lease_only_unfenced_work_is_written(unopened: Open) -> None:
    store = unopened()
    with pytest.raises(LostLeadership):
        note(store, "fenced")
    note(store, "unfenced", unfenced=True)
    assert texts(store) == ["unfenced"]


def test_work_that_waited_through_a_change_of_leader_is_not_written(unopened: Open, clock: Clock) -> None:
    first, second = unopened(), unopened()

    async def story() -> list[object]:
        await first.acquire_lease("first")
        clock.advance(10)
        await second.acquire_lease("second")
        late = [first.write(lambda conn: events.append(conn, time_s=0, kind="k", text="late")) for _ in range(5)]
        free = first.write(lambda conn: events.append(conn, time_s=0, kind="k", text="free"), unfenced=True)
        return list(await asyncio.gather(*late, free, return_exceptions=True))

    *late, free = run(story())
    assert all(isinstance(outcome, LostLeadership) for outcome in late)
    assert isinstance(free, int)
    assert texts(second) == ["free"]


def test_work_of_a_former_term_is_not_written_in_the_next(unopened: Open) -> None:
    store = unopened()

    async def story() -> object:
        await store.acquire_lease("me")
        resigning = asyncio.ensure_future(store.release_lease())
        await asyncio.sleep(0)  # it is queued first
        late = asyncio.ensure_future(store.write(lambda conn: events.append(conn, time_s=0, kind="k", text="late")))
        await resigning
        assert await store.acquire_lease("me") == 2
        return (await asyncio.gather(late, return_exceptions=True))[0]

    assert isinstance(run(story()), LostLeadership)
    assert store.epoch == 2, "the old term's end must not end the new one"
    assert texts(store) == []


CONTENDER = """
import asyncio, sys
from fairlead.control.store import Store

store = Store.open(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
print(asyncio.run(store.acquire_lease(sys.argv[2], 60)), flush=True)
"""


def test_of_two_processes_that_reach_for_the_lease_one_gets_it(url: str) -> None:
    run(Store.open(url).close())
    both = [
        subprocess.Popen(
            [sys.executable, "-c", CONTENDER, url, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for name in ("a", "b")
    ]
    for process in both:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    answers = []
    for process in both:  # let both go before any answer is read
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in both:
        answers.append(process.communicate(timeout=60)[0].strip())
    assert sorted(answers) == ["1", "None"]


def test_of_many_in_one_process_one_gets_it(unopened: Open) -> None:
    stores = [unopened() for _ in range(5)]

    async def rush() -> list[int | None]:
        return list(await asyncio.gather(*(store.acquire_lease(f"s{n}") for n, store in enumerate(stores))))

    assert sorted(run(rush()), key=str) == [1, None, None, None, None]


def test_a_standby_opens_the_store_while_a_leader_is_stopped_in_the_midst_of_writing(unopened: Open) -> None:
    first = unopened()
    run(first.acquire_lease("first"))

    async def story() -> int:
        stopped, go_on = threading.Event(), threading.Event()

        def stuck(_conn: Connection) -> bool:
            stopped.set()
            return go_on.wait(60)

        writing = asyncio.ensure_future(first.write(stuck))
        try:
            assert await asyncio.to_thread(stopped.wait, 30)
            second = await asyncio.wait_for(asyncio.to_thread(unopened), 30)
            return await second.read(lambda conn: int(conn.execute(text("SELECT epoch FROM leadership")).scalar_one()))
        finally:
            go_on.set()
            assert await writing

    assert run(story()) == 1


def test_a_standby_waits_for_a_leader_stopped_in_the_midst_of_writing(unopened: Open, clock: Clock) -> None:
    """Its locks still stand, so it leads until they fall: the standby is told to wait, not that all is broken."""
    first, second = unopened(), unopened()
    run(first.acquire_lease("first"))
    stopped, go_on = threading.Event(), threading.Event()

    def stuck(_conn: Connection) -> None:
        stopped.set()
        assert go_on.wait(60)

    def less_patient(conn: Connection) -> None:
        sqlite = conn.dialect.name == "sqlite"
        conn.exec_driver_sql("PRAGMA busy_timeout=50" if sqlite else "SET lock_timeout=50")

    async def story() -> int | None:
        await second.write(less_patient, unfenced=True)
        writing = asyncio.ensure_future(first.write(stuck))
        await asyncio.to_thread(stopped.wait, 30)
        clock.advance(10)
        answer = await second.acquire_lease("second")
        go_on.set()
        await writing
        return answer

    assert run(story()) is None
    assert run(second.acquire_lease("second")) == 2
