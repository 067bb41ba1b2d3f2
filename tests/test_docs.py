"""Promises of the documents: every field and verb is told of, every example parses, every link leads somewhere."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from fairlead.cli.main import app
from fairlead.control.reconcile import failpoints
from fairlead.errors import FairleadError
from fairlead.sdk.pipeline_specs import prepare
from fairlead.sdk.yaml_files import read_yaml
from fairlead.specs import (
    Budget,
    JobSpec,
    Policy,
    Sla,
    Spec,
    TenantSpec,
    WorkerResources,
    Workers,
    parse_job,
    parse_tenant,
)
from fairlead.training.definition import Training

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *ROOT.glob("docs/**/*.md")])
TEXTS = {path: path.read_text(encoding="utf-8") for path in DOCUMENTS}
KINDS = (JobSpec, TenantSpec, Policy, Budget, Workers, WorkerResources, Sla)
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> Iterator[tuple[str, str]]:
    for path, text in TEXTS.items():
        for found in _BLOCK.finditer(text):
            if found[1] == language:
                yield f"{path.relative_to(ROOT)}:{text[: found.start()].count(chr(10)) + 1}", found[2]


def table_of(kind: type[Spec]) -> dict[str, str]:
    """Field -> default, as docs/jobs.md tells it."""
    text = TEXTS[ROOT / "docs" / "jobs.md"]
    _, _, after = text.partition(f"<!-- fields of {kind.__name__} -->\n")
    rows = (line.strip("| ").split(" | ") for line in after.partition("\n\n")[0].splitlines()[2:])
    return {cells[0].strip("`"): cells[2].strip("`") for cells in rows}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_field_is_told_of_with_its_default(kind: type[Spec]) -> None:
    told = table_of(kind)
    assert list(told) == [field.alias or name for name, field in kind.model_fields.items()]
    for name, field in kind.model_fields.items():
        shown = told[field.alias or name]
        assert (shown == "required") == field.is_required(), name
        if isinstance(field.default, str | int | float):
            assert shown == str(field.default), name


@pytest.mark.parametrize(("place", "text"), list(blocks("yaml")), ids=[place for place, _ in blocks("yaml")])
def test_every_yaml_example_is_a_job_a_tenant_or_a_pipeline(place: str, text: str, tmp_path: Path) -> None:
    file = tmp_path / "example.yaml"
    file.write_text(text)
    data = read_yaml(file)  # as submit reads it
    if "stages" in data:
        assert prepare(data, tmp_path, {}, {}).spec.stages
        return
    parse = parse_tenant if data.get("kind") == "Tenant" else parse_job
    assert parse(data).name
    assert isinstance(yaml.safe_load(text), dict)


@pytest.mark.parametrize(("place", "text"), list(blocks("python")), ids=[place for place, _ in blocks("python")])
def test_every_python_example_is_python(place: str, text: str) -> None:
    ast.parse(text)


@pytest.mark.parametrize("path", sorted(ROOT.glob("examples/*/job.yaml")), ids=lambda path: path.parent.name)
def test_every_example_job_is_a_job(path: Path) -> None:
    assert parse_job(read_yaml(path)).name


def test_every_verb_is_told_of() -> None:
    import typer.main

    every = "\n".join(TEXTS.values())
    verbs = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert len(verbs) > 15
    assert not [verb for verb in verbs if not re.search(rf"fairlead {verb}\b|`{verb}`", every)]
    for group in ("nodes", "tenant", "token"):
        for verb in verbs[group].commands:
            assert f"fairlead {group} {verb}" in every, f"{group} {verb}"


def test_every_field_of_a_training_is_told_of() -> None:
    text = TEXTS[ROOT / "docs" / "training.md"]
    assert not [name for name in Training.__dataclass_fields__ if f"| `{name}` |" not in text]


def test_every_error_code_is_told_of() -> None:
    def kinds(kind: type[FairleadError]) -> Iterator[type[FairleadError]]:
        for below in kind.__subclasses__():
            yield below
            yield from kinds(below)

    text = TEXTS[ROOT / "docs" / "api.md"]
    public = [kind for kind in kinds(FairleadError) if kind.__module__ == FairleadError.__module__]
    assert not [kind.code for kind in public if f"`{kind.code}`" not in text]


def test_every_failpoint_is_told_of() -> None:
    text = TEXTS[ROOT / "docs" / "architecture.md"]
    assert not [name for name in failpoints.NAMES if f"`{name}`" not in text]


def test_every_link_leads_somewhere() -> None:
    for path, text in TEXTS.items():
        for target, anchor in re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)", text):
            found = (path.parent / target).resolve() if target else path
            assert found.exists(), f"{path.name}: {target}"
            if anchor:
                headings = re.findall(r"^#+ (.*)$", found.read_text(encoding="utf-8"), re.MULTILINE)
                assert anchor in {re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in headings}, anchor


def test_every_test_that_is_named_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", "\n".join(TEXTS.values())))
    sources = "\n".join(path.read_text(encoding="utf-8") for path in ROOT.glob("tests/**/test_*.py"))
    assert not [name for name in named if f"def {name}(" not in sources]
    files = set(re.findall(r"`(test_\w+\.py)`", "\n".join(TEXTS.values())))
    assert not [name for name in files if not list(ROOT.glob(f"tests/**/{name}"))]


def test_every_file_that_is_named_exists() -> None:
    every = "\n".join(TEXTS.values())
    named = set(re.findall(r"`((?:fairlead|tests|benchmarks|examples)/(?!v1)[\w./*-]+)`", every))
    assert not [name for name in named if not list(ROOT.glob(name.rstrip("/")))]


def test_every_python_name_with_dots_exists() -> None:
    """Such as `fairlead.grid.standalone.standalone_grid`; names of spans and files have no module of their own."""
    every = "\n".join(text for path, text in TEXTS.items() if path.name != "CHANGELOG.md")
    missing = []
    for dotted in set(re.findall(r"`(fairlead(?:\.\w+)+)[(`.]", every)):
        names, depth = dotted.split("."), 1
        while depth < len(names) and ROOT.joinpath(*names[: depth + 1], "__init__.py").exists():
            depth += 1
        if depth < len(names) and ROOT.joinpath(*names[: depth + 1]).with_suffix(".py").exists():
            depth += 1
        if depth == 1:
            continue
        found: object = importlib.import_module(".".join(names[:depth]))
        for name in names[depth:]:
            found = getattr(found, name, None)
        if found is None:
            missing.append(dotted)
    assert not missing


_PLACE = re.compile(r"`((?:fairlead|tests|benchmarks)/[\w/]+\.py):([\w.]+)`")


def definition(path: str, name: str) -> str | None:
    """The source of this class, method or function of a file; None if there is none."""
    file = ROOT / path
    if not file.exists():
        return None
    source = file.read_text(encoding="utf-8")
    node: ast.AST | None = ast.parse(source)
    for part in name.split("."):
        kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        inner = [each for each in ast.iter_child_nodes(node) if isinstance(each, kinds)]
        node = next((each for each in inner if each.name == part), None)
        if node is None:
            return None
    return ast.get_source_segment(source, node)


def test_every_function_that_is_named_with_its_file_exists() -> None:
    named = {(found[1], found[2]) for text in TEXTS.values() for found in _PLACE.finditer(text)}
    assert len(named) > 50
    assert not sorted(f"{path}:{name}" for path, name in named if definition(path, name) is None)


def test_every_arrow_between_two_functions_is_a_call() -> None:
    """``→``: the first one calls the second. A socket, a queue or a callback in between is written ``⇢``."""
    untrue, arrows = [], 0
    for text in TEXTS.values():
        found = list(_PLACE.finditer(text))
        for caller, called in pairwise(found):
            if not re.fullmatch(r"\s*(\([^()]*\))?\s*→\s*", text[caller.end() : called.start()]):
                continue
            arrows += 1
            body = (definition(caller[1], caller[2]) or "").partition("\n")[2]
            if not re.search(rf"\b{called[2].rpartition('.')[2]}\b", body):
                untrue.append(f"{caller[1]}:{caller[2]} does not call {called[2]}")
    assert not untrue
    assert arrows > 30


def test_every_benchmark_and_target_that_is_named_exists() -> None:
    every = "\n".join(text for path, text in TEXTS.items() if path.name != "CHANGELOG.md")
    modules = set(re.findall(r"python -m ((?:benchmarks|tests)(?:\.\w+)+)", every))
    places = {module: ROOT / module.replace(".", "/") for module in modules}
    assert modules
    runs = [place.with_suffix(".py").exists() or (place / "__main__.py").exists() for place in places.values()]
    assert all(runs), sorted(places)
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert not set(re.findall(r"(?:^|`)make ([a-z-]+)", every, re.MULTILINE)) - targets


_COMMAND = re.compile(r"fairlead ((?:[a-z]+ ?){1,2})([^\n`\"',;.(]*)")


def test_every_option_that_a_message_or_a_document_names_exists() -> None:
    """A fix that cannot be typed is none."""
    root, missing = get_command(app), set()
    for path in [*ROOT.glob("fairlead/**/*.py"), *ROOT.glob("docs/**/*.md"), ROOT / "README.md"]:
        for found in _COMMAND.finditer(re.sub(r"\{[^}\n]*\}", "X", path.read_text())):
            command, words = root, found[1].split()
            while words and (inner := getattr(command, "commands", {}).get(words[0])) is not None:
                command, words = inner, words[1:]
            if command is root:
                continue
            known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
            named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z](?![\w-])", found[2].split(" -- ")[0]))
            missing |= {(path.name, command.name, option) for option in named - known - {"--help"}}
    assert not missing
