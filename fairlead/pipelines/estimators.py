"""Runs the stages of scikit-learn estimators: fits in a worker, with joblib over the worker's cores."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from fairlead.errors import InvalidSpec

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def fit(estimator: Any, X: Any, y: Any = None, sample_weight: Any = None) -> Any:
    """The fitted estimator, given as an object or as a class name with ``params``."""
    made = _build_estimator(estimator)
    given = {} if sample_weight is None else {"sample_weight": sample_weight}
    with in_parallel(made):
        return made.fit(X, **given) if y is None else made.fit(X, y, **given)


def call(fitted: Any, method: str, X: Any, y: Any = None) -> Any:
    """The result of a method of a fitted estimator: predict, transform, score, ..."""
    if not hasattr(fitted, method):
        raise InvalidSpec(f"{type(fitted).__name__} has no {method}", field="method", fix="call a method that it has")
    with in_parallel(fitted):
        return getattr(fitted, method)(X) if y is None else getattr(fitted, method)(X, y)


@contextlib.contextmanager
def in_parallel(estimator: Any) -> Iterator[int]:
    """Let joblib use all cores of this worker, and no more.

    How it divides its work stays its choice: forests share memory between threads, searches start processes.
    """
    import joblib

    cores = worker_cores()
    params = estimator.get_params(deep=True) if hasattr(estimator, "get_params") else {}
    own = n_jobs_overrides({name: jobs for name, jobs in params.items() if name.rpartition("__")[2] == "n_jobs"}, cores)
    if own:
        estimator.set_params(**own)
    try:
        with joblib.parallel_config(n_jobs=cores), _single_threaded_processes(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*n_jobs.*", FutureWarning)  # from estimators that ignore n_jobs
            yield cores
    finally:
        if own:
            estimator.set_params(**{name: params[name] for name in own})


def worker_cores() -> int:
    """The number of cores of this worker."""
    return max(1, int(os.environ.get("OMP_NUM_THREADS", "1")))


def n_jobs_overrides(asked: Mapping[str, Any], cores: int) -> dict[str, int]:
    """By parameter name (``estimator__n_jobs``): the n_jobs to set where the asked one is wrong.

    The outermost estimator uses all cores unless it asks for fewer: joblib would use one for None with threads, and the
    machine's for -1. Nested estimators get one: the cores are taken.
    """
    owners = {name: name.removesuffix("n_jobs") for name in asked}
    found = {}
    for name, jobs in asked.items():
        inside = any(other != owners[name] and owners[name].startswith(other) for other in owners.values())
        if isinstance(jobs, int) and not (jobs < 0 or jobs > (1 if inside else cores)):
            continue
        if isinstance(jobs, int) or (jobs is None and not inside):
            found[name] = 1 if inside else cores
    return found


@contextlib.contextmanager
def _single_threaded_processes() -> Iterator[None]:
    """Processes that joblib starts meanwhile compute with one thread each; together they use the worker's cores."""
    before = {name: os.environ[name] for name in THREADS if name in os.environ}
    os.environ.update(dict.fromkeys(before, "1"))
    try:
        yield
    finally:
        os.environ.update(before)


def _build_estimator(estimator: Any) -> Any:
    if not isinstance(estimator, dict):
        return estimator
    import importlib

    dotted = str(estimator.get("class", ""))
    module, _, name = dotted.rpartition(".")
    try:
        kind = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError):
        raise InvalidSpec(f"there is no {dotted}", field="estimator", value=dotted,
                          fix="write its whole name, like sklearn.svm.SVC") from None  # fmt: skip
    try:
        return kind(**estimator.get("params", {}))
    except TypeError as error:
        raise InvalidSpec(str(error), field="params", fix=f"see what {dotted} takes") from None
