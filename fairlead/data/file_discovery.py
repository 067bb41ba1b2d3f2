"""Finds the files that a path, a pattern or a folder names, and their format."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairlead.data.errors import BadData
from fairlead.data.readers.images import SUFFIXES as PICTURES
from fairlead.data.readers.recorded import is_cifar10_batch
from fairlead.data.readers.streams import split_archive_path
from fairlead.errors import InvalidSpec, NotFound

FORMATS = ("csv", "json", "parquet", "text", "texts", "images", "arrays", "cifar10")
_SUFFIXES = {
    ".csv": "csv", ".tsv": "csv", ".data": "csv", ".tab": "csv",
    ".jsonl": "json", ".ndjson": "json", ".json": "json",
    ".parquet": "parquet", ".pq": "parquet", ".txt": "text", ".text": "text", ".log": "text",
    ".npy": "arrays", ".npz": "arrays", ".safetensors": "arrays",
    ".duckdb": "database", ".sqlite": "database", ".db": "database",
}  # fmt: skip
_COMPRESSED = (".gz", ".gzip", ".bz2", ".zst", ".zstd", ".zip")


@dataclass(frozen=True, slots=True)
class FoundFiles:
    """Files of one format; messages use `name` for all of them together."""

    name: str
    format: str
    files: tuple[Path, ...]


def find_files(source: Any, format: str = "auto") -> FoundFiles:
    """The files of a source, in order. Reads only what tells the format."""
    if format != "auto" and format not in FORMATS:
        raise InvalidSpec(f"{format!r} is not a known format", field="format", fix=f"use auto, {', '.join(FORMATS)}")
    if isinstance(source, str | Path):
        return _from_path(Path(source).expanduser(), format)
    if not isinstance(source, Iterable):
        kind = type(source).__name__
        raise InvalidSpec(f"a {kind} cannot be read as data", field="source", fix="give a path, a URL or arrays")
    files = tuple(Path(str(path)).expanduser() for path in source)
    if not files:
        raise InvalidSpec("no files were given", field="source", fix="name at least one")
    return FoundFiles(
        f"{files[0]} and {len(files) - 1} more", _common_format(files, format), tuple(map(_check_exists, files))
    )


def _from_path(path: Path, format: str) -> FoundFiles:
    if path.is_dir():
        return _from_folder(path, format)
    if any(letter in path.name for letter in "*?[") and not path.exists():
        files = tuple(sorted(path.parent.glob(path.name)))
        if not files:
            raise NotFound(f"no file matches {path}", field="source", fix="check the pattern and the folder")
        return FoundFiles(str(path), _common_format(files, format), files)
    kind = format_of(_check_exists(path)) if format == "auto" else format
    if kind == "database":
        driver = "duckdb" if path.suffix == ".duckdb" else "sqlite"
        return FoundFiles(f"{driver}:///{path.absolute()}", kind, (path,))
    return FoundFiles(str(path), kind, (path,))


def _check_exists(path: Path) -> Path:
    archive, member = split_archive_path(path)
    if not archive.is_file() or (member is not None and archive.suffix != ".zip"):
        raise NotFound(f"there is no file {path}", field="source", fix="check the name and the folder")
    return path


def _common_format(files: tuple[Path, ...], format: str) -> str:
    kinds = {format_of(path) for path in files} if format == "auto" else {format}
    if len(kinds) > 1:
        raise BadData(files[0], f"lies among files of other formats ({', '.join(sorted(kinds))})", fix="give format=")
    return kinds.pop()


def format_of(path: Path) -> str:
    """The format of a file, by its name and, for archives, by their content."""
    if path.suffix in (".zip", ".bin") and path.is_file() and is_cifar10_batch(path):
        return "cifar10"
    parts = [suffix.lower() for suffix in path.suffixes]
    while parts and parts[-1] in _COMPRESSED:
        parts.pop()
    return _SUFFIXES.get(parts[-1], "csv") if parts else "csv"


def _from_folder(path: Path, format: str) -> FoundFiles:
    """Files of a folder: batches of CIFAR-10, one subfolder per label, or tables."""
    batches = tuple(sorted(file for file in path.glob("data_batch_*") if file.suffix in (".zip", ".bin")))
    if format in ("auto", "cifar10") and batches and is_cifar10_batch(batches[0]):
        return FoundFiles(str(path), "cifar10", batches)
    inner = sorted(file for file in path.glob("*/*") if file.is_file() and not file.name.startswith("."))
    pictures = tuple(file for file in inner if file.suffix.lower() in PICTURES)
    if format in ("auto", "images") and pictures:
        return FoundFiles(str(path), "images", pictures)
    documents = tuple(file for file in inner if file.suffix.lower() == ".txt")
    if format in ("auto", "texts") and documents:
        return FoundFiles(str(path), "texts", documents)
    files = tuple(sorted(f for f in path.iterdir() if f.is_file() and not f.name.startswith((".", "_"))))
    if not files:
        raise BadData(path, "holds no readable files", fix="put one folder per label into it, or tables")
    if format in ("auto", "images") and all(file.suffix.lower() in PICTURES for file in files):
        raise BadData(path, "holds images without a label folder", fix="put them into one folder per label")
    return FoundFiles(str(path), _common_format(files, format), files)
