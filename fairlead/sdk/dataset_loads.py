"""Builds the job that loads a file, folder or database as a data set."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairlead.errors import InvalidSpec, NotFound, TooLarge
from fairlead.sdk.requests import Request
from fairlead.sdk.yaml_files import read_yaml
from fairlead.spec_errors import NAME_PATTERN
from fairlead.specs import parse_job
from fairlead.units import shown_size

RUN = "fairlead.training.dataset_ingest:load"
MAX_UPLOAD_BYTES = 200_000_000  # larger data belongs in a folder granted to the tenant
_URL = re.compile(r"^[a-z][a-z0-9+.-]*:(//|/|$)|^duckdb:")


def loading_job(
    source: str | Path, name: str, *, folders: Sequence[str] = (), recipe: Any = None, tenant: str | None = None,
    data: Sequence[str] = (), memory: str | float | None = None, **params: Any,
) -> Request:  # fmt: skip
    """The job that loads the source under this name. ``folders``: the folders that the tenant's sandbox can read."""
    if not re.match(NAME_PATTERN, name):
        raise InvalidSpec(f"{name!r} is not a valid name of a data set", field="name", value=name,
                          fix="use at most 40 lower-case letters, digits and hyphens")  # fmt: skip
    place, folder, extra = _packed(source, folders)
    given = {"source": place, "name": name, "recipe": _recipe(recipe), **params}
    if not _is_url(source):
        given["local"] = str(Path(source).expanduser().absolute())
    written = {
        "name": f"load-{name}"[:40].rstrip("-"), "run": RUN, "workload": "batch", "labels": {"data": name},
        "params": {key: value for key, value in given.items() if value is not None}, "data": list(data),
        **({"tenant": tenant} if tenant is not None else {}),
        **({"resources": {"memory": memory}} if memory is not None else {}),
    }  # fmt: skip
    return Request(parse_job(written), folder, extra, function=True)


def _is_url(source: str | Path) -> bool:
    return isinstance(source, str) and _URL.match(source) is not None


def _packed(source: str | Path, folders: Sequence[str]) -> tuple[str, Path | None, dict[str, bytes]]:
    """The source's path in the sandbox, and the folder or files to upload for it."""
    if _is_url(source):
        if re.match(r"^https?:", str(source)):
            raise InvalidSpec(f"{source} is a web address, which jobs cannot read", field="source", value=str(source),
                              fix="download it, then load the file")  # fmt: skip
        return str(source), None, {}
    path = Path(source).expanduser().absolute()
    if any(Path(folder) in (path, *path.parents) for folder in folders):
        return str(path), None, {}
    if any(mark in path.name for mark in "*?["):
        raise InvalidSpec(f"{source} is a pattern outside the folders that the tenant may read", field="source",
                          value=str(source), fix="name the folder, or ask an admin to grant it")  # fmt: skip
    if path.is_dir():
        _check_size(path, sum(each.stat().st_size for each in path.rglob("*") if each.is_file()))
        return ".", path, {}
    if not path.is_file():
        raise NotFound(f"there is no file {source}", field="source", value=str(source), fix="check the path")
    _check_size(path, path.stat().st_size)
    return path.name, None, {path.name: path.read_bytes()}


def _check_size(path: Path, size: int) -> None:
    if size > MAX_UPLOAD_BYTES:
        raise TooLarge(f"{path} has {shown_size(size)}, more than can be uploaded with a job", field="source",
                       value=str(path), fix=f"ask an admin to grant its folder: fairlead tenant update "
                       f"TENANT --grant {path if path.is_dir() else path.parent}")  # fmt: skip


def _recipe(recipe: Any) -> Any:
    """The recipe as plain values, from a YAML file, an object with ``to_dict``, or a mapping."""
    if isinstance(recipe, Path) or (isinstance(recipe, str) and recipe.endswith((".yaml", ".yml"))):
        return read_yaml(Path(recipe).expanduser())
    if hasattr(recipe, "to_dict"):
        return recipe.to_dict()
    if recipe is not None and not isinstance(recipe, Mapping | list):
        raise InvalidSpec(f"{type(recipe).__name__} is not a recipe", field="recipe",
                          fix="pass a YAML file, a mapping or a fairlead.data.Recipe")  # fmt: skip
    return recipe
