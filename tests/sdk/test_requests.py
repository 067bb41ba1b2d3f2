"""Promises about handing over: spec, mapping, file, function and command alike become one checked request."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.errors import InvalidSpec
from fairlead.sdk.requests import command_name, prepare
from fairlead.specs import JobSpec


def test_a_yaml_file_brings_its_own_folder(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("name: a\nrun: train.py:training\nworkers: 1:4\nparams: {lr: 1e-3}\n")
    request = prepare(tmp_path / "job.yaml", None, {})
    assert request.folder == tmp_path
    assert (request.spec.workers.min, request.spec.workers.max) == (1, 4)
    assert request.body("sha256:" + "0" * 64)["params"] == {"lr": 0.001}
    assert prepare(str(tmp_path / "job.yaml"), tmp_path / "x", {}).folder == tmp_path / "x"


def test_an_error_in_a_file_names_the_file_and_the_field(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("name: a\nrun: train.py:training\nworkers: {max: many}\n")
    with pytest.raises(InvalidSpec) as caught:
        prepare(tmp_path / "job.yaml", None, {})
    assert str(caught.value).startswith("job.yaml: workers.max: 'many'")


@pytest.mark.parametrize("text", ["", "- a\n", "hello\n", "3\n"])
def test_a_file_that_holds_no_job_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "job.yaml").write_text(text)
    with pytest.raises(InvalidSpec, match=r"is empty|not a mapping of fields"):
        prepare(tmp_path / "job.yaml", None, {"name": "x"})


def test_a_function_in_a_file_that_does_not_go_along_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def training(): ...\n")
    (tmp_path / "job.yaml").write_text("name: a\nrun: tran.py:training\n")
    with pytest.raises(InvalidSpec, match=r"job.yaml: run: file tran.py is not in"):
        prepare(tmp_path / "job.yaml", None, {}).pack()
    assert "train.py" in prepare("./train.py:training", tmp_path, {"name": "a"}).pack().files
    prepare("package.module:training", tmp_path, {}).pack()  # may be installed where it runs


def test_what_cannot_run_at_all_is_refused_in_words() -> None:
    with pytest.raises(InvalidSpec, match="42 cannot be run"):
        prepare(42, None, {})  # type: ignore[arg-type]


def test_fields_given_beside_win_and_none_is_not_given(tmp_path: Path) -> None:
    spec = JobSpec(name="a", run="train.py:training", priority=3)
    request = prepare(spec, tmp_path, {"name": "b", "tenant": None, "workers": "2:3"})
    assert (request.spec.name, request.spec.priority, request.spec.workers.max) == ("b", 3, 3)
    assert prepare({"name": "a", "command": ["true"]}, tmp_path, {}).spec.command == ["true"]


def test_a_spec_survives_the_way_to_the_api_unchanged(tmp_path: Path) -> None:
    written = {
        "name": "a", "run": "train.py:training", "sla": {"deadline": "30m"}, "env": {"A": "b"}, "retries": 2,
        "resources": {"cpu": 0.5, "memory": "1GB", "device": "cpu"}, "labels": {"k": "v"}, "silence_timeout": "90s",
    }  # fmt: skip
    request = prepare(written, tmp_path, {})
    assert JobSpec.model_validate(request.body(None)) == request.spec
    gold = prepare({"name": "a", "command": ["true"], "sla": {"class": "gold"}}, tmp_path, {})
    assert gold.body(None)["sla"] == {"class": "gold"}


def test_the_short_forms_make_a_name(tmp_path: Path) -> None:
    assert prepare("sub/my_train.py:training", tmp_path, {}).spec.name == "my-train"
    assert prepare("package.models.small:training", tmp_path, {}).spec.name == "small"
    assert prepare(["python", "-u", "bench.py", "--fast"], tmp_path, {}).spec.name == "bench"


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["hostname"], "hostname"), (["/usr/bin/env"], "env"), (["python3", "a/b_c.py"], "b-c"),
        (["python", "-c", "print()"], "python"), (["python"], "python"), (["torchrun", "t.py"], "t"),
    ],
)  # fmt: skip
def test_a_command_is_called_after_what_it_is_about(command: list[str], name: str) -> None:
    assert command_name(command) == name


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [0.5, -float("inf")]])
def test_params_that_are_no_finite_numbers_are_refused_by_name(tmp_path: Path, value: object) -> None:
    with pytest.raises(InvalidSpec, match="is not a finite number") as caught:
        prepare({"name": "a", "run": "t.py:f", "params": {"x": value}}, tmp_path, {})
    assert caught.value.field is not None and caught.value.field.startswith("params.x")


def test_params_that_no_api_could_carry_are_refused_here(tmp_path: Path) -> None:
    request = prepare({"name": "a", "run": "t.py:f", "params": {"x": object()}}, tmp_path, {})
    with pytest.raises(InvalidSpec) as caught:
        request.body(None)
    assert caught.value.field == "params"
