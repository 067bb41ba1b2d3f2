"""The engines behind plans: data, tensor and pipeline parallelism, FSDP, local SGD, compression."""
