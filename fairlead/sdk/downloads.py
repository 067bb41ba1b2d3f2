"""The files of a result on their way into a folder: none beside it, none over what is there, each whole or not."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from pydantic import Field

from fairlead.errors import Conflict, Forbidden, InvalidSpec, NotFound, Refused
from fairlead.terminal import marked
from fairlead.views.jobs import ResultView

Pieces = Callable[[str], Iterator[bytes]]
"""The bytes of the artifact of this name."""


class Downloaded(ResultView):
    """A result with what became of its files here."""

    left_out: dict[str, str] = Field(default_factory=dict)  # files that the platform does not give, and why
    renamed: dict[str, str] = Field(default_factory=dict)  # files whose names no terminal should be shown: as they are


def download(result: ResultView, folder: Path, fetch: Pieces, *, force: bool = False) -> Downloaded:
    """Put the files of a result into the folder. Refuses before the first one what cannot go well."""
    places = _places(result.artifacts, folder)
    _refuse_taken(places.values(), folder, force=force)
    left_out: dict[str, str] = {}
    for name, target in places.items():
        try:
            _write(target, fetch(name))
        except (NotFound, Refused, Forbidden, InvalidSpec) as error:  # of this one: a second name of another file, say
            left_out[name] = error.message
        except OSError as error:
            raise _unwritable(target, error) from None
    here = {name: target.relative_to(folder).as_posix() for name, target in places.items()}
    renamed = {name: now for name, now in here.items() if name != now}
    return Downloaded(**result.model_dump(), left_out=left_out, renamed=renamed)


def _places(names: Iterable[str], folder: Path) -> dict[str, Path]:
    """Where each goes. A server that names one so that it would lie elsewhere is not believed in anything."""
    if folder.exists() and not folder.is_dir():
        raise InvalidSpec(f"{folder} is a file", field="download", value=str(folder), fix="name a folder")
    places: dict[str, Path] = {}
    for name in names:
        parts = name.split("/")
        if "\0" in name or any(part in ("", ".", "..") for part in parts):
            raise InvalidSpec(f"the artifact {name!r} would leave the folder", field="download", value=name,
                              fix="ask whoever runs this platform what it is")  # fmt: skip
        target = folder.joinpath(*map(marked, parts))
        if not target.parent.resolve().is_relative_to(folder.resolve()):
            raise InvalidSpec(f"the artifact {name!r} would leave the folder by a link in it", field="download",
                              value=name, fix="name another folder")  # fmt: skip
        places[name] = target
    taken = set(places.values())
    if len(taken) < len(places) or any(parent in taken for target in taken for parent in target.parents):
        raise InvalidSpec("two artifacts would have one place", field="download", fix="fetch them one by one")
    return places


def _refuse_taken(targets: Iterable[Path], folder: Path, *, force: bool) -> None:
    there = [target for target in targets if os.path.lexists(target) and (not force or target.is_dir())]
    there += [parent for target in targets for parent in target.parents
              if parent.is_relative_to(folder) and parent.is_file()]  # fmt: skip
    if not there:
        return
    more = f", and {len(there) - 1} more" if len(there) > 1 else ""
    fix = "name another folder" if force else "name another folder, or replace what is there: --force (force=True)"
    raise Conflict(f"{there[0]} is there already{more}; nothing was written", field="download", value=str(there[0]),
                   fix=fix)  # fmt: skip


def _write(target: Path, pieces: Iterator[bytes]) -> None:
    """The file, there when it is whole: written under a name of its own, that nothing else has, and moved."""
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
    said = f"cannot write {target}: {error.strerror or error}"
    return InvalidSpec(said, field="download", value=str(target), fix="name another folder")
