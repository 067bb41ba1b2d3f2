"""What a worker with a loop of its own keeps from one generation to the next: the state that was offered, and rows."""

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
from fairlead.training.result import DataMade, put
from fairlead.training.seeds import mix
from fairlead.training.snapshots.flat_state import FlatState, opened


class Rows:
    """What was reported, a row each; steps may be left out."""

    def __init__(self) -> None:
        self._rows: list[dict[str, float]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, row: dict[str, float]) -> None:
        self._rows.append(row)

    def forget_after(self, step: int) -> None:
        """These steps will be taken again."""
        self._rows = [row for row in self._rows if row["step"] <= step]

    def recent(self) -> int:
        return len(self._rows)

    def rows(self, after: int) -> Iterator[dict[str, float]]:
        return iter(self._rows[after:])

    @property
    def last(self) -> dict[str, float]:
        """The newest figures under their own names."""
        known = self._rows[-1] if self._rows else {}
        return {name: value for name, value in known.items() if name not in ("step", "epoch", "time_s")}

    def state(self) -> list[dict[str, float]]:
        return [dict(row) for row in self._rows]

    def load(self, rows: list[dict[str, float]]) -> None:
        self._rows = [dict(row) for row in rows]


class CustomSession:
    """Stands where a Session stands for a Training with a model: in agreements, snapshots and reports."""

    spoiled = False  # whatever is lost, the loop can begin anew
    adrift = False  # what it offers is its own business
    steps_per_epoch = 1
    epoch_is_open = False

    def __init__(self, training: Training, seed: int) -> None:
        assert training.loop is not None
        self.training, self.loop = training, training.loop
        self.seed = mix(training.seed, seed)
        self.device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")
        self.history = Rows()
        self.step = 0  # that was reported last
        self.total_steps = 0
        self.kept: Any = None  # the newest state that this worker holds
        self.kept_step = 0
        self.live = False  # whether the kept state is as new as any
        self.returned: Any = None

    @property
    def point(self) -> int:
        return 2 * self.kept_step

    @property
    def made(self) -> dict[str, Any]:
        """The data sets that the loop made."""
        return {"sets": self.returned.sets} if isinstance(self.returned, DataMade) and self.returned.sets else {}

    def description(self) -> list[str]:
        return [f"the loop {getattr(self.loop, '__qualname__', 'of its own')}", f"seed {self.seed}"]

    def keep(self, state: Any) -> None:
        """The generation ends with this state, after the step that was reported last."""
        self.kept, self.kept_step, self.live = state, self.step, True

    def undo_half_step(self) -> None:
        """After a loss: what lies between the last snapshot and now is gone, on every worker alike."""
        self.live, self.kept = False, None
        self.step = self.kept_step = 0

    def begin(self) -> None:
        """A generation goes on from the kept state, which grows old from here on."""
        self.live = False
        self.step = self.kept_step
        self.history.forget_after(self.step)

    # ------------------------------------------------------------ state as bytes

    def state(self, kept: Any, step: int) -> dict[str, Any]:
        return {"step": step, "state": kept, "history": self.history.state()}

    def whole(self) -> dict[str, Any]:
        return self.state(self.kept, self.kept_step)

    def dump(self) -> bytes:
        buffer = io.BytesIO()
        torch.save(self.whole(), buffer)
        return buffer.getvalue()

    def load(self, data: bytes | FlatState) -> None:
        try:
            found: Mapping[str, Any] = opened(data, self.device)
        except pickle.UnpicklingError as error:
            raise InvalidSpec(
                f"the snapshot holds more than plain values ({str(error).splitlines()[0]})", field="snapshot",
                fix="offer tensors, numbers, texts, lists and maps only",
            ) from None  # fmt: skip
        self.kept, self.kept_step = found["state"], int(found["step"])
        self.step, self.live = self.kept_step, True
        self.history.load(found["history"])

    # ------------------------------------------------------------ result

    def write_result(self, folder: Path) -> list[str]:
        """Figures and history, and the model if the loop returned one: a module, or a map of tensors."""
        output = folder / "output"
        output.mkdir(parents=True, exist_ok=True)
        figures = self.history.last | {"steps": self.step}
        put(output / "metrics.json", lambda path: path.write_text(json.dumps(figures, indent=2) + "\n"))
        lines = "".join(json.dumps(row) + "\n" for row in self.history.rows(0))
        put(output / "history.jsonl", lambda path: path.write_text(lines))
        names = ["metrics.json", "history.jsonl"]
        model = self.returned
        if isinstance(model, torch.nn.Module):
            put(output / "model.safetensors", lambda path: save_model(model, str(path)))
            names.insert(0, "model.safetensors")
        elif isinstance(model, Mapping) and model and all(isinstance(each, torch.Tensor) for each in model.values()):
            tensors = {str(name): tensor.detach().contiguous().clone() for name, tensor in model.items()}
            put(output / "model.safetensors", lambda path: save_file(tensors, str(path)))
            names.insert(0, "model.safetensors")
        return names
