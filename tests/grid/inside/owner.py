"""A job that has a block in the grid, tells about it, and reads it again and again until it is told to end."""

import json
import os
import time
import zlib
from pathlib import Path

import numpy as np

from fairlead.grid import Grid

output = Path(os.environ["FAIRLEAD_OUTPUT"])
grid = Grid.of_this_worker()
assert grid is not None
data = np.random.default_rng(7).integers(0, 256, 3 << 20, np.uint8)
block = grid.put([data.data], kind="secret", meta={}, label="dataset/secret@1")
view = grid.open(block).parts()[0]
known = zlib.crc32(data)
told = {
    "block": block, "socket": os.environ["FAIRLEAD_GRID"], "token": os.environ["FAIRLEAD_GRID_TOKEN"],
    "canary": data[:64].tobytes().hex(),
}  # fmt: skip
reads = wrong = 0
while not (output / "end").exists():
    for seen in (view, grid.open(block).parts()[0]):
        wrong += zlib.crc32(seen) != known
    reads += 2
    (output / "told.part").write_text(json.dumps(told | {"reads": reads, "wrong": wrong}))
    (output / "told.part").rename(output / "told.json")
    time.sleep(0.05)
