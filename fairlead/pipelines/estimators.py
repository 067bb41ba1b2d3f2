"""What stages of scikit-learn estimators run: fit in a worker, with joblib over the cores that the worker was given."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from fairlead.errors import InvalidSpec

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def fit(estimator: Any, X: Any, y: Any = None, sample_weight: Any = None) -> Any:
    """The estimator, fitted: an object, or the dotted name of a class with its ``params``."""
    made = _made(estimator)
    given = {} if sample_weight is None else {"sample_weight": sample_weight}
    with in_parallel(made):
        return made.fit(X, **given) if y is None else made.fit(X, y, **given)


def call(fitted: Any, method: str, X: Any, y: Any = None) -> Any:
    """What a method of a fitted estimator gives: predict, transform, score, ..."""
    if not hasattr(fitted, method):
        raise InvalidSpec(f"{type(fitted).__name__} has no {method}", field="method", fix="call what it has")
    with in_parallel(fitted):
        return getattr(fitted, method)(X) if y is None else getattr(fitted, method)(X, y)


@contextlib.contextmanager
def in_parallel(estimator: Any) -> Iterator[int]:
    """Let joblib use all cores that this worker was given, and no more: others have theirs.

    How it divides its work stays its own choice: forests share memory between threads, searches start processes.
    """
    import joblib

    cores = cores_given()
    before = _jobs(estimator)
    if before:
        estimator.set_params(**dict.fromkeys(before, cores))
    try:
        with joblib.parallel_config(n_jobs=cores), _alone_in_processes():
            yield cores
    finally:
        if before:
            estimator.set_params(**before)


def cores_given() -> int:
    """To this worker."""
    return max(1, int(os.environ.get("OMP_NUM_THREADS", "1")))


def _jobs(estimator: Any) -> dict[str, int]:
    """The settings, also of what is inside it, that would count the machine's cores instead of its own."""
    params = estimator.get_params(deep=True) if hasattr(estimator, "get_params") else {}
    asked = {name: value for name, value in params.items() if name.rpartition("__")[2] == "n_jobs"}
    return {n: jobs for n, jobs in asked.items() if isinstance(jobs, int) and (jobs < 0 or jobs > cores_given())}


@contextlib.contextmanager
def _alone_in_processes() -> Iterator[None]:
    """Processes that joblib starts meanwhile compute with one thread each: together they have the worker's cores."""
    before = {name: os.environ[name] for name in THREADS if name in os.environ}
    os.environ.update(dict.fromkeys(before, "1"))
    try:
        yield
    finally:
        os.environ.update(before)


def _made(estimator: Any) -> Any:
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
