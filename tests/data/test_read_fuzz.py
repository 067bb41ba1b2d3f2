"""Promises about hostile files: cut off, with flipped bits or another encoding, a file is read or refused; no more."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fairlead.data import read
from fairlead.errors import FairleadError

CSV = b"id,name,w,when\n" + b"".join(b'%d,"n ""%d"", x",%d.5,2024-01-%02d\n' % (i, i, i, i % 28 + 1) for i in range(99))
JSON = b"".join(json.dumps({"a": i, "b": [{"c": "x"}], "t": "é"}).encode() + b"\n" for i in range(80))
TABLE = pa.table({"a": range(200), "s": [f"word {i % 7}" for i in range(200)], "f": [i / 3 for i in range(200)],
                  "l": [[i, i + 1] for i in range(200)]})  # fmt: skip


def parquet(**how: object) -> bytes:
    sink = io.BytesIO()
    pq.write_table(TABLE, sink, **how)
    return sink.getvalue()


def zipped(members: dict[str, bytes]) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return sink.getvalue()


def picture(kind: str, size: tuple[int, int] = (8, 8)) -> bytes:
    sink = io.BytesIO()
    Image.effect_noise(size, 50).convert("RGB").save(sink, kind)
    return sink.getvalue()


def arrays() -> tuple[bytes, bytes, bytes]:
    single, several = io.BytesIO(), io.BytesIO()
    numbers = np.arange(60, dtype=np.float32).reshape(20, 3)
    np.save(single, numbers)
    np.savez_compressed(several, x=numbers, y=np.arange(20))
    header = json.dumps({"x": {"dtype": "F32", "shape": [20, 3], "data_offsets": [0, 240]}}).encode()
    return single.getvalue(), several.getvalue(), len(header).to_bytes(8, "little") + header + numbers.tobytes()


NPY, NPZ, SAFE = arrays()
FILES = {
    "t.csv": CSV, "t.csv.gz": gzip.compress(CSV), "t.csv.bz2": bz2.compress(CSV), "t.csv.zst": zstandard.compress(CSV),
    "t.csv.zip": zipped({"t.csv": CSV}), "t.jsonl": JSON, "t.jsonl.gz": gzip.compress(JSON), "t.txt": CSV,
    "t.parquet": parquet(), "u.parquet": parquet(compression="zstd", use_dictionary=False, data_page_version="2.0"),
    "v.parquet": parquet(compression="gzip", write_page_checksum=True), "t.npy": NPY, "t.npz": NPZ,
    "t.safetensors": SAFE, "a/1.png": picture("PNG"), "b/1.jpg": picture("JPEG"), "a/2.webp": picture("WEBP"),
    "data_batch_1.zip": zipped({"labels.bin": bytes(4), "000.webp": picture("WEBP", (32, 128))}),
}  # fmt: skip
NAMES = st.sampled_from(sorted(FILES))


@contextmanager
def written(name: str, data: bytes) -> Iterator[Path]:
    """A file of that name in a folder of its own; what is read is the file, or the folder of a picture."""
    folder = Path(tempfile.mkdtemp())
    try:
        file = folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(data)
        yield folder if "/" in name else file
    finally:
        shutil.rmtree(folder)


def read_or_refused(name: str, data: bytes, **how: object) -> int | None:
    """Rows, or None for a refusal of one line with a fix; whatever else is raised fails the test."""
    with written(name, data) as path:
        try:
            rows = 0
            for batch in read(path, memory_bytes=8 << 20, threads=2, **how).batches():  # type: ignore[arg-type]
                batch.validate(full=True)
                rows += batch.num_rows
            return rows
        except FairleadError as refused:
            assert refused.fix and "\n" not in str(refused) and len(str(refused)) < 1_000
            return None


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_sound_file_is_read(name: str) -> None:
    assert read_or_refused(name, FILES[name])


@settings(max_examples=150, deadline=None)
@given(NAMES, st.floats(0, 1))
def test_a_file_that_is_cut_off_is_read_or_refused(name: str, share: float) -> None:
    read_or_refused(name, FILES[name][: int(len(FILES[name]) * share)])


@settings(max_examples=300, deadline=None)
@given(NAMES, st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=8))
def test_a_file_with_flipped_bits_is_read_or_refused(name: str, flips: list[tuple[float, int]]) -> None:
    data = bytearray(FILES[name])
    for place, mask in flips:
        data[int(place * len(data))] ^= mask
    read_or_refused(name, bytes(data))


@settings(max_examples=100, deadline=None)
@given(NAMES, NAMES, st.floats(0, 1), st.floats(0, 1))
def test_halves_of_two_files_are_read_or_refused(one: str, other: str, first: float, second: float) -> None:
    left, right = FILES[one], FILES[other]
    read_or_refused(one, left[: int(len(left) * first)] + right[int(len(right) * second) :])


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(["t.csv", "t.jsonl", "t.txt", "t.parquet", "t.npy", "t.safetensors", "a/1.png"]), st.binary())
def test_any_bytes_at_all_are_read_or_refused(name: str, data: bytes) -> None:
    read_or_refused(name, data)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=200), st.sampled_from(["utf-8", "utf-16", "utf-32", "latin-1", "cp1252", "shift-jis", "utf-7"]))
def test_text_in_any_encoding_is_read_or_refused(text: str, encoding: str) -> None:
    data = f"a,b\n1,{text}\n".encode(encoding, errors="ignore")
    for how in ({}, {"encoding": encoding}, {"encoding": "ascii"}):
        read_or_refused("t.csv", data, **how)
        read_or_refused("t.txt", data, **how)
