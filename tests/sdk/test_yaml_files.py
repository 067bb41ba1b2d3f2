"""Promises about YAML files: what is written is what is meant, and errors name file, line and fix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fairlead.errors import InvalidSpec, NotFound
from fairlead.sdk.yaml_files import read_yaml


def read(folder: Path, text: str) -> Any:
    path = folder / "job.yaml"
    path.write_text(text)
    return read_yaml(path)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1:4", "1:4"), ("1e-3", 0.001), ("1E3", 1000.0), ("0.5", 0.5), ("-3", -3), ("on", "on"), ("no", "no"),
        ("true", True), ("False", False), ("~", None), ("", None), ("null", None), ("2026-01-01", "2026-01-01"),
        ("30m", "30m"), ("'7'", "7"), ("0x1f", 31), (".inf", float("inf")), ("+1.", 1.0), ("1.2.3", "1.2.3"),
    ],
)  # fmt: skip
def test_plain_words_mean_what_they_look_like(tmp_path: Path, text: str, value: object) -> None:
    found = read(tmp_path, f"value: {text}\n")["value"]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("name: a\nrun: [b\n", "line 3"), ("name: a\n\tb: c\n", "line 2"), ("a: b: c\n", "line 1"),
        ("name: a\nworkers: 2\nname: b\n", "line 3"), ("a: *nothing\n", "line 1"), ("a: 1\n---\nb: 2\n", "line 2"),
        ("a: !!python/object/apply:os.system ['true']\n", "line 1"),
    ],
)  # fmt: skip
def test_an_error_names_the_file_and_the_line(tmp_path: Path, text: str, line: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        read(tmp_path, text)
    assert str(caught.value).startswith(f"job.yaml: {line}: ")
    assert caught.value.fix
    assert "\n" not in str(caught.value)


def test_a_second_document_is_called_one(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match=r"job\.yaml: line 2: starts a second document") as caught:
        read(tmp_path, "name: a\n---\nname: b\n")
    assert caught.value.fix == "write one job per file"


def test_a_key_given_twice_says_where_it_stood_first(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match="name is given twice, first in line 1"):
        read(tmp_path, "name: a\nrun: b\nname: c\n")


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"a: \x00", b"[" * 5000])
def test_what_is_no_text_at_all_is_refused_without_a_trace(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "job.yaml").write_bytes(content)
    with pytest.raises(InvalidSpec, match=r"job\.yaml"):
        read_yaml(tmp_path / "job.yaml")


def test_a_file_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        read_yaml(tmp_path / "job.yaml")
    with pytest.raises(InvalidSpec):
        read_yaml(tmp_path)
