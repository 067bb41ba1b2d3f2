"""A worker that puts, opens, holds and drops blocks at random, and looks whether every byte is as it was put."""

import json
import os
import random
import sys
import zlib

from fairlead.errors import Conflict, NotFound, Refused
from fairlead.grid import Grid

rng = random.Random(int(sys.argv[1]))
grid = Grid.of_this_worker()
assert grid is not None
counts = {"puts": 0, "reads": 0, "wrong": 0}
held = []


def check(view, crc):
    counts["reads"] += 1
    counts["wrong"] += zlib.crc32(view) != crc


while True:
    try:
        if rng.random() < 0.4:
            data = rng.randbytes(rng.choice((500, 40_000, 300_000, 1_500_000)))
            grid.put([data], kind="chaos", meta={"crc": zlib.crc32(data)}, cost_s=rng.random())
            counts["puts"] += 1
        elif blocks := grid.blocks():
            chosen = rng.choice(blocks).id
            if rng.random() < 0.05:
                grid.drop(chosen)
            else:
                with grid.open(chosen) as found:
                    view, crc = found.parts()[0], found.meta["crc"]
                check(view, crc)
                held.append((view, crc))  # for a while: nothing may happen to it
        if len(held) > rng.randrange(1, 4):
            check(*held.pop(rng.randrange(len(held))))
    except (NotFound, Conflict, Refused):
        pass  # another dropped it, or has it open, or all room is in use
    os.write(1, json.dumps(counts).encode() + b"\n")
