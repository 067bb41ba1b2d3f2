"""The same tiny network as people write it for torchrun: DDP, a checkpoint file, and a line per finished step."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn


def join() -> None:
    """The plain way; with WORKAROUND=1 the store gets a prefix per attempt, without which gloo cannot restart."""
    if os.environ.get("WORKAROUND") != "1":
        dist.init_process_group("gloo")
        return
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.TCPStore(  # type: ignore[attr-defined]
        address, port, size, is_master=False
    )
    prefix = f"attempt-{os.environ['TORCHELASTIC_RESTART_COUNT']}"
    fresh = dist.PrefixStore(prefix, store)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=fresh, rank=rank, world_size=size)


def main(folder: Path, steps: int, pause_s: float) -> None:
    torch.set_num_threads(1)
    join()
    rank = dist.get_rank()
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 2))
    ddp = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(ddp.parameters(), lr=1e-2)
    checkpoint, begun = folder / "checkpoint.pt", 0
    if checkpoint.exists():
        state = torch.load(checkpoint)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        begun = state["step"]
    generator = torch.Generator().manual_seed(rank)
    loss = nn.CrossEntropyLoss()
    with (folder / f"steps-{rank}").open("a", buffering=1) as lines:
        for step in range(begun, steps):
            x = torch.randn(22, 16, generator=generator)
            time.sleep(pause_s)
            optimizer.zero_grad()
            loss(ddp(x), (x[:, :4].sum(dim=1) > 0).long()).backward()
            optimizer.step()
            lines.write(f"{time.time()} {step} {os.getpid()}\n")
            if rank == 0 and step % 20 == 0:
                part = checkpoint.with_suffix(".part")
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, part)
                part.replace(checkpoint)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
