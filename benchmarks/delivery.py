"""Samples a second that reach a worker: from the grid, from a tensor of its own, by torch's loader, by datasets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from benchmarks.contest import PROGRAMS, environment
from benchmarks.reporter import Bench
from fairlead.data import Manifest, Recipe, Source, fit_and_prepare, read
from fairlead.grid import BlockId, Grid
from fairlead.training.samples import Resident

BATCH = 256
HF = ("datasets>=4,<5", "huggingface_hub<1")
Tensors = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Task:
    """A data set in the grid: what a model is called with, and what it is to say."""

    name: str
    x: torch.Tensor
    y: torch.Tensor
    pixels: np.ndarray | None = None  # as they were before they were normalised


def deliver(bench: Bench, grid: Grid, folder: Path, kdd99: Manifest) -> None:
    """Rows for every data set; every peer delivers the same samples in shuffled batches of one size."""
    torch.set_num_threads(1)
    python = _peers(bench)
    tasks: list[Callable[[], Task]] = [
        lambda: _bank(grid), lambda: _cifar10(grid, bench.quick), lambda: _of("kdd99", grid, kdd99),
        lambda: _imdb(grid, bench.quick),
    ]  # fmt: skip
    for prepared in tasks:
        with bench.step("prepare"):
            task = prepared()
        own = task.x.clone(), task.y.clone()
        with bench.step(f"{task.name}: the grid, and a tensor of one's own"):
            rates = _by_turns(task, own, 5 if bench.quick else 15)
        files = _written(folder / task.name, task, 5_000 if bench.quick else 20_000)
        with bench.step(f"{task.name}: torch's DataLoader over files"):
            loader = _peer(Path(sys.executable), "dataloader", files, bench.quick)
        with bench.step(f"{task.name}: datasets, memory-mapped"):
            mapped = _peer(python, "datasets", files, bench.quick) if python else None
        _rows(bench, task, rates, loader, mapped)
    bench.note(f"batches of {BATCH}, shuffled, input and target; best of several turns for the grid and for tensors; "
               "index_select reads a tensor of one's own at its fastest, x[i] is how most write it")  # fmt: skip


def _rows(bench: Bench, task: Task, rates: dict[str, float], loader: float | None, mapped: float | None) -> None:
    files = "PNG" if task.pixels is not None else "Parquet"
    what, mine = f"{task.name}: samples from the grid", rates["grid"]
    bench.add(what, mine, "/s", peer=f"DataLoader, {files}, 2 workers", peer_value=loader, target="ratio >= 10")
    bench.add(what, mine, "/s", peer="datasets, torch format", peer_value=mapped, target="ratio >= 2")
    bench.add(what, mine, "/s", peer="own tensor, index_select", peer_value=rates["select"], target="ratio >= 0.8")
    bench.add(what, mine, "/s", peer="own tensor, x[i]", peer_value=rates["index"])


# ------------------------------------------------------------ measuring


def _by_turns(task: Task, own: Tensors, turns: int) -> dict[str, float]:
    """Each way in turn, so that a busy moment hits none more than the others; the best turn of each."""
    best: dict[str, float] = {}
    for turn in range(turns):
        ways: dict[str, Callable[[np.ndarray], Iterator[object]]] = {
            "grid": lambda order: _taken(Resident([task.x, task.y]), order),
            "select": lambda order: _selected(own, order),
            "index": lambda order: _indexed(own, order),
        }
        order = np.random.default_rng(turn).permutation(len(task.y))[: 200 * BATCH]
        for name, way in ways.items():
            begun, count = time.perf_counter(), 0
            for _ in way(order):
                count += BATCH
            best[name] = max(best.get(name, 0.0), count / (time.perf_counter() - begun))
    return best


def _taken(samples: Resident, order: np.ndarray) -> Iterator[Tensors]:
    index = torch.from_numpy(order)
    for begin in range(0, len(order) - BATCH + 1, BATCH):
        x, y = samples.take(index[begin : begin + BATCH], 0)
        yield x, y


def _selected(own: Tensors, order: np.ndarray) -> Iterator[Tensors]:
    index, (x, y) = torch.from_numpy(order), own
    for begin in range(0, len(order) - BATCH + 1, BATCH):
        some = index[begin : begin + BATCH]
        yield x.index_select(0, some), y.index_select(0, some)


def _indexed(own: Tensors, order: np.ndarray) -> Iterator[Tensors]:
    index, (x, y) = torch.from_numpy(order), own
    for begin in range(0, len(order) - BATCH + 1, BATCH):
        some = index[begin : begin + BATCH]
        yield x[some], y[some]


def _peer(python: Path, kind: str, files: Path, quick: bool) -> float | None:
    command = [str(python), str(PROGRAMS / "input_peers.py"), kind, str(files), str(BATCH), "1" if quick else "4"]
    quiet = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=quiet, timeout=900, check=False)
    if done.returncode:
        print(done.stderr[-2_000:], file=sys.stderr)
        return None
    return float(json.loads(done.stdout.strip().splitlines()[-1])["samples_per_s"])


def _peers(bench: Bench) -> Path | None:
    """The environment of the peers, with datasets in it; without a network that row stays empty."""
    try:
        python = environment(Path(os.environ.get("FAIRLEAD_PEERS", ".venv-peers")).absolute())
        if subprocess.run([python, "-c", "import datasets"], capture_output=True, check=False).returncode:
            subprocess.run([python, "-m", "pip", "install", "-q", *HF], check=True)
    except (subprocess.CalledProcessError, OSError) as error:
        bench.note(f"datasets could not be installed ({error}): not measured")
        return None
    return python


def _written(folder: Path, task: Task, most: int) -> Path:
    """The same samples as files, for whoever reads files."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image

    folder.mkdir()
    x, y = task.x[:most].numpy(), task.y[:most].numpy()
    facts = {"rows": len(y), "shape": list(x.shape[1:]), "labels": y.tolist()}
    (folder / "shape.json").write_text(json.dumps(facts))
    np.savez(folder / "arrays.npz", x=x, y=y)
    if task.pixels is not None:
        for place, pixels in enumerate(task.pixels[:most]):
            Image.fromarray(pixels).save(folder / f"{place:06d}.png", compress_level=1)
        return folder
    rows = pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), int(np.prod(x.shape[1:])))
    pq.write_table(pa.table({"x": rows, "y": y}), folder / "rows.parquet", row_group_size=4_096)
    return folder


# ------------------------------------------------------------ the data sets


def _bank(grid: Grid) -> Task:
    file = _given("bank_marketing", "bank-full.csv.gz")
    source = read(file) if file else _made_up(45_211, 51)
    steps = ["normalise", *([{"encode": {"how": "onehot"}}, {"encode": {"columns": "y"}}] if file else []), "assemble"]
    return _of("bank", grid, fit_and_prepare(source, Recipe(steps, target="y"), grid, name="bank")[1])


def _cifar10(grid: Grid, quick: bool) -> Task:
    file, rows = _given("cifar10", "data_batch_1.zip"), 2_000 if quick else 10_000
    if file:
        pictures = read(file).table().slice(0, rows)
    else:
        drawn = np.random.default_rng(0).integers(0, 256, (rows, 32, 32, 3), dtype=np.uint8)
        pictures = read({"image": drawn, "label": np.arange(rows, dtype=np.uint8) % 10}).table()
    pixels = np.concatenate([part.flatten().to_numpy() for part in pictures["image"].chunks]).reshape(-1, 32, 32, 3)
    steps = [{"image": {"mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25]}}]
    manifest = fit_and_prepare(read(pictures, batch_rows=2_000), Recipe(steps, target="label"), grid, name="cifar10")[1]
    task = _of("cifar10", grid, manifest)
    return Task(task.name, task.x, task.y.long(), pixels)


def _imdb(grid: Grid, quick: bool) -> Task:
    file, rows = _given("imdb", "imdb_train.parquet"), 2_000 if quick else 25_000
    if file:
        reviews = read(file).table().select(["text", "label"]).slice(12_500 - rows // 2, rows)
    else:
        draw = np.random.default_rng(0)
        texts = [" ".join(f"word{word}" for word in draw.zipf(1.5, 200) % 9_999) for _ in range(rows)]
        reviews = read({"label": np.arange(rows) % 2}).table().append_column("text", [texts])
    words = {"columns": "text", "vocabulary": 8_000, "length": 256, "texts": 2_000}
    steps = [{"tokenise": words}, {"select": {"columns": ["text", "label"]}}]
    manifest = fit_and_prepare(read(reviews, batch_rows=2_000), Recipe(steps, target="label"), grid, name="imdb")[1]
    return _of("imdb", grid, manifest)


def _of(name: str, grid: Grid, manifest: Manifest) -> Task:
    columns = grid.open(BlockId(manifest.blocks[0].id)).tensors()
    target = str(manifest.target)
    return Task(name, next(each for key, each in columns.items() if key != target), columns[target])


def _made_up(rows: int, width: int) -> Source:
    draw = np.random.default_rng(0)
    columns = {f"c{place}": draw.normal(size=rows) for place in range(width)}
    return read({**columns, "y": draw.integers(0, 2, rows)})


def _given(*parts: str) -> Path | None:
    file = Path(os.environ.get("FAIRLEAD_DATA", ""), *parts)
    return file if "FAIRLEAD_DATA" in os.environ and file.is_file() else None
