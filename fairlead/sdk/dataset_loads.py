"""From a file, folder or database URL to the job that loads it: what goes along, and what the sandbox sees anyway."""

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
MOST_PACKED = 200_000_000  # bytes that go along; more lies better in a folder that the tenant may read
_URL = re.compile(r"^[a-z][a-z0-9+.-]*:(//|/|$)|^duckdb:")


def loading(
    source: str | Path, name: str, *, folders: Sequence[str] = (), recipe: Any = None, tenant: str | None = None,
    data: Sequence[str] = (), memory: str | float | None = None, **params: Any,
) -> Request:  # fmt: skip
    """The job that loads the source under this name. ``folders`` are those that the tenant's sandbox sees."""
    if not re.match(NAME_PATTERN, name):
        raise InvalidSpec(f"{name!r} is no name for a data set", field="name", value=name,
                          fix="use lower-case letters, digits and -, at most 40")  # fmt: skip
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
    """How the source is called in the sandbox, and what has to go along for that."""
    if _is_url(source):
        if re.match(r"^https?:", str(source)):
            raise InvalidSpec(f"{source} is a web address, which jobs do not read", field="source", value=str(source),
                              fix="fetch it first, and load the file")  # fmt: skip
        return str(source), None, {}
    path = Path(source).expanduser().absolute()
    if any(Path(folder) in (path, *path.parents) for folder in folders):
        return str(path), None, {}
    if any(mark in path.name for mark in "*?["):
        raise InvalidSpec(f"{source} is a pattern outside of the folders that the tenant may read", field="source",
                          value=str(source), fix="name the folder, or let an admin grant it")  # fmt: skip
    if path.is_dir():
        _check(path, sum(each.stat().st_size for each in path.rglob("*") if each.is_file()))
        return ".", path, {}
    if not path.is_file():
        raise NotFound(f"there is no file {source}", field="source", value=str(source), fix="check the path")
    _check(path, path.stat().st_size)
    return path.name, None, {path.name: path.read_bytes()}


def _check(path: Path, size: int) -> None:
    if size > MOST_PACKED:
        raise TooLarge(f"{path} has {shown_size(size)}, more than goes along with a job", field="source",
                       value=str(path), fix=f"let an admin open its folder to the tenant: fairlead tenant update "
                       f"TENANT --grant {path if path.is_dir() else path.parent}")  # fmt: skip


def _recipe(recipe: Any) -> Any:
    """A recipe as plain values: from a YAML file, from an object that can say it, or as it is."""
    if isinstance(recipe, Path) or (isinstance(recipe, str) and recipe.endswith((".yaml", ".yml"))):
        return read_yaml(Path(recipe).expanduser())
    if hasattr(recipe, "to_dict"):
        return recipe.to_dict()
    if recipe is not None and not isinstance(recipe, Mapping | list):
        raise InvalidSpec(f"{type(recipe).__name__} is no recipe", field="recipe",
                          fix="pass a YAML file, a mapping or a fairlead.data.Recipe")  # fmt: skip
    return recipe
