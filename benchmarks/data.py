"""Data: from a packed file to partitions in the grid, and from the grid to a worker; peers in the same run."""

from __future__ import annotations

import gc
import gzip
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.delivery import deliver
from benchmarks.reporter import Bench, main
from fairlead.data import Manifest, Recipe, Source, fit_and_prepare, partition, read
from fairlead.data.readers.recorded import known_column_names
from fairlead.grid import BlockId, Grid
from fairlead.grid.standalone import standalone_grid

QUOTA = 4 << 30
WORKERS = 4
LOGS = ["duration", "src_bytes", "dst_bytes"]
KDD99 = Recipe(
    [
        {"normalise": {"columns": LOGS, "how": "log"}},
        {"normalise": {"how": "standard"}},
        {"encode": {"how": "onehot", "unseen": "none"}},
        {"encode": {"columns": "label"}},
        {"assemble": {}},
    ],
    target="label",
)


def run(bench: Bench) -> None:
    """kdd99 into the grid against pandas with scikit-learn; samples a second against torch and datasets."""
    folder = tempfile.TemporaryDirectory(prefix="fairlead-data-")
    with folder as name, standalone_grid(Path(name), QUOTA) as running, running.connect() as grid:
        file = _kdd99(Path(name), bench.quick)
        manifest = into_the_grid(bench, grid, file)
        deliver(bench, grid, Path(name), manifest)


# ------------------------------------------------------------ from a packed file to partitions in the grid


def into_the_grid(bench: Bench, grid: Grid, file: Path) -> Manifest:
    """The same recipe both ways, by turns; the block of the last turn stays for what follows."""
    found: list[Manifest] = []
    ours: list[tuple[float, float]] = []
    theirs: list[tuple[float, float]] = []
    with bench.step("kdd99, once to warm up"):
        _pandas(file)
        found.append(_fairlead(grid, file))
    for turn in range(2 if bench.quick else 9):
        with bench.step(f"kdd99, turn {turn + 1}: Fairlead, then pandas and scikit-learn"):
            while found:
                grid.drop(BlockId(found.pop().blocks[0].id))
            ours.append(_timed(lambda: found.append(_fairlead(grid, file))))
            theirs.append(_timed(lambda: _pandas(file)))
    _same(grid, found[0], file)
    rows = found[0].rows
    for place, what, target in ((0, "wall", "ratio >= 5"), (1, "CPU", None)):
        mine, other = (statistics.median(each[place] for each in every) for every in (ours, theirs))
        bench.add(f"kdd99 from .gz to {WORKERS} partitions in the grid, {what}", rows / mine, "rows/s",
                  peer="pandas + scikit-learn", peer_value=rows / other, target=target)  # fmt: skip
    bench.details["kdd99_s"] = {"fairlead": ours, "pandas": theirs, "rows": rows}
    bench.note(f"kdd99: {rows:,} rows; logarithm, mean and deviation, one-hot, labels to codes; read, fitted, applied, "
               "put, dealt; the result is compared with scikit-learn's number by number")  # fmt: skip
    return found[0]


def _timed(once: Callable[[], Any]) -> tuple[float, float]:
    gc.collect()
    begun, spent = time.perf_counter(), time.process_time()
    once()
    return time.perf_counter() - begun, time.process_time() - spent


def _fairlead(grid: Grid, file: Path) -> Manifest:
    _, manifest = fit_and_prepare(_source(file), KDD99, grid, name="kdd99")
    partition(manifest.rows, WORKERS, seed=1)
    return manifest


def _source(file: Path) -> Source:
    return read(file, format="csv", columns=_names())


def _pandas(file: Path) -> tuple[Any, Any, list[Any]]:
    """As the guide of scikit-learn has it: a ColumnTransformer over what pandas has read, in single precision."""
    import pandas as pd
    from sklearn.compose import ColumnTransformer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer, LabelEncoder, OneHotEncoder, StandardScaler

    names = _names()
    table = pd.read_csv(file, header=None, names=names)
    words = ["protocol_type", "service", "flag"]
    numbers = [name for name in names[:-1] if name not in words and name not in LOGS]
    recipe = ColumnTransformer([
        ("logs", make_pipeline(FunctionTransformer(np.log1p), StandardScaler()), LOGS),
        ("numbers", StandardScaler(), numbers),
        ("words", OneHotEncoder(handle_unknown="ignore", sparse_output=False), words),
    ])  # fmt: skip
    x = recipe.fit_transform(table[names[:-1]]).astype(np.float32)
    y = LabelEncoder().fit_transform(table["label"])
    order = np.random.default_rng(1).permutation(len(x))
    return x, y, np.array_split(order, WORKERS)


def _same(grid: Grid, manifest: Manifest, file: Path) -> None:
    """Both did the same: column by column, wherever each has put it."""
    x, y, _ = _pandas(file)
    found = grid.open(BlockId(manifest.blocks[0].id)).arrays()
    labels = next(each.labels for each in manifest.schema if each.name == "features")
    words = ["protocol_type", "service", "flag"]
    plain = [name for name in _names()[:-1] if name not in words and name not in LOGS]
    hot = [label for word in words for label in labels if label.startswith(f"{word}=")]
    places = [labels.index(name) for name in [*LOGS, *plain, *hot]]
    np.testing.assert_array_equal(found["label"], y)
    for begin in range(0, len(x), 65_536):
        some = slice(begin, begin + 65_536)
        np.testing.assert_allclose(found["features"][some][:, places], x[some], rtol=2e-3, atol=2e-3)


def _names() -> list[str]:
    return list(known_column_names(Path("kddcup.data")))


def _kdd99(folder: Path, quick: bool) -> Path:
    """The file of record, or as many made-up rows where it is not at hand; a tenth of it for a quick look."""
    given = Path(os.environ.get("FAIRLEAD_DATA", ""), "kdd99", "kddcup.data_10_percent.gz")
    if "FAIRLEAD_DATA" in os.environ and given.is_file():
        if not quick:
            return given
        with gzip.open(given, "rb") as file:
            lines = file.readlines()[::10]
    else:
        lines = _made_up(49_402 if quick else 494_021)
    made = folder / "kdd99.csv.gz"
    with gzip.open(made, "wb", compresslevel=1) as packed:
        packed.writelines(lines)
    return made


def _made_up(rows: int) -> list[bytes]:
    draw = np.random.default_rng(0)
    numbers = draw.integers(0, 500, (rows, 38))
    words = draw.integers(0, [3, 60, 11, 23], (rows, 4))
    return [
        f"{n[0]},p{w[0]},s{w[1]},f{w[2]},{','.join(map(str, n[1:]))},l{w[3]}.\n".encode()
        for n, w in zip(numbers.tolist(), words.tolist(), strict=True)
    ]


if __name__ == "__main__":
    main("data", run, peers=["pandas", "scikit-learn", "pyarrow", "tokenizers"])
