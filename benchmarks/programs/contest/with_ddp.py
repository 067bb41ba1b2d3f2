"""torchrun's way: DistributedDataParallel over a DataLoader with a DistributedSampler."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from tasks import LEARNING_RATE, SEED, Diary, load
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def main(name: str, folder: str, diary: str, kind: str, workers: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    task = load(name, folder)
    data = task.data(kind)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, task.batch_size // size, sampler=sampler, num_workers=int(workers))
    model, loss = DistributedDataParallel(task.model()), nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    x_test, y_test = (part[rank::size] for part in task.test_tensors())
    notes = Diary(diary) if rank == 0 else None
    for epoch in range(1, task.epochs + 1):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            outputs = torch.cat([model.module(part) for part in x_test.split(task.batch_size)])
        model.train()
        counted = torch.tensor([float((outputs.argmax(dim=1) == y_test).sum()), float(len(y_test))])
        dist.all_reduce(counted)
        if notes is not None:
            notes.write(epoch, float(counted[0] / counted[1]))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
