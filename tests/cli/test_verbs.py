"""Every verb of the command line through a real server with real nodes and workers."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import fairlead
from tests.cli.conftest import EXAMPLES, PATIENCE_S, Platform, Terminal

ENDED = ("succeeded", "failed", "cancelled")
HOLD = "import time\nprint('here', flush=True)\ntime.sleep(86400)"


def held(terminal: Terminal, name: str) -> str:
    """A job that runs until it is cancelled."""
    job = terminal("run", "--name", name, "--json", "--", "python", "-c", HOLD).data["id"]
    terminal.until(lambda answer: answer["job"]["state"] == "running", "why", job)
    return str(job)


@pytest.fixture(scope="module")
def digits(platform: Platform) -> str:
    """The digits example, trained to its end."""
    done = platform.vision("submit", "digits/job.yaml", "--watch", "--json")
    assert done.data["state"] == "succeeded", done.data
    return str(done.data["id"])


def test_up_prints_the_address_and_the_admin_token_once(platform: Platform) -> None:
    assert re.search(r"http://127\.0\.0\.1:\d+", platform.first_words.out)
    assert re.search(r"token.*fl_\w+", platform.first_words.out)
    profile = platform.admin.home / "profile.json"
    assert profile.stat().st_mode & 0o777 == 0o600
    logs = platform.admin.home / "logs"
    token = json.loads(profile.read_text())["token"]
    assert all(token not in path.read_text(errors="replace") for path in logs.glob("*") if path.is_file())


def test_a_second_up_for_the_same_home_is_refused(platform: Platform) -> None:
    for words in (("up",), ("up", "--detach")):
        done = platform.admin(*words, code=4)
        assert "already runs" in done.err


def test_whoami_and_version_say_who_and_what(platform: Platform) -> None:
    assert platform.admin("whoami", "--json").data["role"] == "admin"
    assert platform.vision("whoami", "--json").data["tenant"] == "vision"
    assert "vision" in platform.vision("whoami").out
    assert platform.admin("version", "--json").data == {"version": fairlead.__version__}
    assert fairlead.__version__ in platform.admin("--version").out


def test_a_command_is_submitted_watched_and_leaves_its_log(platform: Platform) -> None:
    done = platform.vision("submit", "hello/job.yaml", "--watch")
    assert "succeeded" in done.out
    assert "hello from rank 0 of 1" in platform.vision("logs", "hello").out
    assert "hello from rank 0" in platform.vision("logs", "hello", "-f").out
    lines = platform.vision("logs", "hello", "--json").out.splitlines()
    assert all({"worker", "text"} <= set(json.loads(line)) for line in lines)


def test_a_training_gives_metrics_and_a_result_with_files(platform: Platform, digits: str, tmp_path: Path) -> None:
    steps = platform.vision("metrics", digits, "--json").data["steps"]
    assert len(steps) == 60
    assert steps[-1]["loss"] < steps[0]["loss"]
    assert "loss" in platform.vision("metrics", digits).out
    assert platform.vision("metrics", digits, "-n", "2", "--json").data["steps"] == steps[-2:]
    result = platform.vision("result", digits, "--download", str(tmp_path / "out"), "--json").data
    assert result["metrics"]["accuracy"] > 0.85
    assert {"TT", "TP"} <= set(result["figures"])
    assert {path.name for path in (tmp_path / "out").iterdir()} == set(result["artifacts"])
    assert "model.safetensors" in platform.vision("result", digits).out


def test_run_takes_a_function_with_its_params(platform: Platform) -> None:
    line = (
        "run train.py:training --workers 1 --param epochs=1 --param lr=1e-3 --name quick "
        "--env A=b --priority 5 --sla gold --watch"
    )
    done = platform.vision(*line.split(), cwd=EXAMPLES / "digits")
    assert "succeeded" in done.out
    spec = platform.vision("result", "quick", "--json").data["spec"]
    assert spec["params"] == {"epochs": 1, "lr": 0.001}
    assert (spec["env"], spec["priority"], spec["sla"]["class"]) == ({"A": "b"}, 5, "gold")


def test_what_is_not_there_to_run_is_refused_at_once(platform: Platform, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def training(): ...\n")
    before = platform.vision("queue", "--all", "--json").data["total"]
    for more in ((), ("--dry-run",)):
        done = platform.vision("run", "train.py:nope", *more, cwd=tmp_path, code=2)
        told = "run: train.py has no function nope\n  fix: did you mean train.py:training?\n"
        assert done.err == f"fairlead run: {told}"
        done = platform.vision("run", "--venv", "nope", *more, "--", "true", cwd=tmp_path, code=2)
        there = tmp_path / "nope"
        assert done.err.startswith(f"fairlead run: venv: {there} is not a virtual environment on the platform's")
        assert f"fix: make one there: python -m venv {there}" in done.err
    assert platform.vision("queue", "--all", "--json").data["total"] == before


def test_code_that_was_deleted_from_the_home_is_sent_again(platform: Platform, tmp_path: Path) -> None:
    (tmp_path / "hello.py").write_text("print('hello')\n")
    platform.vision("run", "--watch", "--", "python", "hello.py", cwd=tmp_path)
    for bundle in (platform.admin.home / "bundles" / "vision").iterdir():
        bundle.unlink()
    platform.vision("run", "--watch", "--", "python", "hello.py", cwd=tmp_path)


def test_a_dry_run_says_whether_where_and_when_and_stores_nothing(platform: Platform) -> None:
    before = platform.vision("queue", "--all", "--json").data["total"]
    answer = platform.vision("submit", "hello/job.yaml", "--dry-run", "--json").data
    assert answer["admitted"]
    assert "would be admitted" in platform.vision("submit", "hello/job.yaml", "--dry-run").out
    assert platform.vision("queue", "--all", "--json").data["total"] == before


def test_a_job_that_can_never_run_is_refused_with_field_and_fix(platform: Platform, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("name: big\ncommand: [hostname]\nworkers: 50\n")
    for words in (("submit", "job.yaml"), ("submit", "job.yaml", "--dry-run")):
        done = platform.vision(*words, cwd=tmp_path, code=None)
        assert done.code in (2, 4)
        assert "50" in done.err + done.out
    done = platform.vision("run", "--json", "--workers", "50", "--", "hostname", cwd=tmp_path, code=None)
    assert done.data["fix"]
    assert done.data["field"].startswith("workers")


def test_a_failed_job_exits_with_100_and_says_why(platform: Platform, tmp_path: Path) -> None:
    done = platform.vision("run", "--name", "fails", "--watch", "--", "sh", "-c", "exit 7", cwd=tmp_path, code=100)
    assert "failed" in done.out
    assert "7" in platform.vision("result", "fails", code=100).out
    assert "7" in platform.vision("why", "fails").out


def test_a_running_job_is_watched_left_alone_and_cancelled(platform: Platform, tmp_path: Path) -> None:
    job = held(platform.vision, "held")
    assert platform.vision("result", job, code=101).err.startswith("fairlead result:")
    queue = platform.vision("queue", "--json").data
    assert job in [each["id"] for each in queue["jobs"] if each["state"] == "running"]
    assert "running" in platform.vision("queue").out
    assert job in platform.vision("cancel", job).out
    platform.vision.until(lambda answer: answer["job"]["state"] == "cancelled", "why", job)
    platform.vision("result", job, code=103)


def test_ctrl_c_ends_the_watching_and_not_the_job(platform: Platform, tmp_path: Path) -> None:
    words = ("run", "--name", "watched", "--watch", "--", "python", "-c", HOLD)
    with platform.vision.start(*words, cwd=tmp_path) as watching:
        assert watching.stdout is not None
        assert "watched" in watching.stdout.readline()
        watching.send_signal(signal.SIGINT)
        out, err = watching.communicate(timeout=PATIENCE_S)
    assert watching.returncode == 101
    assert "fairlead cancel watched" in out
    assert err == ""
    assert platform.vision("why", "watched", "--json").data["job"]["state"] not in ENDED
    platform.vision("cancel", "watched")
    platform.vision.until(lambda answer: answer["job"]["state"] == "cancelled", "why", "watched")


def test_nodes_are_cordoned_drained_and_taken_back(platform: Platform) -> None:
    nodes = platform.admin("nodes", "--json").data["nodes"]
    assert len(nodes) == 2
    name = nodes[0]["name"]
    assert name in platform.admin("nodes").out
    for action in ("cordon", "uncordon", "drain", "uncordon"):
        state = platform.admin("nodes", action, name, "--json").data["state"]
        assert (state == "ready") == (action == "uncordon")
    assert name in platform.admin("nodes", "uncordon", name).out
    platform.admin("nodes", "drain", "nowhere", code=3)
    platform.vision("nodes", "drain", name, code=4)


def test_tenants_are_listed_and_changed(platform: Platform) -> None:
    names = {each["name"] for each in platform.admin("tenants", "--json").data["tenants"]}
    assert {"vision", "text"} <= names
    assert platform.admin("tenant", "list", "--json").data["tenants"]
    line = "tenant update text --weight 3 --quota 1 --sla bronze --json"
    changed = platform.admin(*line.split()).data
    assert (changed["weight"], changed["quota"], changed["sla"]["class"]) == (3, 1, "bronze")
    assert platform.admin("tenant", "update", "text", "--quota", "none", "--json").data["quota"] is None
    assert "text" in platform.admin("tenants").out
    idle = {each["name"]: each for each in platform.admin("tenants", "--json").data["tenants"]}["text"]
    assert idle["entitlement"] > 0  # what it could claim if everybody wanted all
    platform.admin("tenant", "create", "vision", code=4)
    platform.vision("tenant", "create", "third", code=4)
    platform.admin("tenant", "update", "nobody", "--weight", "1", code=3)


def test_tokens_are_made_used_and_revoked(platform: Platform) -> None:
    made = platform.admin("token", "create", "--tenant", "vision", "--role", "viewer", "--label", "eye", "--json").data
    viewer = Terminal(platform.admin.home, made["token"])
    viewer("queue")
    viewer("run", "--", "true", code=4)
    listed = platform.admin("token", "list", "--json").data["tokens"]
    assert made["id"] in [each["id"] for each in listed]
    assert made["token"] not in json.dumps(listed)
    assert made["id"] in platform.admin("token", "list").out
    platform.admin("token", "revoke", made["id"])
    assert "fix" in viewer("queue", code=4).err


def test_a_scraper_s_token_is_the_platform_s_and_opens_nothing_here(platform: Platform) -> None:
    made = platform.admin("token", "create", "--role", "scraper", "--label", "prometheus").out
    assert ": scraper of the platform" in made
    scraper = Terminal(platform.admin.home, made.split()[-1])
    assert "reads /metrics and nothing else" in scraper("queue", code=4).err


def test_events_audit_and_report_tell_what_happened(platform: Platform, digits: str) -> None:
    events = platform.vision("events", "--job", digits, "--json").data["events"]
    assert all(event["job"] == digits for event in events)
    platform.admin("tenant", "update", "text", "--weight", "3")
    platform.vision("run", "--", "true")
    newest = platform.vision("events", "--job", digits, "-n", "2", "--json").data["events"]
    assert newest == events[-2:]  # of this job, however much happened since
    assert platform.admin("events").out
    assert "vision" in json.dumps(platform.admin("audit", "--json").data)
    assert "tenant" in platform.admin("audit").out
    report = platform.admin("report", "--json").data
    assert {"utilisation", "fairness", "tenants", "jobs"} <= set(report)
    assert "vision" in platform.admin("report").out


def test_events_are_followed_live(platform: Platform, tmp_path: Path) -> None:
    with platform.admin.start("events", "-f", "--json") as following:
        assert following.stdout is not None
        tenant = f"live-{os.getpid()}"
        platform.admin("tenant", "create", tenant)
        until = time.monotonic() + PATIENCE_S
        seen: list[dict[str, Any]] = []
        while time.monotonic() < until and not any(event.get("tenant") == tenant for event in seen):
            seen.append(json.loads(following.stdout.readline()))
        following.send_signal(signal.SIGINT)
        following.communicate(timeout=PATIENCE_S)
    assert following.returncode == 0


def test_a_tenant_sees_and_touches_only_its_own(platform: Platform, digits: str) -> None:
    for words in (("why", digits), ("logs", digits), ("cancel", digits), ("result", digits), ("metrics", digits)):
        assert "fix:" in platform.text(*words, code=3).err
    assert digits not in platform.text("queue", "--all").out


def test_tables_fit_eighty_columns_and_carry_no_colours_into_a_pipe(platform: Platform, digits: str) -> None:
    for words in (("queue", "-a"), ("nodes",), ("tenants",), ("report",), ("events",), ("token", "list"), ("audit",)):
        out = platform.admin(*words).out
        assert "\x1b" not in out
        assert max(len(line) for line in out.splitlines()) <= 80, words


def test_a_job_is_found_by_the_beginning_of_its_id_and_not_otherwise(platform: Platform, digits: str) -> None:
    assert platform.vision("why", digits[:-2], "--json").data["job"]["id"] == digits
    platform.vision("why", "no-such-job", code=3)


def test_the_client_in_python_runs_a_function_of_a_notebook(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec(
        "import fairlead\n"
        "def cell(width=4):\n"
        "    import torch\n"
        "    x = torch.randn(64, width, generator=torch.Generator().manual_seed(0))\n"
        "    return fairlead.Training(model=torch.nn.Linear(width, 1), data=(x, x.sum(1, keepdim=True)),\n"
        "                             loss=torch.nn.MSELoss(), batch_size=16, epochs=2)\n",
        scope,
    )
    with fairlead.Client(token=platform.vision.token, home=None, url=_url(platform)) as client:
        job = client.submit(scope["cell"], params={"width": 3})
        assert job.result(timeout=PATIENCE_S).state == "succeeded"
        assert [entry["step"] for entry in job.metrics()] == list(range(1, 9))
        assert job.refresh().state == "succeeded"
        assert "cell" in repr(job)
        assert list(client.jobs(name="cell")) == [job]


def _url(platform: Platform) -> str:
    return str(json.loads((platform.admin.home / "profile.json").read_text())["url"])
