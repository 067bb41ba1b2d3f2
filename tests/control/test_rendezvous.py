"""A rendezvous is drawn once per generation, and is the same for whoever asks again."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection

from fairlead.cluster import Node
from fairlead.control.reconcile import next_generation
from fairlead.control.reconcile.next_generation import SeatedGang
from fairlead.control.reconcile.rendezvous import FIRST_PORT, PORTS, Rendezvous, draw_rendezvous
from fairlead.control.store import generations, jobs
from fairlead.scheduling.state import Reason
from tests.control import made
from tests.control.stores import Opened

NAMES = st.text("abcdefghij-0123456789", min_size=1, max_size=30)


@given(NAMES, st.integers(1, 10**9), st.floats(0, 4e9))
def test_a_rendezvous_comes_back_from_the_store_as_it_was_drawn(job: str, number: int, created_s: float) -> None:
    point = draw_rendezvous(job, number, created_s, secret="a1")
    assert Rendezvous.parse(str(point)) == point == draw_rendezvous(job, number, created_s, secret="a1")
    assert Rendezvous.parse(str(replace(point, secret=""))) == replace(point, secret="")
    assert FIRST_PORT <= point.port < FIRST_PORT + PORTS and "/" not in point.name


def test_a_generation_that_is_counted_again_meets_no_file_of_the_first() -> None:
    assert draw_rendezvous("a", 1, 100.0).name != draw_rendezvous("a", 1, 100.5).name


def test_what_an_older_version_stored_is_no_rendezvous() -> None:
    assert Rendezvous.parse("file:///home/jobs/a/rendezvous/g1-0a") is None and Rendezvous.parse(None) is None


@given(NAMES, st.integers(1, 1000), st.sets(st.integers(FIRST_PORT, FIRST_PORT + PORTS - 1), max_size=200))
def test_no_two_live_generations_get_one_port(job: str, number: int, taken: set[int]) -> None:
    wanted = draw_rendezvous(job, number, 0.0).port
    assert draw_rendezvous(job, number, 0.0, {*taken, wanted}).port not in {*taken, wanted}


def test_a_stored_generation_has_a_port_that_no_live_one_has_and_a_secret_of_its_own(db: Opened) -> None:
    job = made.job(generation=0)
    db.write(lambda connection: jobs.insert(connection, job, {}, {}, None, "d"))
    far = {"node-0": replace(Node("node-0", {}), address="10.0.0.7")}
    members = made.generation(("w0", "node-0")).members

    def store(number: int) -> Rendezvous:
        def work(connection: Connection) -> None:
            gang = SeatedGang(replace(job, generation=number - 1), members, Reason("started", "it starts"))
            next_generation.store_generation(connection, gang, far, 100.0, generations.ports_in_use(connection), {})

        db.write(work)
        stored = db.read(generations.of_job, job.id)[-1]
        point = Rendezvous.parse(stored.rendezvous)
        assert point is not None and point.secret not in repr(stored) and point.secret not in repr(point)
        return point

    first = store(1)
    clash = next(n for n in range(2, 10**6) if draw_rendezvous(job.id, n, 100.0).port == first.port)
    second = store(clash)
    assert second.port != first.port
    assert len(first.secret) == 32 and first.secret != second.secret
    assert first.address == "10.0.0.7", "that of the node of rank 0"
