"""What people write for one process: a loop over a DataLoader, or one that slices batches out of tensors itself."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from tasks import LEARNING_RATE, SEED, Diary, Task, accuracy, load
from torch import nn
from torch.utils.data import DataLoader


def batches(task: Task, kind: str, workers: int) -> Callable[[], Iterable[Any]]:
    """What gives the batches of an epoch."""
    if kind != "sliced":
        loader = DataLoader(task.data(kind), task.batch_size, shuffle=True, num_workers=workers)
        return lambda: loader
    x, y = task.tensors()

    def sliced() -> Iterator[Any]:
        order = torch.randperm(len(y))
        for start in range(0, len(y), task.batch_size):
            chosen = order[start : start + task.batch_size]
            yield x[chosen], y[chosen]

    return sliced


def main(name: str, folder: str, diary: str, kind: str, workers: str, threads: str) -> None:
    torch.set_num_threads(int(threads))
    torch.manual_seed(SEED)
    task = load(name, folder)
    model, loss = task.model(), nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    begin = batches(task, kind, int(workers))
    x_test, y_test = task.test_tensors()
    notes = Diary(diary)
    for epoch in range(1, task.epochs + 1):
        for x, y in begin():
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            reached = accuracy(torch.cat([model(part) for part in x_test.split(task.batch_size)]), y_test)
        model.train()
        notes.write(epoch, reached)


if __name__ == "__main__":
    main(*sys.argv[1:])
