"""Secrets at rest and on their way to a job: sealed, bound to their place, opened only when a worker is started."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import cast

import pytest
from sqlalchemy import Connection

from fairlead.agent.protocol import Backend, LaunchOrder
from fairlead.control.identity.secret_vault import KEY_VARIABLE, SecretVault
from fairlead.control.reconcile import gang_state_machine
from fairlead.control.reconcile.gang_executor import GangExecutor
from fairlead.control.reconcile.gang_registry import GangRegistry
from fairlead.control.reconcile.gang_state_machine import GangView
from fairlead.control.reconcile.worker_specs import launch_secrets
from fairlead.control.records import GenerationPhase, Job, JobPhase, Secret
from fairlead.control.service.secrets import check_secret
from fairlead.control.store import generations, jobs, secrets
from fairlead.errors import InvalidSpec, Refused
from fairlead.home import Home
from tests.control import made
from tests.control.stores import Clock, Opened, run

VALUE = "hunter2-hunter2"
KEY = base64.b64encode(bytes(range(32))).decode()


@pytest.fixture
def vault(tmp_path: Path) -> SecretVault:
    return SecretVault(Home(tmp_path))


# ---------------------------------------------------------------- the key and the seal


def test_what_is_sealed_is_unreadable_and_opens_again(vault: SecretVault) -> None:
    sealed = vault.seal("vision", "API_KEY", VALUE)
    assert VALUE.encode() not in sealed
    assert vault.open("vision", "API_KEY", sealed) == VALUE
    assert sealed != vault.seal("vision", "API_KEY", VALUE), "the same value twice does not show that it is the same"


@pytest.mark.parametrize(("tenant", "name"), [("text", "API_KEY"), ("vision", "OTHER")])
def test_a_row_cannot_be_passed_off_as_another_tenants_or_under_another_name(
    vault: SecretVault, tenant: str, name: str
) -> None:
    with pytest.raises(Refused, match="was changed in the store"):
        vault.open(tenant, name, vault.seal("vision", "API_KEY", VALUE))


def test_the_key_is_made_at_the_first_secret_and_only_for_the_platform(tmp_path: Path) -> None:
    home = Home(tmp_path)
    vault = SecretVault.of(home, variables={})
    assert not home.secret_key.exists()
    sealed = vault.seal("vision", "API_KEY", VALUE)
    assert home.secret_key.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["secret.key"]
    assert SecretVault.of(home, variables={}).open("vision", "API_KEY", sealed) == VALUE


def test_two_control_planes_at_once_end_up_with_one_key(tmp_path: Path) -> None:
    home = Home(tmp_path)
    first, second = SecretVault.of(home, variables={}), SecretVault.of(home, variables={})
    sealed = first.seal("vision", "API_KEY", VALUE)
    second.seal("vision", "OTHER", VALUE)
    assert second.open("vision", "API_KEY", sealed) == VALUE


def test_a_secret_of_another_key_says_which_and_what_to_do(tmp_path: Path) -> None:
    sealed = SecretVault.of(Home(tmp_path), variables={KEY_VARIABLE: KEY}).seal("vision", "API_KEY", VALUE)
    for stranger in (SecretVault(Home(tmp_path), os.urandom(32)), SecretVault.of(Home(tmp_path), variables={})):
        with pytest.raises(Refused, match=r"was encrypted with the key [0-9a-f]{8}") as caught:
            stranger.open("vision", "API_KEY", sealed)
        assert KEY_VARIABLE in str(caught.value.fix) and "--secret-key-file" in str(caught.value.fix)


def test_the_key_may_be_given_in_a_file_or_a_variable_in_base64_or_hex(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(bytes(range(32)).hex() + "\n")
    sealed = SecretVault.of(Home(tmp_path), file).seal("vision", "API_KEY", VALUE)
    assert SecretVault.of(Home(tmp_path), variables={KEY_VARIABLE: KEY}).open("vision", "API_KEY", sealed) == VALUE
    assert not Home(tmp_path).secret_key.exists()


@pytest.mark.parametrize("text", ["", "too short", "A" * 44, "ü" * 44, KEY + KEY])
def test_a_key_that_is_none_is_refused_without_being_repeated(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidSpec, match="not a key of 32 bytes") as caught:
        SecretVault.of(Home(tmp_path), variables={KEY_VARIABLE: text})
    assert caught.value.value is None and (not text or text not in str(caught.value))
    with pytest.raises(InvalidSpec, match="cannot be read"):
        SecretVault.of(Home(tmp_path), tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("name", "value"),
    [("lower", VALUE), ("FAIRLEAD_TOKEN", VALUE), ("KEY", "abc"), ("KEY", "  abc\n"), ("KEY", "x" * 32_769),
     ("KEY", "with\0zero"), ("KEY", "half \ud800 a pair"), ("1KEY", VALUE), ("KEY\n", VALUE)],
)  # fmt: skip
def test_what_cannot_be_a_variable_or_be_kept_out_of_logs_is_refused_without_repeating_it(
    name: str, value: str
) -> None:
    with pytest.raises(InvalidSpec) as caught:
        check_secret(name, value)
    assert caught.value.fix and (name != "KEY" or caught.value.value is None)


# ---------------------------------------------------------------- the store


def put(db: Opened, vault: SecretVault, name: str, value: str = VALUE, tenant: str = "vision") -> None:
    db.write(secrets.put, Secret(tenant, name, vault.seal(tenant, name, value), 1.0, "tok"))


def test_a_secret_is_replaced_listed_and_removed(db: Opened, vault: SecretVault) -> None:
    put(db, vault, "B", "first value")
    put(db, vault, "B", "second value")
    put(db, vault, "A")
    put(db, vault, "C", tenant="text")
    found = db.read(secrets.list_secrets, "vision")
    assert [secret.name for secret in found] == ["A", "B"]
    assert vault.open("vision", "B", found[1].ciphertext) == "second value"
    assert db.read(secrets.missing_names, "vision", ["C", "A", "D", "C"]) == ["C", "D"]
    assert db.write(secrets.remove, "vision", "A") and not db.write(secrets.remove, "vision", "A")
    assert not db.write(secrets.remove, "vision", "C"), "another tenant's"


# ---------------------------------------------------------------- the start of a job


class Launching:
    """A backend that keeps what it was told to start."""

    def __init__(self) -> None:
        self.orders: list[LaunchOrder] = []

    async def start(self, gang: object, order: LaunchOrder, within_s: float) -> None:
        self.orders.append(order)


def launch(db: Opened, clock: Clock, vault: SecretVault, wanted: list[str]) -> tuple[Job, list[LaunchOrder]]:
    job, generation = made.job(phase=JobPhase.STARTING), made.generation(("w0", "n"), phase=GenerationPhase.PLANNED)

    def stored(connection: Connection) -> None:
        jobs.insert(connection, job, {"secrets": wanted}, {}, None, "digest")
        generations.insert(connection, generation)

    db.write(stored)
    backend = Launching()
    known = GangRegistry({}, {}, {})
    hands = GangExecutor(db.store, cast(Backend, backend), known, made.worker_order, dict, clock, launch_secrets(vault))
    run(
        hands.execute(
            gang_state_machine.Start(generation), GangView(job, [generation], {}, frozenset(), 0.0, frozenset())
        )
    )
    after = db.read(jobs.get, job.id)
    assert after is not None
    return after, backend.orders


def test_a_job_gets_the_secrets_it_asks_for_and_no_others(db: Opened, clock: Clock, vault: SecretVault) -> None:
    for name in ("A", "B"):
        put(db, vault, name, f"value of {name}")
    _, orders = launch(db, clock, vault, ["B"])
    assert dict(orders[0].secrets) == {"B": "value of B"}
    assert "value of B" not in repr(orders)


def test_a_job_whose_secret_was_removed_fails_and_says_so(db: Opened, clock: Clock, vault: SecretVault) -> None:
    job, orders = launch(db, clock, vault, ["GONE"])
    assert (job.phase, job.then, orders) == (JobPhase.STOPPING, JobPhase.FAILED, [])
    assert job.message == ("the secret GONE was removed; set it and submit the job again: fairlead secret set GONE")


def test_a_job_with_too_many_long_secrets_fails_and_says_how_much_it_may_have(
    db: Opened, clock: Clock, vault: SecretVault
) -> None:
    names = [f"LONG_{number}" for number in range(9)]
    for name in names:
        put(db, vault, name, "x" * 32_000)
    job, orders = launch(db, clock, vault, names)
    assert (job.then, orders) == (JobPhase.FAILED, [])
    assert "288000 bytes together" in str(job.message) and "262144" in str(job.message)


def test_a_job_whose_secret_cannot_be_opened_fails_and_names_the_key(db: Opened, clock: Clock, tmp_path: Path) -> None:
    put(db, SecretVault(Home(tmp_path), os.urandom(32)), "A")
    job, orders = launch(db, clock, SecretVault(Home(tmp_path), os.urandom(32)), ["A"])
    assert job.then is JobPhase.FAILED and not orders
    assert "encrypted with the key" in str(job.message) and KEY_VARIABLE in str(job.message)
