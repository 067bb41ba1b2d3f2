"""Downloads result files into a folder: never outside it, never over existing files, each file completely or not."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from pydantic import Field

from fairlead.errors import Conflict, Forbidden, InvalidSpec, NotFound, Refused
from fairlead.terminal import safe_file_name
from fairlead.views.jobs import ResultView

Pieces = Callable[[str], Iterator[bytes]]
"""Fetches the bytes of an artifact by name."""


class Downloaded(ResultView):
    """A result, with the files that were skipped or renamed by the download."""

    left_out: dict[str, str] = Field(default_factory=dict)  # files that could not be downloaded, and why
    renamed: dict[str, str] = Field(default_factory=dict)  # files with unsafe names: original name -> name here


def download(result: ResultView, folder: Path, fetch: Pieces, *, force: bool = False) -> Downloaded:
    """Download the files of a result into the folder. Checks all names before the first download."""
    places = _places(result.artifacts, folder)
    _refuse_existing(places.values(), folder, force=force)
    left_out: dict[str, str] = {}
    for name, target in places.items():
        try:
            _write(target, fetch(name))
        except (NotFound, Refused, Forbidden, InvalidSpec) as error:  # of this file only, such as a hard link
            left_out[name] = error.message
        except OSError as error:
            raise _unwritable(target, error) from None
    here = {name: target.relative_to(folder).as_posix() for name, target in places.items()}
    renamed = {name: now for name, now in here.items() if name != now}
    return Downloaded(**result.model_dump(), left_out=left_out, renamed=renamed)


def _places(names: Iterable[str], folder: Path) -> dict[str, Path]:
    """The target of each file. One name that would leave the folder refuses the whole download."""
    if folder.exists() and not folder.is_dir():
        raise InvalidSpec(f"{folder} is a file", field="download", value=str(folder), fix="name a folder")
    places: dict[str, Path] = {}
    for name in names:
        parts = name.split("/")
        if "\0" in name or any(part in ("", ".", "..") for part in parts):
            raise InvalidSpec(f"the artifact {name!r} would leave the folder", field="download", value=name,
                              fix="report this to the platform's admin")  # fmt: skip
        target = folder.joinpath(*map(safe_file_name, parts))
        if not target.parent.resolve().is_relative_to(folder.resolve()):
            raise InvalidSpec(f"the artifact {name!r} would leave the folder by a link in it", field="download",
                              value=name, fix="name another folder")  # fmt: skip
        places[name] = target
    taken = set(places.values())
    if len(taken) < len(places) or any(parent in taken for target in taken for parent in target.parents):
        raise InvalidSpec("two artifacts would have the same path", field="download", fix="download them one by one")
    return places


def _refuse_existing(targets: Iterable[Path], folder: Path, *, force: bool) -> None:
    existing = [target for target in targets if os.path.lexists(target) and (not force or target.is_dir())]
    existing += [parent for target in targets for parent in target.parents
              if parent.is_relative_to(folder) and parent.is_file()]  # fmt: skip
    if not existing:
        return
    more = f", and {len(existing) - 1} more" if len(existing) > 1 else ""
    fix = "name another folder" if force else "name another folder, or overwrite with --force (force=True)"
    raise Conflict(f"{existing[0]} already exists{more}; nothing was written", field="download", value=str(existing[0]),
                   fix=fix)  # fmt: skip


def _write(target: Path, pieces: Iterator[bytes]) -> None:
    """Write a temporary file and rename it, so that the target is complete or absent."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{secrets.token_hex(8)}.part")
    try:
        with partial.open("xb") as file:
            for piece in pieces:
                file.write(piece)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _unwritable(target: Path, error: OSError) -> InvalidSpec:
    problem = f"cannot write {target}: {error.strerror or error}"
    return InvalidSpec(problem, field="download", value=str(target), fix="name another folder")
