"""Tab: verbs, options and names, in real shells, quickly, and silent whatever happens."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fairlead.cli.commands.up import LEVELS
from fairlead.cli.main import app
from fairlead.cli.shell_completion import ASK, FILES, SCRIPTS, candidates

from .conftest import PATIENCE_S, Platform, Terminal


def words(*before: str) -> list[str]:
    """The candidates for the last word."""
    return [word for word, _ in candidates(app, list(before[:-1]), before[-1])]


def test_verbs_and_their_groups_are_completed() -> None:
    assert {"queue", "nodes", "tenant", "doctor", "init"} <= set(words(""))
    assert words("que") == ["queue"]
    assert words("tenant", "") == ["create", "list", "show", "update"]
    assert words("token", "re") == ["revoke"]
    assert words("nonsense", "") == []


def test_options_are_completed_once_and_hidden_ones_never() -> None:
    assert words("queue", "--l") == ["--limit"]
    assert "--limit" not in words("queue", "--limit", "3", "--")
    assert "--label" in words("run", "--label", "a=b", "--")  # may be repeated
    assert "--ready-fd" not in words("up", "--")


def test_values_that_are_known_are_completed() -> None:
    assert words("token", "create", "--role", "m") == ["member"]
    assert words("usage", "--by", "") == ["tenant", "user", "label", "job", "node", "device"]
    assert words("completion", "") == list(SCRIPTS)
    assert words("up", "--isolation", "") == list(LEVELS)
    assert words("submit", "") == words("run", "--folder", "") == words("init", "") == [FILES]
    assert words("events", "--limit", "") == []  # any number will do


def test_names_come_from_the_running_platform(platform: Platform) -> None:
    job = platform.vision("run", "--name", "tabbed", "--json", "--", "true").data["id"]

    def lines(*given: str) -> list[str]:
        return platform.admin(ASK, *given).out.splitlines()

    assert [line.partition("\t")[0] for line in lines("why", "tabb")] == [job, "tabbed"]
    assert any(line.startswith("vision\tweight") for line in lines("tenant", "show", ""))
    assert any(line.startswith("vision\t") for line in lines("queue", "--tenant", "vi"))
    assert lines("nodes", "drain", "node-0")[0].startswith("node-0\t")
    assert lines("why", job, "") == []  # takes one job only
    platform.admin.until(lambda answer: answer["job"]["state"] == "succeeded", "why", job)
    assert job not in "\n".join(lines("cancel", ""))


def test_it_is_silent_where_there_is_no_platform(tmp_path: Path) -> None:
    done = Terminal(tmp_path)(ASK, "why", "")
    assert (done.out, done.err) == ("", "")
    dead = Terminal(tmp_path, environment={"FAIRLEAD_URL": "http://127.0.0.1:1", "FAIRLEAD_TOKEN": "fl_a_b"})
    assert (dead(ASK, "logs", "").out, dead(ASK).err) == ("", "")


def test_the_script_comes_as_json_too(tmp_path: Path) -> None:
    assert Terminal(tmp_path)("completion", "fish", "--json").data == {"shell": "fish", "script": SCRIPTS["fish"]}


def test_a_shell_that_is_not_known_is_refused(tmp_path: Path) -> None:
    refused = Terminal(tmp_path)("completion", "tcsh", code=2)
    assert "bash, zsh, fish" in refused.err


@pytest.mark.parametrize("shell", sorted(SCRIPTS))
def test_the_script_is_one_that_its_shell_can_read(shell: str, tmp_path: Path) -> None:
    program = shutil.which(shell)
    if program is None:
        assert ASK in SCRIPTS[shell]
        return
    script = tmp_path / "script"
    script.write_text(SCRIPTS[shell])
    assert subprocess.run([program, "-n", str(script)], capture_output=True, timeout=30).returncode == 0


INTERACTIVE = {
    "bash": (["--norc", "--noprofile", "-i"], 'eval "$(fairlead completion bash)"; PS1="rea""dy> "\n'),
    "zsh": (
        ["-f", "-i"],
        'autoload -Uz compinit; compinit -u -D; eval "$(fairlead completion zsh)"; PS1="rea""dy> "\n',
    ),
}  # the prompt is written so that it shows only when all was read


def shell_environment(platform: Platform, folder: Path) -> dict[str, str]:
    command = folder / "fairlead"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m fairlead.cli.main "$@"\n')
    command.chmod(0o755)
    own = {"PATH": f"{folder}:{os.environ['PATH']}", "TERM": "dumb", "HOME": str(folder)}
    return platform.admin.variables() | own


@pytest.mark.parametrize("shell", sorted(INTERACTIVE))
def test_tab_completes_in_a_real_shell(platform: Platform, tmp_path: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    options, begin = INTERACTIVE[shell]
    environment = shell_environment(platform, tmp_path)
    pid, master = pty.fork()
    if pid == 0:
        os.execvpe(shell, [shell, *options], environment)
    try:
        os.write(master, begin.encode())
        _read(master, "ready> ")
        os.write(master, b"fairlead ten\t")
        assert "tenant" in _read(master, "fairlead tenant")
        os.write(master, b" sh\tvis\t")
        assert "show" in _read(master, "vision")
        os.write(master, b"\n")
        assert "device hours" in _read(master, "retention")
    finally:
        os.close(master)
        os.kill(pid, 9)
        os.waitpid(pid, 0)


@pytest.mark.skipif(shutil.which("fish") is None, reason="needs fish")
def test_fish_gets_words_with_what_they_are_and_files_where_files_go(platform: Platform, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    asks = [f'complete -C "fairlead {begun}"' for begun in ("tenant sho", "tenant show vis", f"submit {tmp_path}/tra")]
    done = subprocess.run(
        ["fish", "--no-config", "-c", "; ".join(["fairlead completion fish | source", *asks])], capture_output=True,
        text=True, timeout=PATIENCE_S, env=shell_environment(platform, tmp_path),
    )  # fmt: skip
    about, tenant, file = done.stdout.splitlines()
    assert about == "show\tShow one tenant: shares, limits, budget, policy and present use"
    assert tenant.startswith("vision\tweight") and file.startswith(f"{tmp_path}/train.py")


def _read(master: int, until: str) -> str:
    """What the terminal shows, once that is in it."""
    seen, end_s = "", time.monotonic() + PATIENCE_S
    while until not in seen:
        assert time.monotonic() < end_s and select.select([master], [], [], PATIENCE_S)[0], seen
        seen += os.read(master, 65536).decode(errors="replace").replace("\a", "")  # it rings where there is a choice
    return seen
