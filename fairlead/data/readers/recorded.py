"""Reads known data sets: CIFAR-10 as binary or compact batches, and the column names of KDD Cup 1999 and Adult."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from PIL import Image, UnidentifiedImageError

from fairlead.data.errors import BadData, printable
from fairlead.data.options import Options
from fairlead.data.readers.arrays import array_field, fixed_size_list
from fairlead.data.source import Batches

CIFAR10_SCHEMA = pa.schema([array_field("image", pa.uint8(), (32, 32, 3)), pa.field("label", pa.uint8())])
_EACH, _RECORD = 32 * 32 * 3, 32 * 32 * 3 + 1
_STRIP = 16_000 * 32  # pixels of one strip of 500 pictures

_KDD = """duration protocol_type service flag src_bytes dst_bytes land wrong_fragment urgent hot num_failed_logins
logged_in num_compromised root_shell su_attempted num_root num_file_creations num_shells num_access_files
num_outbound_cmds is_host_login is_guest_login count srv_count serror_rate srv_serror_rate rerror_rate srv_rerror_rate
same_srv_rate diff_srv_rate srv_diff_host_rate dst_host_count dst_host_srv_count dst_host_same_srv_rate
dst_host_diff_srv_rate dst_host_same_src_port_rate dst_host_srv_diff_host_rate dst_host_serror_rate
dst_host_srv_serror_rate dst_host_rerror_rate dst_host_srv_rerror_rate label"""
_ADULT = """age workclass fnlwgt education education-num marital-status occupation relationship race sex capital-gain
capital-loss hours-per-week native-country income"""
_NAMES = {"kddcup.": tuple(_KDD.split()), "corrected": tuple(_KDD.split()), "adult.": tuple(_ADULT.split())}


def known_column_names(path: Path) -> tuple[str, ...]:
    """The columns of a well-known file without a header, by its name; empty for other files."""
    return next((names for begin, names in _NAMES.items() if path.name.startswith(begin)), ())


def is_cifar10_batch(path: Path) -> bool:
    """True for a batch of CIFAR-10, as published (.bin) or compact (.zip)."""
    if path.suffix == ".bin":
        return path.stat().st_size % _RECORD == 0 and path.stat().st_size > 0
    if path.suffix != ".zip":
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return "labels.bin" in archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError):
        return False


def batches(path: Path, options: Options) -> Batches:
    """Images as rows of 32 x 32 x 3 bytes with labels, in the original order."""
    try:
        yield from _binary(path, options) if path.suffix == ".bin" else _packed(path, options)
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, KeyError, ValueError, SyntaxError,
            UnidentifiedImageError, NotImplementedError, Image.DecompressionBombError) as error:  # fmt: skip
        if isinstance(error, FileNotFoundError | PermissionError):
            raise
        what = f"is not a complete batch of CIFAR-10: {printable(str(error))}"
        raise BadData(path, what, fix="get it again: fairlead data get cifar10") from error


def _batch(pixels: np.ndarray, labels: np.ndarray) -> pa.RecordBatch:
    columns = [fixed_size_list(pixels, CIFAR10_SCHEMA.field("image").type), pa.array(labels, pa.uint8())]
    return pa.RecordBatch.from_arrays(columns, schema=CIFAR10_SCHEMA)


def _binary(path: Path, options: Options) -> Iterator[pa.RecordBatch]:
    """Read the published form, and reorder colour planes so that a pixel's three bytes lie together."""
    records = np.memmap(path, np.uint8, "r").reshape(-1, _RECORD)
    step = max(1, min(options.batch_rows, options.memory_bytes // 8 // _RECORD))
    for begin in range(0, len(records), step):
        part = np.asarray(records[begin : begin + step])
        pixels = part[:, 1:].reshape(-1, 3, 1024).transpose(0, 2, 1).reshape(-1, _EACH)
        yield _batch(pixels, part[:, 0].copy())


def _packed(path: Path, options: Options) -> Iterator[pa.RecordBatch]:
    with zipfile.ZipFile(path) as archive:
        if archive.getinfo("labels.bin").file_size > 1 << 20:
            raise ValueError("too many labels")
        labels = np.frombuffer(archive.read("labels.bin"), np.uint8)
        done = 0
        for name in sorted(name for name in archive.namelist() if name.endswith(".webp")):
            if archive.getinfo(name).file_size > options.row_bytes:
                raise ValueError(f"{name} is too large")
            with Image.open(io.BytesIO(archive.read(name))) as strip:
                if strip.width != 32 or strip.width * strip.height > _STRIP:
                    raise ValueError(f"{name} is not a strip of images")
                pixels = np.asarray(strip.convert("RGB"), np.uint8).reshape(-1, _EACH)
            part = labels[done : done + len(pixels)]
            if len(part) != len(pixels):
                raise ValueError(f"{len(labels)} labels are fewer than there are pictures")
            yield _batch(pixels, part)
            done += len(pixels)
        if done != len(labels):
            raise ValueError(f"{done} pictures have {len(labels)} labels")
