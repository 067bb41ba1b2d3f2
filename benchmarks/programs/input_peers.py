"""How fast others deliver samples: python input_peers.py dataloader|datasets FOLDER BATCH SECONDS prints samples/s."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

WARM = 3  # batches before the clock starts: workers have started, and files were opened


class OfParquet(torch.utils.data.Dataset):
    """Rows of a Parquet file, read once by each worker and then held by it: the fastest way with this class."""

    def __init__(self, folder: Path) -> None:
        self._file, self._columns = folder / "rows.parquet", None
        self._rows = json.loads((folder / "shape.json").read_text())

    def __len__(self) -> int:
        return self._rows["rows"]

    def __getitem__(self, place: int) -> Any:
        if self._columns is None:
            import pyarrow.parquet as pq

            table = pq.read_table(self._file).combine_chunks()
            x = np.stack([part.flatten().to_numpy() for part in table["x"].chunks])
            self._columns = x.reshape(-1, *self._rows["shape"]), table["y"].to_numpy()
        x, y = self._columns
        return torch.from_numpy(x[place]), int(y[place])


class OfImages(torch.utils.data.Dataset):
    """PNG files, decoded and normalised one by one."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._facts = folder, json.loads((folder / "shape.json").read_text())

    def __len__(self) -> int:
        return self._facts["rows"]

    def __getitem__(self, place: int) -> Any:
        from PIL import Image

        with Image.open(self._folder / f"{place:06d}.png") as image:
            pixels = torch.from_numpy(np.asarray(image).transpose(2, 0, 1).copy())
        return pixels.float().div_(255.0).sub_(0.5).div_(0.25), self._facts["labels"][place]


def rate(batches: Iterable[Any], batch: int, seconds: float) -> float:
    """Samples a second of wall time, after the first few batches."""
    begun_s, counted = 0.0, 0
    for place, found in enumerate(batches):
        size = len(found[0]) if isinstance(found, list | tuple) else len(found["y"])
        if place < WARM or size < batch:
            begun_s = time.perf_counter() if place < WARM else begun_s
            continue
        counted += size
        if time.perf_counter() - begun_s > seconds:
            break
    return counted / (time.perf_counter() - begun_s)


def dataloader(folder: Path, batch: int, seconds: float) -> float:
    images = not (folder / "rows.parquet").exists()
    data = OfImages(folder) if images else OfParquet(folder)
    loader = torch.utils.data.DataLoader(data, batch, shuffle=True, num_workers=2, persistent_workers=True)
    rate(loader, batch, 0.5)  # so that every worker has opened its file
    return rate(loader, batch, seconds)


def datasets(folder: Path, batch: int, seconds: float) -> float:
    import datasets as hf

    hf.disable_progress_bars()
    facts = json.loads((folder / "shape.json").read_text())
    if not (folder / "hf").exists():
        held = np.load(folder / "arrays.npz")
        width = int(np.prod(facts["shape"]))
        kind = str(held["x"].dtype)
        features = hf.Features({"x": hf.Sequence(hf.Value(kind), length=width), "y": hf.Value("int64")})
        flat = held["x"].reshape(len(held["x"]), width)
        hf.Dataset.from_dict({"x": flat, "y": held["y"]}, features=features).save_to_disk(str(folder / "hf"))
    data = hf.load_from_disk(str(folder / "hf")).with_format("torch")
    return rate(data.shuffle(seed=0).iter(batch), batch, seconds)


if __name__ == "__main__":
    torch.set_num_threads(1)
    kind, folder, batch, seconds = sys.argv[1:]
    measured = {"dataloader": dataloader, "datasets": datasets}[kind](Path(folder), int(batch), float(seconds))
    print(json.dumps({"samples_per_s": measured}))
