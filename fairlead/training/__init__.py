"""What runs inside worker processes: trains a Training in elastic generations."""

from __future__ import annotations


def preload() -> None:
    """Import all that a training needs, for the fork server: no tensor operation may run before the fork.

    torch._dynamo is what the first optimiser would import; a child would pay two seconds for it (measured).
    """
    import safetensors.torch  # noqa: F401
    import torch
    import torch._dynamo
    import torch.distributed
    import torch.optim
    import torch.utils.data

    import fairlead.training.parallel.fsdp
    import fairlead.training.parallel.pipeline
    import fairlead.training.worker  # noqa: F401

    torch.set_num_threads(1)
