"""The step that flags anomalous rows: an isolation forest, fitted by scikit-learn and stored as plain arrays."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from fairlead.data.recipes.batch_columns import Array, Frame, to_array
from fairlead.data.recipes.column_assembly import Matrix
from fairlead.data.recipes.statistics import Reservoir
from fairlead.data.recipes.step import Learner, State, Step

_SAMPLE = 16_384  # rows from which forest and threshold are learned
_ROWS = 8_192  # scored at a time, so that the work stays in the cache


class Flag(Step):
    """Flag the rows that are easiest to isolate (Liu, Ting and Zhou 2008).

    Every row gets a score in ANOMALY (0..1, ordinary rows near 0.4) and 0 or 1 in ANOMALY_flag; about ``part`` of the
    training part is flagged. ``drop`` removes flagged rows; the data set keeps a list of them.
    """

    name: ClassVar[str] = "flag"
    part: float = Field(default=0.01, gt=0, lt=0.5)
    trees: int = Field(default=100, ge=1, le=1_000)
    action: Literal["keep", "drop"] = "keep"
    into: str = "anomaly"
    seed: int = 0

    @property
    def changes_columns(self) -> bool:
        return True

    @property
    def drops_rows(self) -> bool:
        return self.action == "drop"

    def learner(self, columns: list[str], frame: Frame) -> Learner | None:
        return _Forest(columns, self)

    def apply(self, state: State, frame: Frame) -> None:
        forest = {name: np.asarray(values) for name, values in state["forest"].items()}
        found = anomaly_scores(
            _feature_matrix(frame, state["columns"]), forest, float(state["longest"]), int(state["depth"])
        )
        flags = found > state["threshold"]
        places = np.flatnonzero(flags)
        frame.flagged |= dict(zip(frame.row_numbers[places].tolist(), found[places].tolist(), strict=True))
        if self.drops_rows:
            frame.filter(~flags)
        else:
            frame.columns[self.into] = found.astype(np.float32)
            frame.columns[f"{self.into}_flag"] = flags.astype(np.uint8)


class _Forest:
    def __init__(self, columns: list[str], step: Flag) -> None:
        self._columns, self._step, self._sample = columns, step, Reservoir(_SAMPLE, step.seed)

    def summarise(self, frame: Frame) -> tuple[Array, Array, Array]:
        chosen, keys = self._sample.choose(frame.row_numbers)
        return frame.row_numbers[chosen], keys, _feature_matrix(frame, self._columns)[chosen]

    def add(self, seen: tuple[Array, Array, Array]) -> None:
        self._sample.add(*seen)

    def state(self) -> State:
        from sklearn.ensemble import IsolationForest

        rows, sample = self._sample.sample()
        if not len(rows):
            sample = np.zeros((1, max(1, len(self._columns))), np.float32)
        grown = IsolationForest(n_estimators=self._step.trees, random_state=self._step.seed).fit(sample)
        forest, depth = _tree_arrays(grown)
        longest = float(_average_path(np.array([grown.max_samples_]))[0]) or 1.0
        found = anomaly_scores(sample, forest, longest, depth)
        threshold = float(np.quantile(found, 1.0 - self._step.part))
        flagged = {str(row): float(score) for row, score in zip(rows, found, strict=False) if score > threshold}
        return {"columns": self._columns, "forest": forest, "longest": longest, "depth": depth,
                "threshold": threshold, "flagged": flagged}  # fmt: skip


def anomaly_scores(rows: Array, forest: dict[str, Array], longest: float, depth: int) -> Array:
    """Anomaly score of each row: 2 ** -(mean path length / expected path length)."""
    found = np.empty(len(rows))
    for begin in range(0, len(rows), _ROWS):
        some = np.ascontiguousarray(rows[begin : begin + _ROWS], np.float32)
        found[begin : begin + len(some)] = np.exp2(-_mean_path_lengths(some, forest, depth) / longest)
    return found


def _mean_path_lengths(rows: Array, forest: dict[str, Array], depth: int) -> Array:
    """Mean path length of each row. A leaf is its own child, so all rows take the same number of steps."""
    flat, at = rows.ravel(), np.arange(len(rows)) * rows.shape[1]
    feature, threshold, children, path = (forest[name] for name in ("feature", "threshold", "children", "path"))
    total = np.zeros(len(rows))
    for root in forest["roots"]:
        node = np.full(len(rows), root, np.int64)
        for _ in range(depth):
            right = flat[at + feature[node]] > threshold[node]
            node = children[2 * node + right]
        total += path[node]
    return total / len(forest["roots"])


def _tree_arrays(grown: Any) -> tuple[dict[str, Array], int]:
    """All trees in flat arrays that no library is needed to read, and the depth of the deepest."""
    parts: dict[str, list[Array]] = {"feature": [], "threshold": [], "children": [], "path": []}
    roots, at, deepest = [], 0, 0
    for tree in (each.tree_ for each in grown.estimators_):
        own = np.arange(tree.node_count)
        leaf = tree.children_left < 0
        left, right = np.where(leaf, own, tree.children_left), np.where(leaf, own, tree.children_right)
        depths = _node_depths(left, right)
        parts["feature"].append(np.where(leaf, 0, tree.feature).astype(np.int32))
        parts["threshold"].append(np.where(leaf, np.finfo(np.float64).max, tree.threshold))
        parts["children"].append((np.stack([left, right], 1).ravel() + at).astype(np.int32))
        parts["path"].append(np.where(leaf, depths + _average_path(tree.n_node_samples), 0.0))
        roots.append(at)
        at, deepest = at + tree.node_count, max(deepest, int(depths.max()))
    return {name: np.concatenate(each) for name, each in parts.items()} | {"roots": np.array(roots)}, deepest


def _node_depths(left: Array, right: Array) -> Array:
    """Depth of each node. A child always comes after its parent."""
    depths = np.zeros(len(left))
    for node in range(len(left)):
        if left[node] != node:
            depths[left[node]] = depths[right[node]] = depths[node] + 1
    return depths


def _average_path(samples: Array) -> Array:
    """Expected path length in a tree of ``samples`` rows: that of an unsuccessful search."""
    samples = np.asarray(samples, np.float64)
    inner = np.maximum(samples - 1, 1)
    many = 2.0 * (np.log(inner) + np.euler_gamma) - 2.0 * (samples - 1) / np.maximum(samples, 1)
    return np.where(samples <= 1, 0.0, np.where(samples == 2, 1.0, many))


def _feature_matrix(frame: Frame, columns: list[str]) -> Array:
    """The columns as one matrix. Missing values count as 0: impute first if that matters."""
    parts = [part if not hasattr(part, "type") else frame.numbers(name) for name, part in
             ((name, frame.columns[name]) for name in columns)]  # fmt: skip
    return np.nan_to_num(to_array(Matrix(frame.rows, parts, np.dtype(np.float32))))
