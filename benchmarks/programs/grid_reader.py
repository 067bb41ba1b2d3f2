"""Opens blocks as another worker of the same tenant: how long it takes, and how a first touch compares to the next."""

import json
import sys
import time

import numpy as np

from fairlead.grid import Grid

grid = Grid.of_this_worker()
assert grid is not None


def touched(view: memoryview) -> float:
    """Seconds to read all of it."""
    begun = time.perf_counter()
    np.frombuffer(view, np.uint64).max()
    return time.perf_counter() - begun


def opened(block: str) -> float:
    begun = time.perf_counter()
    found = grid.open(block)
    found.parts()
    spent = time.perf_counter() - begun
    found.close()
    return spent


print("ready", flush=True)
for line in sys.stdin:
    request = json.loads(line)
    if "settle" in request:
        grid.usage()
        grid._line.prefault_all()
        answer = {}
    elif "touch" in request:
        view = grid.open(request["touch"]).parts()[0]
        first = touched(view)
        answer = {"first": first, "again": sorted(touched(view) for _ in range(5))[2]}
        del view
    else:
        answer = {"open": [opened(request["open"]) for _ in range(request["times"])]}
    print(json.dumps(answer), flush=True)
