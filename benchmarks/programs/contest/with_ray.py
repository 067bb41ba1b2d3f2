"""Ray Train's way: a TorchTrainer whose workers prepare their model and loader."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import ray
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).parent))


def train(config: dict[str, Any]) -> None:
    sys.path.insert(0, config["programs"])
    import ray.train.torch
    from tasks import LEARNING_RATE, Diary, load

    torch.set_num_threads(1)
    torch.manual_seed(0)
    task = load(config["name"], config["folder"])
    rank, size = ray.train.get_context().get_world_rank(), ray.train.get_context().get_world_size()
    loader = DataLoader(task.data(config["kind"]), task.batch_size // size, shuffle=True, num_workers=config["workers"])
    loader = ray.train.torch.prepare_data_loader(loader)
    model, loss = ray.train.torch.prepare_model(task.model()), nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    x_test, y_test = (part[rank::size] for part in task.test_tensors())
    notes = Diary(config["diary"]) if rank == 0 else None
    for epoch in range(1, task.epochs + 1):
        if size > 1:
            loader.sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            outputs = torch.cat([model(part) for part in x_test.split(task.batch_size)])
        model.train()
        counted = torch.tensor([float((outputs.argmax(dim=1) == y_test).sum()), float(len(y_test))])
        dist.all_reduce(counted)
        reached = float(counted[0] / counted[1])
        ray.train.report({"accuracy": reached})
        if notes is not None:
            notes.write(epoch, reached)


def main(name: str, folder: str, diary: str, kind: str, workers: str) -> None:
    from ray.train import ScalingConfig
    from ray.train.torch import TorchTrainer

    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
    config = {"name": name, "folder": folder, "diary": diary, "kind": kind, "workers": int(workers),
              "programs": str(Path(__file__).parent)}  # fmt: skip
    TorchTrainer(train, train_loop_config=config, scaling_config=ScalingConfig(num_workers=2)).fit()
    ray.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
