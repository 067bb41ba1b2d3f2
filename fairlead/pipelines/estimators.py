"""What stages of scikit-learn estimators run: fit in a worker, with joblib over the cores that the worker was given."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from fairlead.errors import InvalidSpec


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
    """Let joblib use all cores that this worker was given, and no more: others have theirs."""
    import joblib

    cores = max(1, int(os.environ.get("OMP_NUM_THREADS", "1")))
    before = _jobs(estimator)
    if before is not None and (before < 0 or before > cores):  # it would count the machine's cores, not its own
        estimator.set_params(n_jobs=cores)
    try:
        if cores == 1:
            yield cores
        else:
            with joblib.parallel_config(n_jobs=cores, inner_max_num_threads=1, backend="loky"):
                yield cores
    finally:
        if before is not None:
            estimator.set_params(n_jobs=before)


def _jobs(estimator: Any) -> int | None:
    params = estimator.get_params(deep=False) if hasattr(estimator, "get_params") else {}
    found = params.get("n_jobs")
    return found if isinstance(found, int) else None


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
