"""Promises about memory: what is far larger than the memory is read, and what unpacks for ever is refused in time."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from fairlead.data import BadData, read

MIB = 1 << 20
LIMIT_MIB = 120  # of private memory, above what Python and Arrow need before anything is read
_CHILD = """
import json, resource, sys
import psutil
from fairlead.data import reading
from fairlead.data.readers import sql as queries
from fairlead.errors import FairleadError
before = psutil.Process().memory_full_info().data
resource.setrlimit(resource.RLIMIT_DATA, (before + {limit} * 2**20, resource.RLIM_INFINITY))
how = json.loads(sys.argv[2])
rows, refused = 0, None
try:
    for batch in reading.read(sys.argv[1], memory_bytes=64 * 2**20, threads=2, **how).batches():
        rows += batch.num_rows
except FairleadError as error:
    refused = str(error)
print(json.dumps([rows, refused]))
"""


def within_limit(path: Path, **how: object) -> tuple[int, str | None]:
    """Rows and refusal of a process whose private memory the kernel bounds."""
    command = [sys.executable, "-c", _CHILD.format(limit=LIMIT_MIB), str(path), json.dumps(how)]
    # Arrow's usual allocator reserves a gigabyte of addresses at once, which the kernel would count as if it were used.
    plain = os.environ | {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "2", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=plain)
    assert done.returncode == 0, done.stderr
    rows, refused = json.loads(done.stdout)
    return rows, refused


def packed(path: Path, block: bytes, times: int, begin: bytes = b"") -> Path:
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(begin)
        for _ in range(times):
            file.write(block)
    return path


def test_a_table_many_times_larger_than_the_memory_is_read(tmp_path: Path) -> None:
    lines = b"".join(b"%d,some words,%d.25,no\n" % (i * 7919 % 100_000, i % 97) for i in range(20_000))
    times = 160 * MIB // len(lines) + 1
    path = packed(tmp_path / "t.csv.gz", lines, times, b"id,text,w,y\n")
    assert within_limit(path) == (20_000 * times, None)


def test_an_array_larger_than_the_memory_is_mapped(tmp_path: Path) -> None:
    rows = 500_000
    with (tmp_path / "x.npy").open("wb") as file:  # sparse: it takes no room on the disk
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (rows, 256)})
        file.truncate(file.tell() + rows * 1024)
    assert within_limit(tmp_path / "x.npy") == (rows, None)


def test_a_row_group_larger_than_the_memory_is_read(tmp_path: Path) -> None:
    words = pa.array([f"{i:>1000}" for i in range(20_000)])
    table = pa.table({"a": pa.concat_arrays([words] * 8), "b": range(160_000)})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=160_000, compression="zstd")
    assert within_limit(tmp_path / "t.parquet") == (160_000, None)


@pytest.mark.parametrize("name", ["t.csv.gz", "t.csv.zst", "t.csv.zip", "t.jsonl.gz"])
def test_a_decompression_bomb_is_refused_in_bounded_memory(name: str, tmp_path: Path) -> None:
    path, size = tmp_path / name, 50
    if name.endswith("zst"):
        with zstandard.ZstdCompressor().stream_writer(path.open("wb")) as file:
            for _ in range(size):
                file.write(b"1,2\n" * (MIB // 4))
    elif name.endswith("zip"):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("t.csv", "w") as inner:
            for _ in range(size):
                inner.write(b"1" * MIB)
    else:
        packed(path, b'{"a":1}\n' * (MIB // 8) if "json" in name else b"1" * MIB, size)
    _, refused = within_limit(path, unpacked_free_bytes=24 * MIB, expansion=100)
    assert refused is not None and ("bomb" in refused or "in one row" in refused)


def test_a_word_that_a_dictionary_repeats_is_weighed_before_it_is_spread_out(tmp_path: Path) -> None:
    table = pa.table({"a": pa.DictionaryArray.from_arrays(pa.array(np.zeros(20_000, np.int32)), ["x" * MIB])})
    pq.write_table(table, tmp_path / "t.parquet")  # one megabyte, twenty gigabytes when it is spread out
    source = read(tmp_path / "t.parquet", memory_bytes=64 * MIB)
    batches = source.batches()
    assert [next(batches).nbytes <= 9 * MIB for _ in range(5)] == [True] * 5


def test_an_image_of_too_many_pixels_is_refused(tmp_path: Path) -> None:
    import struct
    import zlib

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 60_000, 60_000, 8, 0, 0, 0, 0))
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.png").write_bytes(b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(MIB))))
    with pytest.raises(BadData, match=r"bomb|pixels"):
        read(tmp_path).table()


def test_an_array_whose_header_promises_more_than_there_is_is_refused(tmp_path: Path) -> None:
    sink = io.BytesIO()
    np.lib.format.write_array_header_1_0(sink, {"descr": "<f8", "fortran_order": False, "shape": (1 << 40, 8)})
    (tmp_path / "x.npy").write_bytes(sink.getvalue())
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("x.npy", sink.getvalue())
    for name in ("x.npy", "x.npz"):
        with pytest.raises(BadData, match="not a complete array file"):
            read(tmp_path / name)
