"""Trains a small network on one core without end, and writes down how many steps it made in each half second."""

import os
import time
from pathlib import Path

import torch

torch.manual_seed(0)
network = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)
x, y = torch.randn(64, 256), torch.randint(8, (64,))
with Path(os.environ["FAIRLEAD_OUTPUT"], "counts").open("w", buffering=1) as out:
    begun, steps = time.time(), 0
    while True:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(x), y).backward()
        optimizer.step()
        steps += 1
        if (now := time.time()) - begun >= 0.5:
            out.write(f"{now} {steps / (now - begun)}\n")
            begun, steps = now, 0
