"""The suite as a whole: what waits beside what computes, and nothing of ours left on the machine when it ends."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import settings

from tests import nursery

GRACE_S = 5.0  # what is ending already may end
FIRST_TRY_CHARS = 3_000
FIRST = ("test_house", "test_specs")  # a plain mistake shows at once
TOGETHER = ("api", "cli", "control", "escape", "chaos")  # rooms whose files share a platform or a database server, but
APART = (  # for those that start their own
    "api/test_fuzz", "cli/test_second_tenant", "cli/test_foreground", "control/test_outage", "chaos/test_failpoints",
    "chaos/test_random_kills", "chaos/test_upgrade", "chaos/test_keeping", "chaos/test_campaign",
)  # fmt: skip
EACH = ("storm",)  # tests of these rooms share nothing: each runs wherever there is time
WAITING = (*TOGETHER, "test_demo", "live", "browser", "agent", "outside")  # platforms, the longest first

# Everything that the tests start inherits this folder's name (as TMPDIR, home or argument), and is known by it. The
# processes that run the tests side by side share one, and the process that shares the tests out looks for what is left.
HELPER = "PYTEST_XDIST_WORKER" in os.environ
ROOT = Path(os.environ["FAIRLEAD_TESTS_ROOT"] if HELPER else tempfile.mkdtemp(prefix="fl-tests-"))
os.environ["FAIRLEAD_TESTS_ROOT"] = str(ROOT)
ROOT.chmod(0o755)  # workers and PostgreSQL run as users of their own


def _shared_memory() -> set[str]:
    return {str(path) for path in Path("/dev/shm").glob("fairlead-*")}


def _cgroups() -> set[str]:
    """Walked, not globbed: others' groups come and go meanwhile."""
    folders = os.walk("/sys/fs/cgroup")
    return {f"{place}/{name}" for place, names, _ in folders for name in names if name.startswith("fairlead-")}


BEFORE = _shared_memory() | _cgroups()
PYTESTS_OWN: set[str] = set()  # sockets on which pytest and its plugins listened before the first test
FAILED: list[str] = []  # tests, also those that passed when they were tried again


# The same examples on every machine: a red suite is red for whoever looks into it. `make explore` draws new ones.
# No deadlines: on a machine that others use too they say nothing about the code.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("explore", derandomize=False, print_blob=True, deadline=None)
settings.load_profile("explore" if os.environ.get("FAIRLEAD_EXPLORE") else "same")


def pytest_configure() -> None:
    os.environ["TMPDIR"] = str(ROOT)
    tempfile.tempdir = None  # read it again
    if shutil.which("bwrap") is None and not os.environ.get("FAIRLEAD_REQUIRE_ALL"):
        os.environ["FAIRLEAD_ISOLATION"] = "none"  # else no platform here would take a second tenant
    # A shell that starts the suite in the background has Ctrl-C ignored, and every process below would ignore it too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # told to end, it still ends what it started


def pytest_sessionstart() -> None:
    PYTESTS_OWN.update(_listening())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What waits for whole platforms is spread evenly among what computes, since both run side by side."""
    rooms = {_together(item.nodeid): _room(item.nodeid) for item in items}
    waiting = sorted((some for some in rooms if rooms[some] in WAITING), key=lambda some: WAITING.index(rooms[some]))
    computing = [some for some in rooms if rooms[some] not in (*WAITING, *FIRST)]
    turn = {some: (index + 0.5) / len(lane) for lane in (waiting, computing) for index, some in enumerate(lane)}
    items.sort(key=lambda item: turn.get(_together(item.nodeid), 0.0))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadFileScheduling

    class ByRoom(LoadFileScheduling):
        """One process runs all that shares a platform, so that there is one."""

        def _split_scope(self, nodeid: str) -> str:
            return _together(nodeid)

    return ByRoom(config, log)


def _together(nodeid: str) -> str:
    """What runs in one process: a test's room if that shares something, else its file, or the test alone."""
    file = nodeid.removeprefix("tests/").split(".py::")[0]
    if _room(nodeid) in EACH:
        return nodeid
    return _room(nodeid) if _room(nodeid) in TOGETHER and file not in APART else file


def _room(nodeid: str) -> str:
    return nodeid.removeprefix("tests/").split("/")[0].split(".py")[0]


# ---------------------------------------------------------------- what is left behind


def _ours(process: psutil.Process) -> bool:
    try:
        words = [*process.cmdline(), *process.environ().values()]
    except psutil.Error:  # gone, or a zombie: its parent is the one to look at
        return False
    return any(str(ROOT) in word for word in words)


def _processes() -> list[psutil.Process]:
    family = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    return [process for process in psutil.process_iter() if process.pid not in family and _ours(process)]


def _listening() -> set[str]:
    sockets = (each for each in psutil.Process().net_connections("inet") if each.status == psutil.CONN_LISTEN)
    return {f"{each.laddr.ip}:{each.laddr.port}" for each in sockets}


def _sockets() -> list[str]:
    return [f"listening socket {address} of the tests themselves" for address in sorted(_listening() - PYTESTS_OWN)]


def _others_tags() -> set[str]:
    """Tags of platforms that live on this machine and are not the tests': their traces are not ours to judge."""
    tags = set()
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        homes = [after for before, after in itertools.pairwise(words) if before == "--home"]
        tags |= {hashlib.sha256(home.encode()).hexdigest()[:12] for home in homes if str(ROOT) not in home}
    return tags


def _new_folders() -> list[str]:
    others = tuple(_others_tags())
    return sorted(path for path in (_shared_memory() | _cgroups()) - BEFORE if not path.endswith(others))


def _leftovers() -> list[str]:
    if HELPER:
        return _sockets()
    running = [f"process {each.pid}: {' '.join(_words(each))}" for each in _processes()]
    return [*running, *_sockets(), *_new_folders()]


def _words(process: psutil.Process) -> Iterable[str]:
    try:
        return [process.name(), *process.cmdline()]
    except psutil.Error:
        return ["(just ended)"]


def _leftovers_after_grace() -> list[str]:
    until = time.monotonic() + GRACE_S
    while (left := _leftovers()) and time.monotonic() < until:
        time.sleep(0.1)
    return left


def _end_all() -> None:
    """So that the machine is as before, whatever went wrong here."""
    doomed = _processes()
    for process in doomed:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(doomed, GRACE_S)
    for path in sorted(_new_folders(), reverse=True):  # the inner groups first
        if path.startswith("/dev/shm"):
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):  # somebody is in it still
                Path(path).rmdir()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """A test that failed cannot always end what it had started, and it is named already, if it then passed, too."""
    if report.outcome in ("failed", "rerun"):
        FAILED.append(report.nodeid)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    nursery.close()
    left = [*session.config.stash.get(LEFT, []), *_leftovers_after_grace()]
    session.config.stash[LEFT] = left
    if HELPER:
        session.config.workeroutput["left"] = left  # type: ignore[attr-defined]
    elif left:
        _end_all()
    if left and not FAILED and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """What a helper found in itself when it was done."""
    node.config.stash.setdefault(LEFT, []).extend(getattr(node, "workeroutput", {}).get("left", []))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for report in terminalreporter.stats.get("rerun", []):  # it may have passed then: why not at once?
        terminalreporter.section(f"first try of {report.nodeid}", sep="-")
        terminalreporter.line(report.longreprtext[-FIRST_TRY_CHARS:])
    left = config.stash.get(LEFT, [])
    if left:
        whose = "tests, some of which failed; it was ended" if FAILED else "tests; it was ended"
        terminalreporter.section(f"left behind by the {whose}", sep="=", red=True)
        for line in left:
            terminalreporter.line(line)


def pytest_unconfigure(config: pytest.Config) -> None:
    if not HELPER and not config.stash.get(LEFT, []) and not os.environ.get("FAIRLEAD_KEEP_TESTS"):
        shutil.rmtree(ROOT, ignore_errors=True)


LEFT = pytest.StashKey[list[str]]()
