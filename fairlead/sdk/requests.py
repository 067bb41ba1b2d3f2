"""Turns a spec, mapping, YAML file, function or command into a checked spec and its bundle."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic_core import PydanticSerializationError

from fairlead.errors import InvalidSpec
from fairlead.sdk import bundle, function_lookup, functions, mentioned_datasets
from fairlead.sdk.ignore_files import IGNORE_FILE
from fairlead.sdk.yaml_files import read_yaml
from fairlead.specs import JobSpec, parse_job

What = JobSpec | Mapping[str, Any] | str | Path | Sequence[str] | Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Request:
    """A job ready to be packed and sent; ``source`` is the file that defines it."""

    spec: JobSpec
    folder: Path | None
    extra: Mapping[str, bytes]
    source: str | None = None
    function: bool = False  # given as a function object, so it exists

    def pack(self) -> bundle.Bundle:
        """Pack the folder and check, without running code, that it contains the function to run."""
        packed = bundle.pack(self.folder, self.extra)
        field = f"{self.source}: run" if self.source else "run"
        place = (self.spec.run or "").rpartition(":")[0]
        if place.endswith(".py") and posixpath.normpath(place) not in packed.files:
            raise InvalidSpec(
                f"file {place} is not in {self.folder or 'the bundle'}", field=field, value=self.spec.run,
                fix=f"correct the path, choose another folder (--folder), or see {IGNORE_FILE}",
            )  # fmt: skip
        if self.spec.run and self.folder is not None and not self.function:
            function_lookup.check(self.spec.run, self.folder, packed.files, field=field, newest=self.spec.venv is None)
        return packed

    def body(self, code: str | None) -> dict[str, Any]:
        """The spec as JSON values for the API."""
        try:
            json.dumps(self.spec.params, allow_nan=False, default=str)  # refuses NaN, which would become null
            return self.spec.model_copy(update={"code": code}).model_dump(mode="json", by_alias=True, exclude_none=True)
        except (PydanticSerializationError, ValueError, TypeError) as error:
            raise InvalidSpec(
                f"cannot be sent: {error}", field="params", fix="use numbers, texts, lists and mappings"
            ) from None


def prepare(what: What, folder: str | Path | None, fields: Mapping[str, Any]) -> Request:
    """The request for ``what``; keyword fields override written ones."""
    chosen = Path(folder).expanduser() if folder is not None else None
    given = {name.rstrip("_"): value for name, value in fields.items() if value is not None}
    if isinstance(what, JobSpec):
        written = what.model_dump(mode="python", by_alias=True, exclude_unset=True)
        return _from_fields({**written, **given}, chosen or Path.cwd())
    if isinstance(what, Mapping):
        return _from_fields({**what, **given}, chosen or Path.cwd())
    if isinstance(what, Path) or (isinstance(what, str) and what.endswith((".yaml", ".yml"))):
        path = Path(what).expanduser()
        data = read_yaml(path)
        if not isinstance(data, Mapping):
            held = "is empty" if data is None else f"is a {type(data).__name__}, not a mapping of fields"
            raise InvalidSpec(held, field=path.name, fix="write fields, such as name: digits")
        return _from_fields({**data, **given}, chosen or path.absolute().parent, path.name)
    if isinstance(what, str):
        place = what.rpartition(":")[0]
        name = functions.job_name(Path(place).stem if place.endswith(".py") else place.rpartition(".")[2])
        return _from_fields({"name": name, "run": what, **given}, chosen or Path.cwd())
    if callable(what):
        return _from_function(what, chosen, given)
    if not isinstance(what, Sequence):
        raise InvalidSpec(
            f"{what!r} cannot be run", field="run",
            fix="pass a function, 'file.py:function', a command as a list, a mapping or a YAML file",
        )  # fmt: skip
    command = [str(word) for word in what]
    return _from_fields({"name": command_name(command), "command": command, **given}, chosen or Path.cwd())


def command_name(command: Sequence[str]) -> str:
    """A job name for a command: the script or module after the interpreter, else the program."""
    program = Path(command[0]).stem if command else "job"
    if program.startswith(("python", "bash", "sh", "torchrun")):
        words = [word for word in command[1:] if not word.startswith("-")]
        if words and "-c" not in command[1:]:
            program = Path(words[0]).stem
    return functions.job_name(program)


def _from_fields(data: Any, folder: Path, source: str | None = None) -> Request:
    return Request(_with_mentioned_datasets(parse_job(data, source=source), folder), folder, {}, source)


def _with_mentioned_datasets(spec: JobSpec, folder: Path) -> JobSpec:
    """The spec plus the data sets named in its program, near which it is placed; unchanged if it lists data sets."""
    place = (spec.run or "").rpartition(":")[0]
    if spec.data or not place.endswith(".py") or not (folder / place).is_file():
        return spec
    found = mentioned_datasets.mentioned_datasets((folder / place).read_text(encoding="utf-8", errors="replace"))
    return spec.model_copy(update={"data": found}) if found else spec


def _from_function(function: Callable[..., Any], folder: Path | None, given: Mapping[str, Any]) -> Request:
    packed = functions.pack_function(function, folder)
    name = functions.job_name(functions.function_name(function))
    return Request(parse_job({"name": name, "run": packed.run, **given}), packed.folder, packed.extra, function=True)
