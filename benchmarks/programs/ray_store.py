"""Puts and gets of Ray's object store, by size, as JSON: for the peers' environment."""

import gc
import json
import statistics
import sys
import tempfile
import time

import numpy as np
import ray

sizes = {int(size): int(times) for size, times in json.loads(sys.argv[1]).items()}
with tempfile.TemporaryDirectory(prefix="ray-") as folder:
    ray.init(
        address="local", _temp_dir=folder, include_dashboard=False, num_cpus=1, object_store_memory=1536 << 20,
        _node_ip_address="127.0.0.1", log_to_driver=False, logging_level="error",
    )  # fmt: skip
    found = {}
    for size, times in sizes.items():
        data = np.random.default_rng(0).integers(0, 256, size, np.uint8)
        puts, gets = [], []
        for _ in range(times + 2):
            begun = time.perf_counter()
            ref = ray.put(data)
            puts.append(time.perf_counter() - begun)
            begun = time.perf_counter()
            got = ray.get(ref)
            gets.append(time.perf_counter() - begun)
            del got, ref
            gc.collect()
        found[size] = statistics.median(puts[2:]), statistics.median(gets[2:])
    print(json.dumps({"version": ray.__version__, "sizes": found}))
    ray.shutdown()
