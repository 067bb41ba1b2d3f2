"""Gets a known data set from a folder or by download, complete and verified by checksum."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fairlead.data.dataset_origins import DatasetOrigin
from fairlead.data.downloading import Report, checksum, download
from fairlead.data.errors import BadData
from fairlead.data.unpacking import UNPACK
from fairlead.errors import NotFound


@dataclass(frozen=True, slots=True)
class FetchedDataset:
    """A data set on this machine: its folder and files, and the folder or URL that it came from."""

    name: str
    folder: Path
    files: tuple[Path, ...]
    source: str


def get_dataset(
    origin: DatasetOrigin, *, source: Path | None = None, to: Path | None = None, report: Report | None = None
) -> FetchedDataset:
    """Get a data set and verify its checksums. Without ``source``, FAIRLEAD_DATA is tried before the network."""
    named = os.environ.get("FAIRLEAD_DATA")
    on_progress = report or (lambda _name, _done, _total: None)
    local = _find_local(origin, source) if source is not None else _find_local(origin, Path(named)) if named else None
    if source is not None and local is None:
        fix = f"it should hold {', '.join(origin.compact_files)}, itself or below {origin.folder}/"
        raise NotFound(f"{source} does not hold {origin.name}", field="--from", value=str(source), fix=fix)
    if local is not None:
        return _from_folder(origin, local, to, on_progress)
    return _from_origin(origin, _target_folder(origin, to), on_progress)


def _target_folder(origin: DatasetOrigin, to: Path | None) -> Path:
    return (to or Path(os.environ.get("FAIRLEAD_DATA") or "data")) / origin.folder


def _find_local(origin: DatasetOrigin, folder: Path) -> Path | None:
    """The folder that holds the complete data set, compact or unpacked; None without one."""
    for place in (folder / origin.folder, folder):
        if _complete_form(origin, place) is not None:
            return place
    return None


def _complete_form(origin: DatasetOrigin, folder: Path) -> Mapping[str, str] | None:
    """The form (compact or unpacked) of which a folder holds all files. The two forms may share file names."""
    for form in (origin.compact_files, origin.unpacked_files):
        if all((folder / name).is_file() for name in form):
            return form
    return None


def _from_folder(origin: DatasetOrigin, place: Path, to: Path | None, report: Report) -> FetchedDataset:
    form = _complete_form(origin, place)
    assert form is not None
    for name in form:
        _verify(origin, place / name, report)
    if to is None or (target := to / origin.folder).resolve() == place.resolve():
        return FetchedDataset(origin.name, place, tuple(place / name for name in form), str(place))
    _make_folder(target)
    for name in form:
        partly = target / f"{name}.part"
        shutil.copyfile(place / name, partly)
        partly.replace(target / name)
    return FetchedDataset(origin.name, target, tuple(target / name for name in form), str(place))


def _make_folder(target: Path) -> None:
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadData(target, f"cannot be created: {error.strerror}", fix="name a writable folder: --to DIR") from None
    if not os.access(target, os.W_OK):
        raise BadData(target, "is not writable", fix="name a writable folder: --to DIR")


def _from_origin(origin: DatasetOrigin, target: Path, report: Report) -> FetchedDataset:
    _make_folder(target)
    for each in origin.downloads:
        download(each, target, report)
    unpack: Callable[[DatasetOrigin, Path], None] = UNPACK[origin.name]
    unpack(origin, target)
    for name in origin.unpacked_files:
        _verify(origin, target / name, report)
    return FetchedDataset(
        origin.name, target, tuple(target / name for name in origin.unpacked_files), origin.downloads[0].urls[0]
    )


def _verify(origin: DatasetOrigin, path: Path, report: Report) -> None:
    """Refuse a file unless its own checksum, or that of its content, is the published one."""
    sums = [
        sum_ for sum_ in (origin.compact_files.get(path.name), origin.unpacked_files.get(path.name)) if sum_ is not None
    ]
    whole = path.stat().st_size
    report(path.name, whole, whole)
    if not any(checksum(path, sum_) == sum_ for sum_ in sums):
        fix = f"remove it and get it again: fairlead data get {origin.name}"
        raise BadData(path, f"is not the {path.name} that was published: its checksum differs", fix=fix)
