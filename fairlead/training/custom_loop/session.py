"""What a worker with a custom loop keeps from one generation to the next: the offered state and the history."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file, save_model

from fairlead.errors import InvalidSpec
from fairlead.training.definition import Training
from fairlead.training.result import DataMade, write_atomically
from fairlead.training.seeds import mix
from fairlead.training.snapshots.flat_state import FlatState, read_state


class ReportedRows:
    """The reported rows; steps may be missing."""

    def __init__(self) -> None:
        self._rows: list[dict[str, float]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, row: dict[str, float]) -> None:
        self._rows.append(row)

    def forget_after(self, step: int) -> None:
        """Drop the rows after this step, because these steps are taken again."""
        self._rows = [row for row in self._rows if row["step"] <= step]

    def repeat_from(self) -> int:
        return len(self._rows)

    def rows(self, after: int) -> Iterator[dict[str, float]]:
        return iter(self._rows[after:])

    @property
    def last(self) -> dict[str, float]:
        """The newest row's loss and metrics."""
        known = self._rows[-1] if self._rows else {}
        return {name: value for name, value in known.items() if name not in ("step", "epoch", "time_s")}

    def state(self) -> list[dict[str, float]]:
        return [dict(row) for row in self._rows]

    def load(self, rows: list[dict[str, float]]) -> None:
        self._rows = [dict(row) for row in rows]


class CustomSession:
    """The session of a Training with a custom loop, for agreement, snapshots and reports."""

    weights_lost = False  # the loop can always start again
    diverged = False  # ranks with equal positions count as equal
    steps_per_epoch = 1
    evaluation_due = False

    def __init__(self, training: Training, seed: int) -> None:
        assert training.loop is not None
        self.training, self.loop = training, training.loop
        self.seed = mix(training.seed, seed)
        self.device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")
        self.history = ReportedRows()
        self.step = 0  # the last that was reported
        self.total_steps = 0
        self.kept: Any = None  # the newest state that this worker has
        self.kept_step = 0
        self.live = False  # whether the kept state is as new as any rank's
        self.returned: Any = None

    @property
    def position(self) -> int:
        return 2 * self.kept_step

    @property
    def made_datasets(self) -> dict[str, Any]:
        """The data sets that the loop made."""
        return {"sets": self.returned.sets} if isinstance(self.returned, DataMade) and self.returned.sets else {}

    def description(self) -> list[str]:
        return [f"the loop {getattr(self.loop, '__qualname__', 'of its own')}", f"seed {self.seed}"]

    def keep(self, state: Any) -> None:
        """The generation ends with this state, which belongs to the step that was reported last."""
        self.kept, self.kept_step, self.live = state, self.step, True

    def roll_back_step(self) -> None:
        """After a loss: discard the state on every worker alike; the next generation starts from a snapshot."""
        self.live, self.kept = False, None
        self.step = self.kept_step = 0

    def begin(self) -> None:
        """Start a generation from the kept state, which is outdated from then on."""
        self.live = False
        self.step = self.kept_step
        self.history.forget_after(self.step)

    # ------------------------------------------------------------ state as bytes

    def state(self, kept: Any, step: int) -> dict[str, Any]:
        return {"step": step, "state": kept, "history": self.history.state()}

    def full_state(self) -> dict[str, Any]:
        return self.state(self.kept, self.kept_step)

    def dump(self) -> bytes:
        buffer = io.BytesIO()
        torch.save(self.full_state(), buffer)
        return buffer.getvalue()

    def load(self, data: bytes | FlatState) -> None:
        try:
            found: Mapping[str, Any] = read_state(data, self.device)
        except pickle.UnpicklingError as error:
            raise InvalidSpec(
                f"the snapshot holds more than plain values ({str(error).splitlines()[0]})", field="snapshot",
                fix="offer tensors, numbers, strings, lists and maps only",
            ) from None  # fmt: skip
        self.kept, self.kept_step = found["state"], int(found["step"])
        self.step, self.live = self.kept_step, True
        self.history.load(found["history"])

    # ------------------------------------------------------------ result

    def write_result(self, folder: Path) -> list[str]:
        """Write metrics and history, and the model if the loop returned one: a module, or a map of tensors."""
        output = folder / "output"
        output.mkdir(parents=True, exist_ok=True)
        figures = self.history.last | {"steps": self.step}
        write_atomically(output / "metrics.json", lambda path: path.write_text(json.dumps(figures, indent=2) + "\n"))
        lines = "".join(json.dumps(row) + "\n" for row in self.history.rows(0))
        write_atomically(output / "history.jsonl", lambda path: path.write_text(lines))
        names = ["metrics.json", "history.jsonl"]
        model = self.returned
        if isinstance(model, torch.nn.Module):
            write_atomically(output / "model.safetensors", lambda path: save_model(model, str(path)))
            names.insert(0, "model.safetensors")
        elif isinstance(model, Mapping) and model and all(isinstance(each, torch.Tensor) for each in model.values()):
            tensors = {str(name): tensor.detach().contiguous().clone() for name, tensor in model.items()}
            write_atomically(output / "model.safetensors", lambda path: save_file(tensors, str(path)))
            names.insert(0, "model.safetensors")
        return names
