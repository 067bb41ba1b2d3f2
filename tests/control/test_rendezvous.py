"""A rendezvous is drawn once per generation, and is the same for whoever asks again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fairlead.control.records import GenerationPhase
from fairlead.control.rendezvous import FIRST_PORT, PORTS, Rendezvous, draw
from fairlead.control.store import generations, jobs
from tests.control import made
from tests.control.stores import Opened

NAMES = st.text("abcdefghij-0123456789", min_size=1, max_size=30)


@given(NAMES, st.integers(1, 10**9), st.floats(0, 4e9))
def test_a_rendezvous_comes_back_from_the_store_as_it_was_drawn(job: str, number: int, created_s: float) -> None:
    point = draw(job, number, created_s)
    assert Rendezvous.parse(str(point)) == point == draw(job, number, created_s)
    assert FIRST_PORT <= point.port < FIRST_PORT + PORTS and "/" not in point.name


def test_a_generation_that_is_counted_again_meets_no_file_of_the_first() -> None:
    assert draw("a", 1, 100.0).name != draw("a", 1, 100.5).name


def test_what_an_older_version_stored_is_no_rendezvous() -> None:
    assert Rendezvous.parse("file:///home/jobs/a/rendezvous/g1-0a") is None and Rendezvous.parse(None) is None


@given(NAMES, st.integers(1, 1000), st.sets(st.integers(FIRST_PORT, FIRST_PORT + PORTS - 1), max_size=200))
def test_no_two_live_generations_get_one_port(job: str, number: int, taken: set[int]) -> None:
    wanted = draw(job, number, 0.0).port
    assert draw(job, number, 0.0, {*taken, wanted}).port not in {*taken, wanted}


def test_a_stored_generation_has_a_port_that_no_live_one_has(db: Opened) -> None:
    job = made.job()
    db.write(lambda connection: jobs.insert(connection, job, {}, {}, None, "d"))

    def store(number: int) -> Rendezvous:
        generation = made.generation(("w0", "node-0"), number=number, phase=GenerationPhase.PLANNED)
        db.write(generations.insert, generation)
        point = Rendezvous.parse(db.read(generations.of_job, job.id)[-1].rendezvous)
        assert point is not None
        return point

    first = store(1)
    clash = next(n for n in range(2, 10**6) if draw(job.id, n, 100.0).port == first.port)
    assert store(clash).port != first.port
