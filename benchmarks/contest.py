"""What the contest of trainings is about: four data sets as arrays, and an environment that holds the peers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import zipfile
import zlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np

PROGRAMS = Path(__file__).parent / "programs"
PEERS = ("accelerate>=1.15,<2", "lightning>=2.6,<3", "ray[train]>=2.60,<3")
WORDS, LENGTH = 20_000, 160

Arrays = tuple[np.ndarray, np.ndarray]


def environment(folder: Path) -> Path:
    """A virtual environment with the peers beside what Fairlead's own has; returns its Python."""
    python = folder / "bin" / "python"
    if not (folder / ".installed").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        ours = sysconfig.get_paths()["purelib"]  # torch is not installed twice
        own = Path(subprocess.run([python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"],
                                  check=True, capture_output=True, text=True).stdout.strip())  # fmt: skip
        (own / "fairlead-environment.pth").write_text(ours + "\n")
        pinned = str(Path(__file__).parent.parent / "constraints.txt")
        subprocess.run([python, "-m", "pip", "install", "-q", "-c", pinned, *PEERS], check=True)
        (folder / ".installed").touch()
    return python


def prepare(folder: Path, tasks: dict[str, tuple[int, int]]) -> dict[str, str]:
    """A file of arrays for each task, so many samples and epochs; returns what they were made of."""
    made_of = {}
    for name, (samples, epochs) in tasks.items():
        source, x, y = _SOURCES[name]()
        order = np.random.default_rng(0).permutation(len(y))[: samples + samples // 5]
        x, y = x[order], y[order].astype(np.int64)
        cut = len(y) * 5 // 6
        np.savez(folder / f"{name}.npz", x=x[:cut], y=y[:cut], x_test=x[cut:], y_test=y[cut:], epochs=epochs)
        made_of[name] = f"{source}, {cut:,} samples, {epochs} epochs"
    return made_of


def _found(*parts: str) -> Path | None:
    file = Path(os.environ.get("FAIRLEAD_DATA", ""), *parts)
    return file if "FAIRLEAD_DATA" in os.environ and file.is_file() else None


def _cifar10() -> tuple[str, np.ndarray, np.ndarray]:
    from PIL import Image

    if _found("cifar10", "data_batch_1.zip") is None:
        from sklearn.datasets import load_digits

        bundled = load_digits()
        pixels = np.kron(bundled.images / 16.0, np.ones((4, 4)))[:, None].repeat(3, axis=1).astype(np.float32)
        return "digits, enlarged, 6 times over", np.tile(pixels, (6, 1, 1, 1)), np.tile(bundled.target, 6)
    images, labels = [], []
    for number in (1, 2):
        file = _found("cifar10", f"data_batch_{number}.zip")
        assert file is not None
        with zipfile.ZipFile(file) as batch:
            for name in sorted(name for name in batch.namelist() if name.endswith(".webp")):
                images.append(np.asarray(Image.open(BytesIO(batch.read(name))).convert("RGB")).reshape(-1, 32, 32, 3))
            labels.append(np.frombuffer(batch.read("labels.bin"), np.uint8))
    pixels = np.concatenate(images).transpose(0, 3, 1, 2).astype(np.float32) / 255.0
    return "CIFAR-10", np.ascontiguousarray(pixels), np.concatenate(labels)


def _bank() -> tuple[str, np.ndarray, np.ndarray]:
    sys.path.insert(0, str(PROGRAMS))
    from workloads import table  # type: ignore[import-not-found]

    name, x, y = table()
    return name, x.numpy(), y.numpy()


def _kdd99() -> tuple[str, np.ndarray, np.ndarray]:
    file = _found("kdd99", "kddcup_10_percent.parquet")
    if file is None:
        from sklearn.datasets import load_wine

        bundled = load_wine()
        x = np.tile((bundled.data - bundled.data.mean(0)) / bundled.data.std(0), (400, 1))
        return "wine, 400 times over", x.astype(np.float32), np.tile(bundled.target, 400)
    import pyarrow.parquet as pq

    rows = pq.read_table(file)
    columns = []
    for name in rows.column_names[:-1]:
        values = rows.column(name).to_numpy(zero_copy_only=False)
        plain = values.dtype.kind in "fiub"
        numbers = values if plain else np.unique(values.astype(str), return_inverse=True)[1]
        columns.append(np.log1p(np.abs(numbers.astype(np.float32))))
    label = rows.column(rows.column_names[-1]).to_numpy(zero_copy_only=False)
    return "KDD 99", np.stack(columns, axis=1), np.array(["normal" not in str(each) for each in label])


def _imdb() -> tuple[str, np.ndarray, np.ndarray]:
    file = _found("imdb", "imdb_train.parquet")
    if file is None:
        draw = np.random.default_rng(0)
        kind = draw.integers(2, size=14_400)
        words = np.where(draw.random((14_400, LENGTH)) < 0.05, kind[:, None] * 50 + draw.integers(50, size=(14_400, 1)),
                         draw.integers(100, WORDS, size=(14_400, LENGTH)))  # fmt: skip
        return "made-up reviews", words, kind
    import pyarrow.parquet as pq

    rows = pq.read_table(file, columns=["text", "label"])
    ids = np.zeros((len(rows), LENGTH), dtype=np.int64)
    for place, text in enumerate(rows.column("text").to_pylist()):
        words = re.findall(r"[a-z']+", text.lower())[:LENGTH]
        ids[place, : len(words)] = [zlib.crc32(word.encode()) % WORDS for word in words]
    return "IMDB", ids, rows.column("label").to_numpy()


_SOURCES: dict[str, Callable[[], tuple[str, np.ndarray, np.ndarray]]] = {
    "cifar10": _cifar10, "bank": _bank, "kdd99": _kdd99, "imdb": _imdb,
}  # fmt: skip
