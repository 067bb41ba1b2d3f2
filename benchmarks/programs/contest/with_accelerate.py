"""Hugging Face Accelerate's way: prepare everything, let it run the backward pass and gather the metrics."""

from __future__ import annotations

import sys

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from tasks import LEARNING_RATE, SEED, Diary, load
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main(name: str, folder: str, diary: str, kind: str, workers: str) -> None:
    torch.set_num_threads(1)
    set_seed(SEED)
    accelerator = Accelerator(cpu=True)
    task = load(name, folder)
    size = task.batch_size // accelerator.num_processes
    loader = DataLoader(task.data(kind), size, shuffle=True, num_workers=int(workers))
    test = DataLoader(TensorDataset(*task.test_tensors()), size)
    model, loss = task.model(), nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    model, optimizer, loader, test = accelerator.prepare(model, optimizer, loader, test)
    notes = Diary(diary) if accelerator.is_main_process else None
    for epoch in range(1, task.epochs + 1):
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            accelerator.backward(loss(model(x), y))
            optimizer.step()
        model.eval()
        right = total = 0
        for x, y in test:
            with torch.no_grad():
                outputs = model(x)
            guesses, targets = accelerator.gather_for_metrics((outputs.argmax(dim=1), y))
            right, total = right + int((guesses == targets).sum()), total + len(targets)
        if notes is not None:
            notes.write(epoch, right / total)
    accelerator.end_training()


if __name__ == "__main__":
    main(*sys.argv[1:])
