"""The platform's own log: structured, without secrets, and in files that do not grow for ever."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.errors import InvalidSpec
from fairlead.logbook import redact, wanted_format, wanted_level
from fairlead.logbook.redact import redact_text

TOKEN = "fl_0123456789_" + "ab" * 24


def logged(tmp_path: Path, script: str, **variables: str) -> tuple[str, Path]:
    """What a process with this script writes into its log, and the log."""
    log = tmp_path / "process.log"
    code = "import logging, structlog\nfrom pathlib import Path\nfrom fairlead import logbook\n"
    code += f"LOG = Path({str(log)!r})\n"
    with log.open("ab") as output:
        done = subprocess.run([sys.executable, "-c", code + script], stdout=output, stderr=output, timeout=60,
                              env={**os.environ, **variables}, check=False)  # fmt: skip
    assert done.returncode == 0, log.read_text()
    return log.read_text(), log


def test_a_line_is_one_object_with_what_is_known(tmp_path: Path) -> None:
    script = """
logbook.configure("control", format="json", path=LOG, facts=lambda: {"epoch": 7})
structlog.contextvars.bind_contextvars(request_id="abc", tenant="alpha")
structlog.get_logger("fairlead.test").info("job-starting", job="job-1", generation=2, node="node-0")
logging.getLogger("fairlead.local").warning("%s is lost", "node-1")
logging.getLogger("uvicorn.error").info("not worth it")
try:
    1 / 0
except ZeroDivisionError:
    logging.getLogger("fairlead.local").exception("ended")
"""
    written, _ = logged(tmp_path, script)
    lines = [json.loads(line) for line in written.splitlines()]
    assert [line["message"] for line in lines] == ["job-starting", "node-1 is lost", "ended"]
    first = lines[0]
    assert (first["job"], first["generation"], first["node"], first["tenant"]) == ("job-1", 2, "node-0", "alpha")
    assert (first["epoch"], first["process"], first["request_id"], first["level"]) == (7, "control", "abc", "info")
    assert lines[1]["level"] == "warning" and lines[1]["logger"] == "fairlead.local"
    assert "ZeroDivisionError" in lines[2]["exception"]


def test_in_text_a_stranger_s_words_cannot_look_like_a_line_of_ours(tmp_path: Path) -> None:
    script = """
logbook.configure("control", format="text", path=LOG)
log = structlog.get_logger("fairlead.test")
log.info("job-failing", text="oops\\n2026-01-01T00:00:00Z info    all is well\\x1b[2J")
log.info("two\\nlines")
"""
    written, _ = logged(tmp_path, script)
    assert len(written.splitlines()) == 2 and "\x1b" not in written and "job-failing" in written


def test_the_level_holds_for_libraries_and_for_us(tmp_path: Path) -> None:
    script = """
logbook.configure("control", format="json", path=LOG)
structlog.get_logger("fairlead.test").info("no")
structlog.get_logger("fairlead.test").warning("yes")
logging.getLogger("fairlead.local").info("no")
"""
    written, _ = logged(tmp_path, script, FAIRLEAD_LOG_LEVEL="warning")
    assert [json.loads(line)["message"] for line in written.splitlines()] == ["yes"]


@pytest.mark.parametrize("variable", ["FAIRLEAD_LOG_FORMAT", "FAIRLEAD_LOG_LEVEL"])
def test_a_wrong_wish_names_its_variable_and_the_choices(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "loud")
    with pytest.raises(InvalidSpec) as caught:
        wanted_format() if variable.endswith("FORMAT") else wanted_level()
    assert caught.value.field == variable and "loud" in str(caught.value) and "use " in str(caught.value.fix)


# ---------------------------------------------------------------- secrets


@pytest.mark.parametrize(
    ("line", "hidden"),
    [
        (f"opened with {TOKEN}", "ab" * 24),
        (f"GET /api/v1/jobs?token={TOKEN}&x=1", "ab" * 24),
        ("Authorization: Bearer abcdef0123456789", "abcdef0123456789"),
        ("authorization=Basic dXNlcjpwYXNzd29yZA==", "dXNlcjpwYXNzd29yZA=="),
        ("cannot connect to postgresql://fair:s3cr3t@db/fairlead", "s3cr3t"),
        ("cookie: fairlead_8471=q1w2e3r4t5y6; other=1", "q1w2e3r4t5y6"),
        ("cookie: __Host-fairlead=q1w2e3r4t5y6", "q1w2e3r4t5y6"),
    ],
)
def test_what_opens_something_is_taken_out_of_a_text(line: str, hidden: str) -> None:
    assert hidden not in redact_text(line) and "***" in redact_text(line)


def test_a_token_s_id_stays_so_that_one_knows_which_it_was() -> None:
    assert redact_text(f"revoked {TOKEN}") == "revoked fl_0123456789_***"


def test_ordinary_words_stay_as_they_are() -> None:
    for line in ("is not a bearer token", "http://127.0.0.1:8471/api/v1/jobs", "fairlead up: ok", "fl_x"):
        assert redact_text(line) == line


def test_telling_names_hide_their_values_however_deep() -> None:
    line = {"event": "x", "token": "abc", "detail": {"Password": "abc", "list": [{"secret": "abc"}, TOKEN]}, "n": 1}
    hidden = redact(None, "info", line)
    assert "abc" not in str(hidden) and "ab" * 24 not in str(hidden) and hidden["n"] == 1


def test_a_traceback_is_cleaned_too(tmp_path: Path) -> None:
    script = f"""
logbook.configure("control", format="json", path=LOG)
try:
    raise RuntimeError("cannot open with {TOKEN}")
except RuntimeError:
    logging.getLogger("fairlead.x").exception("failed for %s", "{TOKEN}")
"""
    written, _ = logged(tmp_path, script)
    assert "ab" * 24 not in written and "fl_0123456789_***" in written and "RuntimeError" in written


# ---------------------------------------------------------------- files


def test_a_large_file_is_put_aside_with_what_is_printed_past_the_logger(tmp_path: Path) -> None:
    script = """
logbook.configure("control", format="json", path=LOG)
log = structlog.get_logger("fairlead.test")
for number in range(60):
    log.info("line", number=number, filler="x" * 1000)
    print("printed", number, flush=True)
"""
    _, log = logged(tmp_path, script, FAIRLEAD_LOG_BYTES="20000")
    parts = sorted(path.name for path in tmp_path.iterdir())
    assert parts == ["process.log", "process.log.1", "process.log.2", "process.log.3"]
    assert all(path.stat().st_size < 25_000 for path in tmp_path.iterdir())
    newest = log.read_text()
    assert '"number": 59' in newest and "printed 59" in newest
    assert log.stat().st_mode & 0o077 == 0, "only the platform reads it"


def test_two_processes_share_a_file_and_both_go_on_in_the_fresh_one(tmp_path: Path) -> None:
    script = """
import os
logbook.configure("node-0", format="json", path=LOG)
log = structlog.get_logger("fairlead.test")
for number in range(30):
    log.info("line", who="parent" if number % 2 else "also parent", number=number, filler="x" * 1000)
pid = os.fork()
logbook.configure("child" if pid == 0 else "parent", format="json", path=LOG)
for number in range(30):
    log.info("line", number=number, filler="x" * 1000)
log.info("end")
if pid == 0:
    os._exit(0)
os.waitpid(pid, 0)
log.info("very end")
"""
    _, _ = logged(tmp_path, script, FAIRLEAD_LOG_BYTES="15000")
    every = "".join(path.read_text() for path in tmp_path.iterdir())
    for line in every.splitlines():
        json.loads(line)  # none was cut in two
    assert '"very end"' in (tmp_path / "process.log").read_text()
    assert every.count('"message": "end"') == 2


def test_a_forked_child_with_an_output_of_its_own_never_touches_its_parent_s_file(tmp_path: Path) -> None:
    script = """
import os
logbook.configure("node-0", format="json", path=LOG)
if os.fork() == 0:
    own = os.open(LOG.with_name("worker.log"), os.O_WRONLY | os.O_CREAT)
    os.dup2(own, 1); os.dup2(own, 2)
    logging.getLogger("fairlead.x").warning("still ours")
    logbook.reset()
    logging.basicConfig(format="mine: %(message)s")
    logging.getLogger().warning("the tenant's")
    os._exit(0)
os.wait()
"""
    written, _ = logged(tmp_path, script, FAIRLEAD_LOG_BYTES="10")
    assert written == ""
    assert "mine: the tenant's" in (tmp_path / "worker.log").read_text()
