"""Unpacks published archives into the files that readers take; only known members are extracted."""

from __future__ import annotations

import gzip
import io
import re
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import pyarrow as pa
import pyarrow.parquet as pq

from fairlead.data.dataset_origins import DatasetOrigin
from fairlead.data.errors import BadData
from fairlead.data.options import MIB

_REVIEW = re.compile(r"aclImdb/(train|test)/(neg|pos)/(\d+)_(\d+)\.txt")
_REVIEWS = pa.schema([("id", pa.int32()), ("text", pa.string()), ("label", pa.int8()), ("rating", pa.int8())])
_BROKEN = (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, gzip.BadGzipFile, KeyError)


def _cifar10(origin: DatasetOrigin, folder: Path, beside: Path) -> None:
    with tarfile.open(folder / origin.downloads[0].name, "r:gz") as archive:
        for member in archive:
            name = Path(member.name).name
            if member.isfile() and name in origin.unpacked_files and (file := archive.extractfile(member)) is not None:
                with (beside / name).open("wb") as target:
                    shutil.copyfileobj(file, target, MIB)


def _bank(origin: DatasetOrigin, folder: Path, beside: Path) -> None:
    """Some mirrors publish the archive of the table inside another archive."""
    with zipfile.ZipFile(folder / origin.downloads[0].name) as outer:
        if "bank-full.csv" in outer.namelist():
            table = outer.read("bank-full.csv")
        else:
            with zipfile.ZipFile(io.BytesIO(outer.read("bank.zip"))) as inner:
                table = inner.read("bank-full.csv")
    (beside / "bank-full.csv.gz").write_bytes(gzip.compress(table, mtime=0))


def _imdb(origin: DatasetOrigin, folder: Path, beside: Path) -> None:
    found: dict[str, list[tuple[int, str, int, int]]] = {"train": [], "test": []}
    with tarfile.open(folder / origin.downloads[0].name, "r|gz") as archive:
        for member in archive:
            named = _REVIEW.fullmatch(member.name)
            if named and member.size < MIB and (file := archive.extractfile(member)) is not None:
                label = int(named[2] == "pos")
                found[named[1]].append((int(named[3]), file.read().decode(), label, int(named[4])))
    for part, rows in found.items():
        rows.sort(key=lambda row: (row[2], row[0]))
        columns = list(zip(*rows, strict=True)) or [(), (), (), ()]
        arrays = [pa.array(values, f.type) for values, f in zip(columns, _REVIEWS, strict=True)]
        pq.write_table(pa.table(arrays, schema=_REVIEWS), beside / f"imdb_{part}.parquet", compression="zstd")


def _keep_as_published(origin: DatasetOrigin, folder: Path) -> None:
    """Nothing to unpack: the data set is read as published."""


def _via_temporary_folder(unpack: Callable[[DatasetOrigin, Path, Path], None]) -> Callable[[DatasetOrigin, Path], None]:
    """Unpack into a temporary folder and move the files, so that an interrupted run leaves no partial file."""

    def run(origin: DatasetOrigin, folder: Path) -> None:
        if all((folder / name).is_file() for name in origin.unpacked_files):
            return
        try:
            with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=folder) as beside:
                unpack(origin, folder, Path(beside))
                for made in sorted(Path(beside).iterdir()):
                    made.replace(folder / made.name)
        except _BROKEN as error:
            place = folder / origin.downloads[0].name
            fix = f"remove it and get it again: fairlead data get {origin.name}"
            raise BadData(place, f"cannot be unpacked: {error}", fix=fix) from error

    return run


UNPACK: Mapping[str, Callable[[DatasetOrigin, Path], None]] = MappingProxyType(
    {
        "cifar10": _via_temporary_folder(_cifar10),
        "bank": _via_temporary_folder(_bank),
        "imdb": _via_temporary_folder(_imdb),
        "kdd99": _keep_as_published,
    }
)
