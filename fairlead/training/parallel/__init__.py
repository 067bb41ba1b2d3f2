"""Engines that carry out plans: data, tensor and pipeline parallelism, FSDP, local SGD, compression."""
