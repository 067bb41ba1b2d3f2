"""The step for images: decode, scale to one size, normalise each channel."""

from __future__ import annotations

from io import BytesIO
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field

from fairlead.data.errors import BadData
from fairlead.data.recipes.batch_columns import Array, Frame
from fairlead.data.recipes.step import Learner, State, Step

_MOST_PIXELS = 64_000_000  # of one image: guards against decompression bombs


class Pixels:
    """Pixels normalised to float32 or left as bytes, computed at their destination."""

    def __init__(self, pixels: Array, shift: Array, scale: Array, chw: bool, dtype: np.dtype[Any]) -> None:
        self._pixels = pixels.transpose(0, 3, 1, 2) if chw else pixels
        across = (1, -1, 1, 1) if chw else (1, 1, 1, -1)
        self._shift, self._scale = shift.reshape(across), scale.reshape(across)
        self.shape, self.dtype = self._pixels.shape, dtype

    def write(self, out: Array, start: int, stop: int) -> None:
        for begin in range(start, stop, 256):  # small enough for the cache
            some = self._pixels[begin : min(begin + 256, stop)]
            into = out[begin - start : begin - start + len(some)]
            if self.dtype == np.uint8:
                into[...] = some
            else:
                np.multiply(some, self._scale, out=into, casting="unsafe")
                into -= self._shift


class Image(Step):
    """Turn encoded images or arrays of pixels into (channels, height, width), scaled to 0..1 and normalised.

    ``mean`` and ``std`` per channel are given or ``fit`` to the training part. With ``dtype: uint8`` the bytes stay as
    they are (a quarter of the memory), and the model normalises them.
    """

    name: ClassVar[str] = "image"
    columns: tuple[str, ...] = ("image",)
    size: tuple[int, int] | None = None  # height, width
    channels: Literal[1, 3] = 3
    mean: tuple[float, ...] | Literal["fit"] | None = None
    std: tuple[float, ...] | Literal["fit"] | None = None
    layout: Literal["chw", "hwc"] = "chw"
    dtype: Literal["float32", "uint8"] = "float32"
    limit_pixels: int = Field(default=_MOST_PIXELS, ge=1)

    def learner(self, columns: list[str], frame: Frame) -> Learner | None:
        return _ChannelLearner(columns, self)

    def pixels(self, frame: Frame, name: str, size: tuple[int, int] | None) -> Array:
        """The images of a batch as (rows, height, width, channels) bytes."""
        column = frame.columns[name]
        if isinstance(column, np.ndarray):
            return self._arrays(column, name, size)
        if not (pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)):
            raise BadData("the recipe", f"is {column.type}, neither encoded images nor pixels", column=name,
                          fix="read the images as bytes, or as arrays of uint8")  # fmt: skip
        decoded = []
        for row, encoded in enumerate(column.to_pylist()):
            image = self._decoded(encoded, int(frame.row_numbers[row]), name, size)
            size = size or (image.shape[0], image.shape[1])
            decoded.append(image)
        return np.stack(decoded) if decoded else np.zeros((0, *(size or (1, 1)), self.channels), np.uint8)

    def _decoded(self, encoded: bytes | None, row: int, name: str, size: tuple[int, int] | None) -> Array:
        from PIL import Image as Pillow
        from PIL import UnidentifiedImageError

        from fairlead.data.readers.images import UNSCALED_MODES, to_eight_bits

        if encoded is None:
            raise BadData("the data", "is missing", row=row + 1, column=name, fix="drop the row")
        try:
            with Pillow.open(BytesIO(encoded)) as opened:
                if opened.width * opened.height > self.limit_pixels:
                    raise BadData("the data", f"an image of {opened.width} x {opened.height} is too large",
                                  row=row + 1, column=name, fix="raise limit_pixels, or drop the row")  # fmt: skip
                if opened.mode in UNSCALED_MODES:
                    raise BadData("the data", "has pixels of 32 bits", row=row + 1, column=name,
                                  fix="convert it to 8 or 16 bits per channel")  # fmt: skip
                image = to_eight_bits(opened).convert("RGB" if self.channels == 3 else "L")
        except Pillow.DecompressionBombError:
            raise BadData("the data", f"an image of more than {self.limit_pixels:,} pixels is too large", row=row + 1,
                          column=name, fix="scale it down, or drop the row") from None  # fmt: skip
        except (UnidentifiedImageError, OSError, SyntaxError, ValueError) as error:
            why = "unknown format" if isinstance(error, UnidentifiedImageError) else error
            raise BadData("the data", f"is not an image: {why}", row=row + 1, column=name,
                          fix="repair the file, or drop the row") from None  # fmt: skip
        if size and (image.height, image.width) != size:
            image = image.resize((size[1], size[0]), Pillow.Resampling.BILINEAR)
        return np.asarray(image, np.uint8).reshape(image.height, image.width, self.channels)

    def _arrays(self, column: Array, name: str, size: tuple[int, int] | None) -> Array:
        if column.dtype != np.uint8 or column.ndim not in (3, 4):
            raise BadData("the recipe", f"is {column.dtype} of shape {column.shape[1:]}, not pixels", column=name,
                          fix="give uint8 of (height, width[, channels])")  # fmt: skip
        column = column[..., None] if column.ndim == 3 else column
        if column.shape[3] not in (1, 3) and column.shape[1] in (1, 3):
            column = column.transpose(0, 2, 3, 1)
        if column.shape[3] != self.channels:
            column = column.repeat(3, 3) if self.channels == 3 else column.mean(3, keepdims=True).astype(np.uint8)
        if size is None or column.shape[1:3] == size:
            return column
        return np.stack([_resized(image, size) for image in column]) if len(column) else column

    def apply(self, state: State, frame: Frame) -> None:
        for place, name in self.present_columns(state, frame):
            pixels = self.pixels(frame, name, (int(state["size"][place][0]), int(state["size"][place][1])))
            mean, std = np.asarray(state["mean"][place], np.float64), np.asarray(state["std"][place], np.float64)
            shift, scale = (mean / std).astype(np.float32), (1.0 / (255.0 * std)).astype(np.float32)
            frame.columns[name] = Pixels(pixels, shift, scale, self.layout == "chw", np.dtype(self.dtype))


class _ChannelLearner:
    """Counts every value of every channel, which gives exact mean and standard deviation."""

    def __init__(self, columns: list[str], step: Image) -> None:
        self._columns, self._step = columns, step
        self._sizes: list[tuple[int, int] | None] = [step.size] * len(columns)
        self._shades = [np.zeros((step.channels, 256), np.int64) for _ in columns]
        self._fits = "fit" in (step.mean, step.std)

    def summarise(self, frame: Frame) -> list[tuple[tuple[int, int], Array]]:
        found = []
        for name, size in zip(self._columns, self._sizes, strict=True):
            pixels = self._step.pixels(frame, name, size)
            counts = np.zeros((self._step.channels, 256), np.int64)
            for channel in range(self._step.channels if self._fits else 0):
                counts[channel] = np.bincount(pixels[..., channel].ravel(), minlength=256)
            found.append(((pixels.shape[1], pixels.shape[2]), counts))
        return found

    def add(self, seen: list[tuple[tuple[int, int], Array]]) -> None:
        for place, (size, counts) in enumerate(seen):
            self._sizes[place] = self._sizes[place] or size
            self._shades[place] += counts

    def state(self) -> State:
        means, stds = zip(*(self._one(shades) for shades in self._shades), strict=True)
        return {"columns": self._columns, "size": [list(size or (1, 1)) for size in self._sizes],
                "mean": list(means), "std": list(stds)}  # fmt: skip

    def _one(self, shades: Array) -> tuple[list[float], list[float]]:
        step, values, count = self._step, np.arange(256) / 255.0, np.maximum(shades.sum(1), 1)
        mean = (shades * values).sum(1) / count
        std = np.sqrt((shades * (values - mean[:, None]) ** 2).sum(1) / count)
        own_mean, own_std = mean.tolist(), np.where(std > 0, std, 1.0).tolist()
        return (
            own_mean if step.mean == "fit" else list(step.mean or [0.0] * step.channels),
            own_std if step.std == "fit" else list(step.std or [1.0] * step.channels),
        )


def _resized(image: Array, size: tuple[int, int]) -> Array:
    from PIL import Image as Pillow

    drawn = Pillow.fromarray(image if image.shape[2] == 3 else image[..., 0])
    sized = drawn.resize((size[1], size[0]), Pillow.Resampling.BILINEAR)
    return np.asarray(sized, np.uint8).reshape(*size, image.shape[2])
