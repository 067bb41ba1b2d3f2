"""Lightning's way: a LightningModule, loaders and a Trainer, with what slows it down needlessly turned off."""

from __future__ import annotations

import os
import sys
from typing import Any

import lightning
import torch
from tasks import LEARNING_RATE, SEED, Diary, load
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Module(lightning.LightningModule):
    def __init__(self, model: nn.Module, diary: str) -> None:
        super().__init__()
        self.model, self.diary = model, diary
        self.notes: Diary | None = None

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self.model(x), y)

    def validation_step(self, batch: Any, index: int) -> None:
        x, y = batch
        self.log("accuracy", (self.model(x).argmax(dim=1) == y).float().mean(), sync_dist=True, on_epoch=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=LEARNING_RATE)

    def on_train_start(self) -> None:
        if self.global_rank == 0:
            self.notes = Diary(self.diary)


class Accuracy(lightning.Callback):
    """The epoch's metric is known only after the epoch's end."""

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        if module.notes is not None:
            module.notes.write(module.current_epoch + 1, float(trainer.callback_metrics["accuracy"]))


def main(name: str, folder: str, diary: str, kind: str, workers: str) -> None:
    torch.set_num_threads(1)
    lightning.seed_everything(SEED)
    task = load(name, folder)
    devices = int(os.environ.get("DEVICES", "2"))
    loader = DataLoader(task.data(kind), task.batch_size // devices, shuffle=True, num_workers=int(workers))
    test = DataLoader(TensorDataset(*task.test_tensors()), task.batch_size // devices)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=devices, strategy="ddp" if devices > 1 else "auto", max_epochs=task.epochs,
        callbacks=[Accuracy()], logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, num_sanity_val_steps=0,
    )  # fmt: skip
    trainer.fit(Module(task.model(), diary), loader, test)


if __name__ == "__main__":
    main(*sys.argv[1:])
