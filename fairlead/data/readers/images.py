"""Reads images in folders by label: Pillow decodes them in parallel into pixels of one size."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from PIL import Image, UnidentifiedImageError

from fairlead.data.errors import BadData, printable
from fairlead.data.options import Options
from fairlead.data.readers.arrays import array_field, fixed_size_list
from fairlead.data.source import Batches
from fairlead.data.thread_map import map_in_order

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif")
UNSCALED_MODES = ("I", "F")  # modes without a defined black and white
_BROKEN = (OSError, ValueError, SyntaxError, EOFError, UnidentifiedImageError, Image.DecompressionBombError,
           ZeroDivisionError, IndexError, KeyError, TypeError, OverflowError, MemoryError)  # fmt: skip


def inspect(files: Sequence[Path], options: Options) -> tuple[pa.Schema, tuple[int, int]]:
    """The schema (pixels and label) and the size: the requested one or that of the first image."""
    size = options.size
    if size is None:
        with _open(files[0], _bytes(files[0], options)) as image:
            size = (image.height, image.width)
    shape = (*size, 3)
    return pa.schema([array_field("image", pa.uint8(), shape), pa.field("label", pa.string())]), size


def batches(files: Sequence[Path], schema: pa.Schema, size: tuple[int, int], options: Options) -> Batches:
    """Batches with one row per image."""
    bytes_each = size[0] * size[1] * 3
    rows = max(1, min(options.batch_rows, options.memory_bytes // 8 // max(1, bytes_each)))
    work = partial(_pixels, size=size, options=options)
    groups = (files[begin : begin + rows] for begin in range(0, len(files), rows))
    for group in groups:
        pixels = np.empty((len(group), bytes_each), np.uint8)
        for place, found in enumerate(map_in_order(work, iter(group), options.threads)):
            pixels[place] = found
        labels = pa.array([path.parent.name for path in group], pa.string())
        yield pa.RecordBatch.from_arrays([fixed_size_list(pixels, schema.field("image").type), labels], schema=schema)


def _open(path: Path, data: bytes) -> Image.Image:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            return Image.open(io.BytesIO(data))
    except (*_BROKEN, Image.DecompressionBombWarning) as error:
        raise BadData(path, f"is not an image: {printable(str(error))}", fix="remove it, or get it again") from None


def to_eight_bits(image: Image.Image) -> Image.Image:
    """Scale a 16-bit image to 8 bits: Pillow itself would clip values above 255."""
    if not image.mode.startswith("I;16"):
        return image
    return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))


def _bytes(path: Path, options: Options) -> bytes:
    if path.stat().st_size > options.row_bytes:
        raise BadData(path, f"has more than {options.row_bytes:,} bytes", fix="read it with a higher cell_bytes=")
    return path.read_bytes()


def _pixels(path: Path, size: tuple[int, int], options: Options) -> np.ndarray:
    with _open(path, _bytes(path, options)) as image:
        if image.width * image.height * 3 > options.memory_bytes // 8:
            what = f"has {image.width} x {image.height} pixels, more than the memory allows"
            raise BadData(path, what, fix="make it smaller, or read with a higher memory_bytes=")
        if options.size is None and (image.height, image.width) != size:
            what = f"has {image.height} x {image.width} pixels, the first image has {size[0]} x {size[1]}"
            raise BadData(path, what, fix=f"scale all to one size: size=({size[0]}, {size[1]})")
        if image.mode in UNSCALED_MODES:
            raise BadData(path, "has pixels of 32 bits", fix="convert it to 8 or 16 bits per channel")
        try:
            plain = to_eight_bits(image).convert("RGB")
            if options.size is not None and (plain.height, plain.width) != size:
                plain = plain.resize((size[1], size[0]), Image.Resampling.BILINEAR)
        except _BROKEN as error:
            raise BadData(path, f"is damaged: {printable(str(error))}", fix="remove it, or get it again") from None
        return np.asarray(plain, np.uint8).reshape(-1)
