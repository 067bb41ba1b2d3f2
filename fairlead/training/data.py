"""Opens the data of a Training: tensors, arrays, a torch Dataset, or a data set of the grid by its name."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import TensorDataset

from fairlead.data.dataset_refs import DatasetRef
from fairlead.errors import InvalidSpec
from fairlead.training.grid_dataset import open_dataset
from fairlead.training.samples import GeneratedSamples, Resident, Samples


def check_batch(size: int, samples: int) -> None:
    """Refuse a batch that is larger than the data."""
    if size > samples:
        raise InvalidSpec(
            f"{size} is more than the {samples} samples of data", field="batch_size", value=size,
            fix=f"pass batch_size={samples} or less, or more data",
        )  # fmt: skip


def open_samples(name: str, data: Any, device: torch.device) -> Samples:
    """The data of a Training, ready to be read by index."""
    if isinstance(data, str | DatasetRef):
        return open_dataset(name, data, device)
    if isinstance(data, TensorDataset):
        data = data.tensors
    if isinstance(data, tuple | list):
        return Resident([_tensor(f"{name}[{place}]", column, device) for place, column in enumerate(data)])
    return GeneratedSamples(data, name, device)


def _tensor(name: str, column: Any, device: torch.device) -> torch.Tensor:
    try:
        return torch.as_tensor(column).detach().to(device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidSpec(
            f"cannot become a tensor: {error}", field=name, fix="pass numbers: a tensor or a NumPy array"
        ) from None
