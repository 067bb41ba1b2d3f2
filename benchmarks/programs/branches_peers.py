"""The same twelve functions without a platform: one after the other, or in a process pool; prints what each took."""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from typing import Any

import sklearn.cluster
import sklearn.ensemble
import sklearn.linear_model
import sklearn.preprocessing  # noqa: F401 (loaded before the pool forks, as it is in a platform's fork server)
from branches import MODELS, Timed, fit, judge, prepare


def serial(size: float) -> dict[str, Timed]:
    done = {}
    for model in MODELS:
        data = prepare(model, size)
        fitted = fit(model, data)
        done |= {f"prepare-{model}": data, f"fit-{model}": fitted, f"judge-{model}": judge(model, fitted, data)}
    return done


def pool(size: float, workers: int) -> dict[str, Timed]:
    """Each function as soon as what it takes is there; results come and go through pipes, pickled."""
    done: dict[str, Timed] = {}
    with ProcessPoolExecutor(workers) as executor:
        under_way: dict[Future[Any], str] = {executor.submit(prepare, each, size): f"prepare-{each}" for each in MODELS}
        while under_way:
            for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                name = under_way.pop(future)
                done[name] = future.result()
                kind, _, model = name.partition("-")
                data = done[f"prepare-{model}"]
                if kind == "prepare":
                    under_way[executor.submit(fit, model, data)] = f"fit-{model}"
                elif kind == "fit":
                    under_way[executor.submit(judge, model, done[name], data)] = f"judge-{model}"
    return done


if __name__ == "__main__":
    way, scale, cores = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    begun_s = time.time()
    found = serial(scale) if way == "serial" else pool(scale, cores)
    took_s = time.time() - begun_s
    stages = {name: {key: each[key] for key in ("began_s", "ended_s", "cpu_s")} for name, each in found.items()}
    print(json.dumps({"took_s": took_s, "begun_s": begun_s, "stages": stages}))
