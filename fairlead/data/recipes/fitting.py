"""Fits recipes: as few passes over the training part as the steps allow, in parallel and bounded memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from fairlead.data.errors import BadData
from fairlead.data.recipes.batch_columns import Array, Frame, column_kinds
from fairlead.data.recipes.categories import Encode
from fairlead.data.recipes.outputs import Output, describe_outputs
from fairlead.data.recipes.statistics import splitmix64
from fairlead.data.recipes.step import Learner, State, Step
from fairlead.data.recipes.texts import Tokenise
from fairlead.data.spool import BatchSource, Spool
from fairlead.data.thread_map import map_in_order, thread_count
from fairlead.data.train_test_split import Part


@dataclass(frozen=True, slots=True)
class Learned:
    """The result of fitting: a state per step, the columns that go in and come out, and the number of rows."""

    states: tuple[State, ...]
    inputs: dict[str, str]  # column -> its Arrow type
    outputs: tuple[Output, ...]
    rows: int


def learn(
    steps: Sequence[Step], target: str | None, source: BatchSource, *, part: Part | None = None,
    sample: float | None = None, seed: int = 0, workers: int | None = None,
) -> Learned:  # fmt: skip
    """Learn every step from the rows of the training part and from nothing else."""
    chosen = _TrainingRows(
        source if isinstance(source, Spool) else Spool(source), part, sample, seed, thread_count(workers)
    )
    probe = chosen.probe()
    chosen.words = _text_to_encode(steps, target, probe)
    states: list[State | None] = [None] * len(steps)
    rows = 0
    while None in states:
        learners, _ = _ready_learners(steps, target, states, probe.copy())
        if learners:
            rows = _learning_pass(steps, states, learners, chosen)
    done = tuple(state for state in states if state is not None)
    _, out = _ready_learners(steps, target, states, probe.copy())
    inputs = {field.name: str(field.type) for field in source.schema}
    return Learned(done, inputs, describe_outputs(steps, target, done, out), rows)


def _text_to_encode(steps: Sequence[Step], target: str | None, probe: Frame) -> list[str]:
    """Text columns that a step encodes. They stay dictionary-encoded, so that each distinct value is looked up once."""
    found: set[str] = set()
    for step in steps:
        if isinstance(step, Encode) and (step.uses_patterns or set(step.columns) <= set(probe.columns)):
            found |= set(step.resolve(probe, target))
        elif isinstance(step, Tokenise):
            found -= set(probe.columns if step.uses_patterns else step.columns)
    kind = column_kinds(probe, sorted(found))
    return [name for name in sorted(found) if kind[name] == "text"]


def _ready_learners(
    steps: Sequence[Step], target: str | None, states: list[State | None], frame: Frame
) -> tuple[dict[int, Learner], Frame]:
    """The steps that can learn in the next pass: no unlearned step before them changes their columns."""
    learners: dict[int, Learner] = {}
    changing: set[str] = set()
    renaming = False
    for place, step in enumerate(steps):
        state = states[place]
        if state is not None:
            step.apply(state, frame)
            continue
        if renaming and (step.uses_patterns or not set(step.columns) <= set(frame.columns)):
            break  # the columns are known only after the next pass
        columns = step.resolve(frame, target)
        if not set(columns) & changing:
            learner = step.learner(columns, frame)
            if learner is None:
                states[place] = state = {"columns": columns}
                step.apply(state, frame)
                continue
            learners[place] = learner
        changing |= set(columns)
        renaming = renaming or step.changes_columns
        if step.drops_rows:
            break  # later steps see other rows
    return learners, frame


def _learning_pass(
    steps: Sequence[Step], states: list[State | None], learners: dict[int, Learner], chosen: _TrainingRows
) -> int:
    """One pass over the training part; returns its rows."""

    def summarise(frame: Frame) -> tuple[int, dict[int, Any]]:
        rows, seen = frame.rows, {}
        for place in range(max(learners) + 1):
            state = states[place]
            if state is not None:
                steps[place].apply(state, frame)
            elif place in learners:
                seen[place] = learners[place].summarise(frame)
        return rows, seen

    total = 0
    for rows, seen in chosen.each(summarise):
        total += rows
        for place, found in seen.items():
            learners[place].add(found)
    for place, learner in learners.items():
        states[place] = learner.state()
    return total


class _TrainingRows:
    """The rows of a source to learn from: a part of it, a sample, or both."""

    def __init__(self, spool: Spool, part: Part | None, sample: float | None, seed: int, workers: int) -> None:
        self._spool, self._part, self._sample, self._seed, self._workers = spool, part, sample, seed, workers
        self.words: list[str] = []

    def each(self, summarise: Any) -> Any:
        """The summary of every batch, in the order of the source."""
        return map_in_order(lambda each: summarise(self._frame(*each)), self._spool.numbered(), self._workers)

    def probe(self) -> Frame:
        """The first batch, to resolve columns."""
        batch = self._spool.first_batch()
        if batch is None:
            raise BadData("the training part", "has no rows", fix="give a source that is not empty")
        return Frame.from_batch(batch)

    def _frame(self, place: int, first: int, batch: pa.RecordBatch) -> Frame:
        batch = self._coded(place, batch)
        mask: Array | None = None
        if self._part is not None:
            mask = self._part.mask(first, batch)
        if self._sample is not None:
            lots = splitmix64(np.arange(first, first + batch.num_rows, dtype=np.uint64), self._seed + 1)
            drawn = lots < np.uint64(min(self._sample, 1.0) * (2**64 - 1025))
            mask = drawn if mask is None else mask & drawn
        if mask is None:
            return Frame.from_batch(batch, first)
        return Frame.from_batch(batch.filter(pa.array(mask)), places=first + np.flatnonzero(mask))

    def _coded(self, place: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = {name: batch.column(name) for name in self.words}
        plain = {name: column for name, column in columns.items() if not pa.types.is_dictionary(column.type)}
        for name, column in plain.items():
            coded = column.dictionary_encode()
            if len(coded.dictionary) <= max(256, batch.num_rows // 4):
                batch = batch.set_column(batch.schema.get_field_index(name), name, coded)
        if plain:
            self._spool.replace_batch(place, batch)
        return batch
