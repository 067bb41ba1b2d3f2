"""The doctor: finds what is wrong, says what to do, changes nothing, and needs neither a platform nor root."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import sqlite3
import stat
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from fairlead.agent.embedded.node_records import HostRecord
from fairlead.agent.sandbox.isolation_probe import in_child as tried_in_child
from fairlead.cli.commands import up as platform_verbs
from fairlead.cli.doctor import home as house
from fairlead.cli.doctor import isolation, machine
from fairlead.cli.doctor import platform as running
from fairlead.cli.doctor.finding import Finding, graded, in_child
from fairlead.control.identity.secret_vault import KEY_VARIABLE
from fairlead.control.serve import write_profile
from fairlead.control.store.engine import Store
from fairlead.home import Home

from .conftest import Platform, Terminal


@pytest.fixture
def home(tmp_path: Path) -> Path:
    made = Home(tmp_path / "home")
    made.create()
    return made.root


def levels(findings: Iterator[Finding]) -> dict[str, str]:
    return {finding.name: finding.level for finding in findings}


def only(findings: Iterator[Finding]) -> Finding:
    [found] = findings
    return found


def test_a_machine_that_is_well_is_told_so_without_a_platform(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path / "never-made")
    done = terminal("doctor", "--quick", "--json", code=None)
    found = {check["name"]: check for check in done.data["checks"]}
    assert {"python", "control groups", "namespaces", "bubblewrap", "seccomp", "shared memory", "open files", "clock",
            "port", "home", "disk", "file system", "secrets key", "platform", "store"} <= set(found)  # fmt: skip
    assert done.data["ok"] is (done.code == 0) is all(check["level"] != "fail" for check in found.values())
    assert all(check["fix"] for check in found.values() if check["level"] != "ok")
    assert not (tmp_path / "never-made").exists()


def test_a_running_platform_is_asked_how_it_is(platform: Platform) -> None:
    done = platform.admin("doctor", "--quick", "--json", code=None)
    found = {check["name"]: check for check in done.data["checks"]}
    assert found["platform"]["level"] == "ok" and "ok at http" in found["platform"]["text"]
    assert found["nodes"]["level"] == "ok" and "2 of 2" in found["nodes"]["text"]
    assert found["store"]["level"] == found["lease"]["level"] == "ok"
    text = platform.admin("doctor", "--quick", code=None).out
    assert text.splitlines()[0].startswith("ok    python")
    assert text.splitlines()[-1].endswith("checks") or "checks passed" in text


def test_what_fails_makes_the_exit_code_one(home: Path) -> None:
    (home / "secret.key").write_text("x")
    (home / "secret.key").chmod(0o644)
    done = Terminal(home)("doctor", "--quick", code=1)
    assert "fail  secrets key" in done.out and "chmod 600" in done.out
    assert "failure" in done.out.splitlines()[-1]


def test_torch_is_imported_in_a_process_of_its_own() -> None:
    found = only(machine.torch(Path("/")))
    assert found.level == "ok" and "gloo" in found.text


def test_without_torch_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('no such thing')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = only(machine.torch(Path("/")))
    assert found.level == "fail" and "no such thing" in found.text and "pip install torch" in str(found.fix)


def test_a_port_that_is_taken_is_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setattr(platform_verbs, "PORT", taken.getsockname()[1])
        assert only(machine.port(tmp_path)).level == "warn"
    assert only(machine.port(tmp_path)).level == "ok"


def test_a_clock_that_was_set_back_fails(home: Path) -> None:
    assert only(machine.clock(home)).level in ("ok", "warn")
    ahead_s = time.time() + 7200
    os.utime(home / "logs", (ahead_s, ahead_s))
    found = only(machine.clock(home))
    assert found.level == "fail" and "set back" in found.text


def test_a_clock_that_jumps_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real, calls = time.time, iter([0.0])
    monkeypatch.setattr(machine.time, "time", lambda: real() + next(calls, 1.5))
    assert "jumped by +1.5" in only(machine.clock(tmp_path)).text


def test_few_files_are_a_failure_and_many_are_well(monkeypatch: pytest.MonkeyPatch) -> None:
    for bounds, level in (((256, 1 << 20), "fail"), ((1000, 1 << 20), "warn"), ((65536, 1 << 20), "ok")):
        monkeypatch.setattr(machine.resource, "getrlimit", lambda _, bounds=bounds: bounds)
        assert levels(machine.limits(Path("/")))["open files"] == level


def test_what_others_may_read_is_named_with_the_command_that_closes_it(home: Path) -> None:
    assert only(house.owner_and_modes(home)).level in ("ok", "warn")
    write_profile(Home(home), "http://127.0.0.1:1", "fl_a_b", None)
    (home / "profile.json").chmod(0o644)
    found = only(house.owner_and_modes(home))
    assert found.level == "fail" and found.fix == f"chmod 600 {home / 'profile.json'}"
    (home / "profile.json").chmod(0o600)
    home.chmod(0o777)
    assert only(house.owner_and_modes(home)).fix == f"chmod 711 {home}"
    home.chmod(0o711)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_home_of_another_user_fails(home: Path) -> None:
    os.chown(home, 12345, 12345)
    found = only(house.owner_and_modes(home))
    assert found.level == "fail" and "belongs to user 12345" in found.text


def test_a_home_that_can_never_be_made_fails() -> None:
    found = only(house.owner_and_modes(Path("/proc/none/home")))
    assert (found.level == "fail" and "cannot be created" in found.text) or os.geteuid() == 0


class _Room:
    f_frsize = 1
    f_blocks, f_files = 10**12, 1000

    def __init__(self, free: float, files: int) -> None:
        self.f_bavail, self.f_favail = free, files


@pytest.mark.parametrize(
    ("free", "files", "disk", "inodes"),
    [(5e11, 500, "ok", "ok"), (2e10, 30, "warn", "warn"), (1e8, 5, "fail", "fail")],
)
def test_little_room_warns_and_none_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free: float, files: int, disk: str, inodes: str
) -> None:
    monkeypatch.setattr(house.os, "statvfs", lambda _: _Room(free, files))
    assert levels(house.room(tmp_path)) == {"disk": disk, "inodes": inodes}


MOUNTS = """22 1 8:1 / / rw - ext4 /dev/sda rw
30 22 0:40 / /home rw,relatime shared:1 - nfs4 server:/home rw
31 30 0:41 / /home/my\\040files rw - tmpfs tmpfs rw"""


@pytest.mark.parametrize(
    ("place", "kind"), [("/srv/x", "ext4"), ("/home/me", "nfs4"), ("/homes", "ext4"), ("/home/my files/x", "tmpfs")]
)
def test_the_file_system_is_that_of_the_nearest_mount(place: str, kind: str) -> None:
    assert house.mount_kind(Path(place), MOUNTS) == kind


def test_locks_are_tried_and_leave_nothing_behind(home: Path) -> None:
    assert only(house.file_system(home)).level == "ok"
    assert not list(home.glob(".doctor*"))


def test_a_network_file_system_is_warned_of(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    monkeypatch.setattr(house, "mount_kind", lambda *_: "nfs4")
    found = only(house.file_system(home))
    assert found.level == "warn" and "PostgreSQL" in str(found.fix)


@pytest.mark.parametrize(("days", "level"), [(400, "ok"), (10, "warn"), (-3, "fail")])
def test_a_certificate_is_asked_when_it_expires(home: Path, tmp_path: Path, days: int, level: str) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    until = datetime.now(UTC) + timedelta(days=days, hours=1)
    made = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(1)
        .not_valid_before(until - timedelta(days=500)).not_valid_after(until).sign(key, hashes.SHA256())
    )  # fmt: skip
    pem = tmp_path / "cert.pem"
    pem.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    write_profile(Home(home), "https://127.0.0.1:1", "fl_a_b", None, pem)
    assert only(house.certificate(home)).level == level


def test_a_platform_that_died_is_not_a_failure_but_one_that_hangs_is(home: Path) -> None:
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    write_profile(Home(home), "http://127.0.0.1:1", "fl_a_b", None)  # of this process, which lives and does not answer
    assert only(running.platform(home)).level == "fail"
    profile = home / "profile.json"
    profile.write_text(profile.read_text().replace(str(os.getpid()), str(gone.pid)))
    found = only(running.platform(home))
    assert found.level == "ok" and "not running" in found.text


def test_a_store_of_a_newer_fairlead_fails_and_an_older_one_will_be_brought_up(home: Path) -> None:
    import asyncio
    import sqlite3

    assert only(running.store(home)).text.startswith("none yet")
    store = Store.open(f"sqlite:///{Home(home).database}")
    asyncio.run(store.close())
    assert levels(running.store(home))["store"] == "ok"
    for version, level in (("9999", "fail"), ("0001", "ok")):
        with sqlite3.connect(Home(home).database) as connection:
            connection.execute("UPDATE alembic_version SET version_num = ?", (version,))
        assert levels(running.store(home))["store"] == level
    with sqlite3.connect(Home(home).database) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchone() == ("0001",)  # only looked at


def test_a_store_that_is_not_reached_fails_and_shows_no_password(home: Path) -> None:
    write_profile(Home(home), "http://127.0.0.1:1", "fl_a_b", "postgresql://me:open-sesame@127.0.0.1:1/x")
    found = only(running.store(home))
    assert found.level == "fail" and "open-sesame" not in found.text + str(found.fix)


def test_isolation_is_found_out_by_trying() -> None:
    for check in (isolation.namespaces, isolation.bubblewrap, isolation.seccomp, isolation.control_groups):
        for found in check(Path("/")):
            assert found.level == "ok" or found.fix


def test_without_bubblewrap_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation.shutil, "which", lambda *_, **__: None)
    found = only(isolation.bubblewrap(Path("/")))
    assert found.level == "fail" and "apt install bubblewrap" in str(found.fix)


def test_the_sandbox_that_is_tried_is_the_one_that_workers_get(
    monkeypatch: pytest.MonkeyPatch, home: Path, tmp_path: Path
) -> None:
    asked: list[Path] = []
    monkeypatch.setattr(isolation.isolation_probe, "sandbox_problem", lambda place: asked.append(place) or "it leaks")
    for place in (home, tmp_path / "never-made"):
        found = only(isolation.bubblewrap(place))
        assert found.level == "fail" and "it leaks" in found.text and found.fix
    assert asked[0] == home and asked[1] != tmp_path / "never-made" and not asked[1].exists()


def test_it_is_told_when_what_is_installed_is_not_what_runs(home: Path) -> None:
    assert list(running._old_code(home, [])) == []
    host = HostRecord.of_this_process()
    record = Home(home).run / "host.pid"
    record.write_bytes(msgspec.json.encode(host))
    assert list(running._old_code(home, [])) == []
    found = only(running._old_code(home, ["node-1"]))
    assert found.level == "warn" and "node-1" in found.text and "drain" in str(found.fix)
    record.write_bytes(msgspec.json.encode(msgspec.structs.replace(host, build="before a fix")))
    assert "runs an older version" in only(running._old_code(home, [])).text


def test_an_attempt_in_a_child_tells_why_it_did_not_work() -> None:
    def refused() -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    assert in_child(refused) == "Operation not permitted"
    assert in_child(lambda: os.kill(os.getpid(), 9)) == "the attempt was killed"
    assert in_child(lambda: 1 // 0) == "ZeroDivisionError: integer division or modulo by zero"
    assert tried_in_child(lambda: str(1 // 0)) == "ZeroDivisionError: integer division or modulo by zero"
    assert in_child(lambda: None) is None


def test_a_grade_is_the_worst_that_holds() -> None:
    assert graded("x", "", "", fails=True, warns=True).level == "fail"
    assert graded("x", "", "", fails=False, warns=True).level == "warn"
    assert graded("x", "", "", fails=False, warns=False).fix is None


def test_modes_are_left_as_they_were(home: Path) -> None:
    before = {path: stat.S_IMODE(path.stat().st_mode) for path in home.rglob("*")}
    Terminal(home)("doctor", "--quick", code=None)
    assert {path: stat.S_IMODE(path.stat().st_mode) for path in home.rglob("*")} == before


def test_secrets_without_their_key_are_warned_of(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    asyncio.run(Store.open(f"sqlite:///{home}/fairlead.db").close())
    assert "secrets" not in levels(running.store(home))
    with sqlite3.connect(home / "fairlead.db") as store:
        store.execute("INSERT INTO secrets VALUES ('nlp', 'KEY', x'00', 0, 'somebody')")
    found = {finding.name: finding for finding in running.store(home)}["secrets"]
    assert found.level == "warn" and "1 in the store" in found.text and KEY_VARIABLE in found.fix
    (home / "secret.key").write_text("x")
    assert "secrets" not in levels(running.store(home))
