"""The verb secret: a value goes in by file or standard input, never by the command line, and never comes out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.cli.conftest import PATIENCE_S, Platform, Terminal

VALUE = "hunter2-hunter2"


def piped(terminal: Terminal, text: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fairlead.cli.main", *words], input=text, env=terminal.variables(), text=True,
        capture_output=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip


def test_a_secret_is_set_used_listed_and_removed(platform: Platform, tmp_path: Path) -> None:
    done = piped(platform.vision, f"{VALUE}\n", "secret", "set", "API_KEY")
    assert done.returncode == 0 and VALUE not in done.stdout + done.stderr
    listed = platform.vision("secret", "list", "--json").data["secrets"]
    assert [secret["name"] for secret in listed] == ["API_KEY"]
    assert "API_KEY" in platform.vision("secret", "list").out
    (tmp_path / "job.yaml").write_text(
        "name: uses\ncommand: [sh, -c, 'echo \"<$API_KEY> ${#API_KEY}\"']\nsecrets: [API_KEY]\n"
    )
    platform.vision("submit", "job.yaml", "--watch", cwd=tmp_path)
    assert f"<***API_KEY***> {len(VALUE)}" in platform.vision("logs", "uses").out
    assert platform.text("secret", "list", "--json").data["secrets"] == []
    platform.vision("secret", "remove", "API_KEY")
    platform.vision("secret", "remove", "API_KEY", code=3)
    refused = platform.vision("submit", "job.yaml", cwd=tmp_path, code=2)
    assert "secrets: API_KEY is not a secret of vision" in refused.err and "fairlead secret set API_KEY" in refused.err


def test_a_value_comes_from_a_file_and_not_from_the_command_line(platform: Platform, tmp_path: Path) -> None:
    key = "-----BEGIN-----\nabcdefgh\n-----END-----\n"
    (tmp_path / "key.pem").write_text(key)
    platform.vision("secret", "set", "PEM", "--from-file", str(tmp_path / "key.pem"))
    (tmp_path / "job.yaml").write_text("name: pem\ncommand: [sh, -c, 'echo \"${#PEM}\"']\nsecrets: [PEM]\n")
    platform.vision("submit", "job.yaml", "--watch", cwd=tmp_path)
    assert str(len(key)) in platform.vision("logs", "pem").out, "a text of several lines is kept whole"
    platform.vision("secret", "set", "PEM", VALUE, code=2)
    assert "cannot be read" in platform.vision("secret", "set", "PEM", "--from-file", "nowhere", code=2).err
    platform.vision("secret", "remove", "PEM")


def test_a_value_too_short_to_be_scrubbed_is_refused_with_the_reason(platform: Platform) -> None:
    done = piped(platform.vision, "abc\n", "secret", "set", "SHORT")
    assert done.returncode == 2
    assert "value: is shorter than 4 characters: too short to be redacted from logs" in done.stderr
