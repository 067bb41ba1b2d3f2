"""fairlead init: what it writes runs as it is, and nothing is ever overwritten."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from fairlead.cli.commands.init import STARTER
from fairlead.sdk.bundle import pack
from fairlead.sdk.yaml_files import read_yaml
from fairlead.specs import JobSpec, parse_job

from .conftest import Platform, Terminal


def test_what_init_writes_is_submitted_and_learns(platform: Platform, tmp_path: Path) -> None:
    done = platform.vision("init", "first", cwd=tmp_path)
    assert "cd first && fairlead submit job.yaml --watch" in done.out
    watched = platform.vision("submit", "job.yaml", "--watch", cwd=tmp_path / "first")
    assert "spirals" in watched.out and "succeeded" in watched.out
    result = platform.vision("result", "spirals", "--json").data
    assert result["metrics"]["accuracy"] > 0.9


def test_nothing_is_overwritten_and_nothing_half_written(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path / "home")
    (tmp_path / ".fairleadignore").write_text("mine")
    refused = terminal("init", cwd=tmp_path, code=4)
    assert ".fairleadignore already exists" in refused.err and "fix:" in refused.err
    assert sorted(path.name for path in tmp_path.iterdir()) == [".fairleadignore"]
    assert (tmp_path / ".fairleadignore").read_text() == "mine"


def test_a_link_that_leads_nowhere_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").symlink_to(tmp_path / "elsewhere")
    Terminal(tmp_path / "home")("init", cwd=tmp_path, code=4)
    assert not (tmp_path / "elsewhere").exists()


def test_a_folder_that_cannot_be_written_is_an_error_with_a_fix(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused = Terminal(tmp_path / "home")("init", "file/below", cwd=tmp_path, code=4)
    assert "cannot write to" in refused.err


def test_json_says_what_was_written(tmp_path: Path) -> None:
    told = Terminal(tmp_path / "home")("init", "--json", cwd=tmp_path).data
    assert told == {"folder": str(tmp_path), "files": sorted(STARTER.values())}


def test_every_suggestion_in_the_file_is_a_field_that_exists(tmp_path: Path) -> None:
    """Uncommented, all lines together are still a job."""
    Terminal(tmp_path / "home")("init", cwd=tmp_path)
    text = (tmp_path / "job.yaml").read_text()
    parse_job(read_yaml(tmp_path / "job.yaml"))
    suggested = re.sub(r"^# (\w+:|  \w+:)", r"\1", text, flags=re.MULTILINE)
    written = set(yaml.safe_load(suggested))
    assert {"labels", "tenant", "priority", "retries", "sla", "env", "secrets", "resources"} <= written
    assert written <= set(JobSpec.model_fields)


def test_the_ignore_file_leaves_out_what_it_names(tmp_path: Path) -> None:
    Terminal(tmp_path / "home")("init", cwd=tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "big").write_text("x")
    (tmp_path / "run.log").write_text("x")
    assert set(pack(tmp_path).files) == {"job.yaml", "train.py", ".fairleadignore"}
