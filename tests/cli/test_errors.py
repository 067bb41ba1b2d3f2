"""Promises about errors at the terminal: two lines that name the thing and the fix, an exit code, never a trace."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from fairlead.cli.errors import execute
from fairlead.cli.main import app
from fairlead.errors import JobCancelled, JobFailed, NotFound, Refused, StillRunning


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No platform in reach, and a folder of its own."""
    for name in ("FAIRLEAD_URL", "FAIRLEAD_TOKEN", "FAIRLEAD_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FAIRLEAD_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def raising(error: Exception) -> typer.Typer:
    small = typer.Typer(add_completion=False, rich_markup_mode=None)

    @small.callback()
    def top() -> None:
        pass

    @small.command()
    def verb(as_json: bool = typer.Option(False, "--json")) -> None:
        raise error

    return small


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NotFound("no job x", fix="list them"), 3), (Refused("no", fix="ask"), 4), (JobFailed("it failed"), 100),
        (StillRunning("not yet"), 101), (JobCancelled("ended"), 103),
    ],
)  # fmt: skip
def test_every_kind_of_error_has_its_exit_code(error: Exception, code: int) -> None:
    assert execute(raising(error), ["verb"]) == code


def test_an_error_is_one_line_and_its_fix(capsys: pytest.CaptureFixture[str]) -> None:
    error = Refused("12 is more than 8", field="job.yaml: workers.max", fix="lower workers.max")
    execute(raising(error), ["verb"])
    said = capsys.readouterr()
    assert said.err == "fairlead verb: job.yaml: workers.max: 12 is more than 8\n  fix: lower workers.max\n"
    assert said.out == ""


def test_with_json_the_problem_is_also_one_object_for_machines(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(raising(NotFound("no job x")), ["verb", "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["code"] == "not-found"


def test_an_unexpected_error_is_one_line_that_says_where_the_log_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(raising(KeyError("oops")), ["verb"]) == 1
    said = capsys.readouterr().err
    assert "unexpected error: KeyError: 'oops'" in said
    assert "Traceback" not in said
    log = Path(said.split("details are in ")[1].split(";")[0])
    assert "Traceback" in log.read_text()
    log.unlink()


def test_an_unexpected_error_shows_its_trace_when_asked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIRLEAD_DEBUG", "1")
    assert execute(raising(KeyError("oops")), ["verb"]) == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("frob", "no such command"), ("queue --frob", "no such option"), ("why", "missing argument"),
        ("queue --limit many", "--limit"), ("nodes drain", "missing argument"), ("tenant", "missing command"),
        ("tenant create a --weight x", "--weight"), ("run", "missing argument"), ("up --port 70000", "--port"),
        ("logs a --tail 0", "--tail"), ("run train.py:f x", "'x' follows a function"),
        ("run --sla platinum -- true", "--sla: 'platinum' is neither an sla class nor a deadline"),
        ("usage --since 2020-01-02 --until 2020-01-01", "--since: '2020-01-02' is not before --until 2020-01-01"),
    ],
)  # fmt: skip
def test_wrong_usage_exits_with_two_in_the_same_style(line: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(app, line.split()) == 2
    error = capsys.readouterr().err
    first, second = error.splitlines()
    assert first.startswith("fairlead")
    assert said in first.lower()
    assert second.startswith("  fix: ")


@pytest.mark.parametrize(
    "line", ["token create --expires soon", "tenant create a --disk lots", "tenant create a --guarantee cpu"]
)
def test_advice_is_given_once(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(app, line.split()) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert "write" not in first and "write it like" in second


def test_the_list_of_verbs_is_told_in_whole_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(app, ["--help"]) == 0
    verbs = capsys.readouterr().out.partition("Commands:")[2]
    assert "..." not in verbs and max(map(len, verbs.splitlines())) <= 80


def test_a_value_that_an_option_does_not_take_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(app, ["tenant", "create", "a", "--weight", "heavy", "--json"]) == 2
    said = capsys.readouterr()
    assert said.err.startswith("fairlead tenant create: --weight: 'heavy' should be a valid number\n")
    problem = json.loads(said.out)
    assert (problem["field"], problem["value"]) == ("--weight", "heavy")


def test_wrong_usage_with_json_is_also_one_object_for_machines(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(app, ["queue", "--frob", "--json"]) == 2
    problem = json.loads(capsys.readouterr().out)
    assert problem["code"] == "invalid-spec"
    assert problem["fix"] == "see fairlead queue --help"


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [("up --home /proc/none", 4, "/proc/none cannot be created"), ("up --nodes 1x999 --detach", 2, "999 cores")],
)
def test_what_keeps_a_platform_from_starting_is_said_in_front_and_behind(
    line: str, code: int, said: str, nowhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(app, line.split()) == code
    error = capsys.readouterr().err
    assert said in error
    assert "fix: " in error


ASKING = (
    "queue", "nodes", "nodes drain n", "tenants", "tenant list", "tenant create a", "tenant update a --weight 2",
    "token list", "token create", "token revoke x", "events", "events -f", "logs a", "logs a -f", "why a", "cancel a",
    "result a", "metrics a", "report", "audit", "whoami", "down", "run -- true", "run t.py:f --watch",
)  # fmt: skip


@pytest.mark.parametrize("line", ASKING)
def test_every_verb_without_a_platform_says_how_to_start_one(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(app, line.split()) == 1
    error = capsys.readouterr().err
    assert "no platform was started" in error
    assert "fix: " in error


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("submit nothing.yaml", 3, "nothing.yaml: there is no such file"), ("submit .", 2, ".: is a folder"),
        ("run train.py", 2, "fairlead run -- python train.py"), ("run job.yaml", 2, "fairlead submit job.yaml"),
        ("run t.py:f --param lr", 2, "--param: 'lr' is not of the form"), ("run t.py:f --env A", 2, "--env"),
        ("tenant update a", 2, "nothing to change"), ("tenant create a --quota x", 2, "--quota"),
        ("token create --expires soon", 2, "--expires"),
    ],
)  # fmt: skip
def test_what_is_wrong_before_asking_is_said_with_its_fix(
    line: str, code: int, said: str, capsys: pytest.CaptureFixture[str], nowhere: Path
) -> None:
    (nowhere / "home").mkdir()
    (nowhere / "home" / "profile.json").write_text('{"url": "http://127.0.0.1:9", "token": "fl_a_b"}')
    assert execute(app, line.split()) == code
    assert said in capsys.readouterr().err


BAD = {
    "name: a\nrun: t.py:f\nwokers: 2\n": ("job.yaml: wokers: unknown field", "use one of"),
    "name: a\nrun: t.py:f\nworkers: 4:1\n": ("job.yaml: workers", ""),
    "name: A B\nrun: t.py:f\n": ("job.yaml: name: 'A B'", ""),
    "run: t.py:f\n": ("job.yaml: name: is required", "add name"),
    "name: a\n": ("job.yaml: ", ""),
    "name: a\nrun: t.py\n": ("job.yaml: run: 't.py'", "train.py:training"),
    "name: a\nrun: [\n": ("job.yaml: line 3: ", "indentation"),
    "": ("job.yaml: is empty", "name"),
}


@pytest.mark.parametrize("text", BAD)
def test_a_bad_job_file_names_file_field_and_fix(text: str, nowhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (nowhere / "job.yaml").write_text(text)
    (nowhere / "home").mkdir()
    (nowhere / "home" / "profile.json").write_text('{"url": "http://127.0.0.1:9", "token": "fl_a_b"}')
    assert execute(app, ["submit", "job.yaml"]) == 2
    first, second = capsys.readouterr().err.splitlines()
    message, fix = BAD[text]
    assert first.startswith("fairlead submit: ")
    assert message in first
    assert second.startswith("  fix: ")
    assert fix in second


def test_help_and_version_work_without_a_platform_and_without_torch() -> None:
    check = (
        "import sys; from fairlead.cli.main import main\ntry:\n    main(['--help'])\nexcept SystemExit as end:\n"
        "    heavy = {'torch', 'httpx', 'rich', 'pydantic', 'yaml', 'sqlalchemy', 'fastapi'} & set(sys.modules)\n"
        "    assert not heavy and not end.code, (heavy, end.code)\n"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    listed = {line.split()[0] for line in done.stdout.partition("Commands:")[2].splitlines() if line.strip()}
    assert {"up", "down", "submit", "run", "queue", "nodes", "tenants", "events", "logs", "why", "cancel"} <= listed


def in_bash(line: str) -> subprocess.CompletedProcess[str]:
    command = f"{sys.executable} -m fairlead.cli.main {line}"
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("line", ["--help >&-", "version >&-", "completion bash >&-"])
def test_a_closed_output_is_no_error(line: str) -> None:
    done = in_bash(line)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_output_without_room_is_told_in_one_line() -> None:
    done = in_bash("completion bash > /dev/full")
    assert done.returncode == 1
    assert done.stderr.startswith("fairlead completion: cannot write to the output: no space left on device\n")
    assert "unexpected" not in done.stderr


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    line = f"{sys.executable} -m fairlead.cli.main --help | head -1"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {line}"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert os.linesep in done.stdout
