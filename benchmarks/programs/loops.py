"""What people write: a loop over a DataLoader, alone or under torchrun with DDP; prints when each epoch ended."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from workloads import load  # type: ignore[import-not-found]


def main(folder: Path, kind: str, epochs: int, samples: int) -> None:
    torch.set_num_threads(1)
    size = int(os.environ.get("WORLD_SIZE", "1"))
    work = load(kind, samples)
    data = TensorDataset(work.x, work.y)
    model: nn.Module = work.model()
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] | None = None
    if size > 1:
        dist.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
        sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=work.batch_size // size, shuffle=sampler is None, sampler=sampler)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss = nn.CrossEntropyLoss()
    rank = int(os.environ.get("RANK", "0"))
    with (folder / f"steps-{rank}").open("a", buffering=1) as lines:
        for epoch in range(epochs):
            if sampler is not None:
                sampler.set_epoch(epoch)
            for x, y in loader:
                optimizer.zero_grad()
                value = loss(model(x), y)
                value.backward()
                optimizer.step()
            lines.write(f"{time.time()} {epoch} {os.getpid()}\n")
    if size > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
