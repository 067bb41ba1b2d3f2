"""The worker of a stage: reads inputs from memory, calls the user's function, stores its result in memory."""

from __future__ import annotations

import math
import os
import socket
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cloudpickle
import msgspec

from fairlead import wire
from fairlead.errors import FairleadError, InvalidSpec, NotFound, RateLimited, Refused, Unavailable
from fairlead.local_wire import PlacedSpec
from fairlead.pipelines import argument_refs
from fairlead.pipelines import results as carry
from fairlead.pipelines.result_places import worker_result_store
from fairlead.training.channel import Channel, log
from fairlead.training.custom_loop.session import CustomSession
from fairlead.training.definition import Training
from fairlead.training.loading import check_params, describe, load_function
from fairlead.training.result import final_metrics
from fairlead.training.session import Session
from fairlead.training.worker import spec_from_environment
from fairlead.worker import main as train

VALUES = "fairlead_values"
"""The folder of a bundle with pickled arguments."""

MAX_ARTIFACTS = 1000
LONGEST_NAME = 200  # of a metric's name
_TEMPORARY = (Unavailable, Refused, RateLimited)
"""Errors of a grid that is unreachable or full now: a retry may succeed."""


class ResultsLost(Exception):
    """Results that this stage needs are no longer in memory."""

    def __init__(self, stages: list[str]) -> None:
        super().__init__(f"the results of {', '.join(stages)} are no longer in memory")
        self.stages = stages


@dataclass
class StageWork:
    """The stage to run, from its job's spec."""

    spec: PlacedSpec
    place: carry.ResultStore
    args: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    begun_s: float = field(default_factory=time.monotonic)

    @property
    def label(self) -> str:
        return f"stage/{self.spec.stage.get('pipeline', '')}/{self.spec.stage.get('name', '')}"

    def give(self, value: Any) -> dict[str, Any]:
        """Store the result for the next stages; its computing time is its cost."""
        return carry.put(value, self.place, self.label, time.monotonic() - self.begun_s)

    def call(self) -> Any:
        """Load code and inputs and call the function."""
        run = self.spec.run or ""
        function = load_function(run)
        outputs = getattr(function, "outputs", 0)
        function = getattr(function, "function", function)  # unwrap functions marked with @stage
        given = self.arguments()
        check_params(function, run, dict.fromkeys(given), typed=False)
        value = function(**given)
        if outputs and isinstance(value, tuple | list) and len(value) != outputs:
            raise InvalidSpec(f"returned {len(value)} values, but outputs is {outputs}", field=self.label,
                              fix=f"return {outputs}, or set @stage(outputs={len(value)})")  # fmt: skip
        return value

    def arguments(self) -> dict[str, Any]:
        """The arguments with other stages' results filled in; raises :class:`ResultsLost`."""
        results: dict[str, Any] = {}
        gone = []
        for stage, reference in self.inputs.items():
            try:
                results[stage] = carry.get(reference, self.place)
            except NotFound:
                gone.append(stage)
        if gone:
            raise ResultsLost(gone)

        def part(reference: argument_refs.Reference) -> Any:
            try:
                return reference.part_of(results[reference.stage])
            except (LookupError, TypeError):
                what = carry.describe_value(results.get(reference.stage))
                raise InvalidSpec(f"there is no such part in {what}", field=f"args: {reference}",
                                  fix=f"look at what {reference.stage} returns") from None  # fmt: skip

        return dict(argument_refs.resolve(dict(self.args), part, _load_pickled))


def preload() -> None:
    """Import what most stages need in the fork server: importing scikit-learn takes a second."""
    import sklearn.ensemble
    import sklearn.linear_model
    import sklearn.model_selection
    import sklearn.pipeline  # noqa: F401


def main(spec: PlacedSpec, worker: str, channel: socket.socket) -> int:
    """Run as this worker in the present process; returns its exit code. The working folder holds the user's code."""
    work = StageWork(spec, worker_result_store(spec), spec.params.get("args", {}), spec.params.get("inputs", {}))
    if spec.stage.get("trains"):
        folder = Path(spec.memory_folder)
        own = msgspec.structs.replace(spec, memory_folder=str(_snapshot_folder(folder, spec.job)), params={})
        return train(
            own, worker, channel, lambda: _load_training(work), lambda session: _store_training_result(session, work)
        )
    line = Channel(channel)
    use_cores(max(1, int(spec.cpu + 1e-9)))
    try:
        return _FunctionWorker(work, line).run()
    except ResultsLost as error:
        line.send(wire.Raised(error=str(error), permanent=True, missing=error.stages))
        return 1
    except (SyntaxError, FairleadError) as error:
        return _report_error(line, error, permanent=not isinstance(error, _TEMPORARY))
    except (Exception, SystemExit) as error:  # noqa: BLE001 (the process's edge: report whatever user code raises)
        return _report_error(line, error, permanent=False)


def _report_error(line: Channel, error: BaseException, *, permanent: bool) -> int:
    text, trace = describe(error)
    log(f"ends: {text}")
    if trace:
        print(trace, flush=True)
    line.send(wire.Raised(error=text, trace=trace, permanent=permanent))
    return 1


def use_cores(cores: int) -> None:
    """Let libraries loaded before the fork (with one core) use all cores of this worker."""
    if cores > 1 and "threadpoolctl" in sys.modules:  # in a venv of the user's, variables set this at start-up
        sys.modules["torch"].set_num_threads(cores)
        sys.modules["threadpoolctl"].threadpool_limits(cores)


class _FunctionWorker:
    """Runs a plain function. Its state is unknown, so when told to leave it exits and starts over later."""

    def __init__(self, work: StageWork, line: Channel) -> None:
        self._work, self._line = work, line
        self._generation = 0

    def run(self) -> int:
        self._line.send(wire.Ready())
        while True:
            match self._line.take():
                case wire.Quit():
                    return 0
                case wire.Leave() as leave:
                    self._line.send(wire.Left(leave.generation, 0))
                    return 0
                case wire.Join() as join:
                    self._generation = join.generation
                    self._line.send(wire.Joined(join.generation, 0))
                    return self._run_function()
                case _:
                    pass

    def _run_function(self) -> int:
        threading.Thread(target=self._listen, name="fairlead-listening", daemon=True).start()
        value = self._work.call()
        if isinstance(value, Training):
            raise InvalidSpec("returned a fairlead.Training without declaring it", field=self._work.label,
                              fix="annotate the function with -> fairlead.Training, or set trains: true")  # fmt: skip
        reference = self._work.give(value)
        self._line.send(wire.Finished(self._generation, 0, figures(value), artifacts(), reference))
        return 0

    def _listen(self) -> None:
        """Handles messages in a thread of its own: user code cannot be interrupted to ask."""
        while True:
            match self._line.take():
                case wire.Leave() as leave:
                    log(f"generation {leave.generation}: told to leave; its computation is lost")
                    self._line.send(wire.Left(leave.generation, 0))
                    os._exit(0)
                case wire.Quit():
                    os._exit(0)
                case _:
                    pass


def figures(value: Any) -> dict[str, float]:
    """The numbers in a result, shown as the job's metrics."""
    named = value if isinstance(value, dict) and len(value) <= 100 else {"value": value}
    return {name: float(each) for name, each in named.items() if _is_name(name) and _is_figure(each)}


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and len(name) <= LONGEST_NAME and carry.is_text(name)


def _is_figure(value: Any) -> bool:
    """True for a number that a float can hold."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an integer with hundreds of digits
        return False


def artifacts() -> list[str]:
    """The files in the stage's output folder."""
    folder = Path(os.environ.get("FAIRLEAD_OUTPUT", "output"))
    found = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return found[:MAX_ARTIFACTS]


def _load_pickled(name: str) -> Any:
    """A value that its author put into the bundle; unpickled only here, in the author's own worker."""
    path = Path(VALUES) / f"{name}.cloudpickle"
    if not name.isalnum() or not path.is_file():
        raise InvalidSpec(f"there is no value {name} in the code bundle", field="args", fix="run the pipeline again")
    return cloudpickle.loads(path.read_bytes())


# ---------------------------------------------------------------- stages that train


def _load_training(work: StageWork) -> Training:
    try:
        training = work.call()
    except ResultsLost as error:
        raise TrainingResultsLost(error.stages) from None
    if not isinstance(training, Training):
        raise InvalidSpec(f"returned {type(training).__name__}, not a fairlead.Training", field=work.label,
                          fix="return one, or leave out workers: a plain function runs in one worker")  # fmt: skip
    return training


class TrainingResultsLost(FairleadError):
    """The same as :class:`ResultsLost`, for training workers, which report errors in their own way."""

    def __init__(self, stages: list[str]) -> None:
        super().__init__(str(ResultsLost(stages)))
        self.missing = stages


def _store_training_result(session: Session | CustomSession, work: StageWork) -> dict[str, Any]:
    """Store a training's result for the next stages: its model's state and its metrics."""
    model = getattr(session, "model", None)
    state = {} if model is None else dict(model.state_dict())
    metrics = session.history.last if isinstance(session, CustomSession) else final_metrics(session)
    return work.give({"state": state, "metrics": dict(metrics)})


def _snapshot_folder(folder: Path, job: str) -> Path:
    """The folder for a training stage's snapshots, separate from results."""
    made = folder / f"snapshots-{job}" / folder.name
    made.mkdir(parents=True, exist_ok=True)
    return made


if __name__ == "__main__":
    code = main(*spec_from_environment())
    os._exit(code)
