"""The life of a worker that runs a stage: inputs from memory, the user's function, its result into memory."""

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
"""The folder of a bundle with arguments that went by value."""

MAX_ARTIFACTS = 1000
LONGEST_NAME = 200  # of a figure that is shown
_TEMPORARY = (Unavailable, Refused, RateLimited)
"""A grid that cannot be reached or has no room now: another try may find it otherwise."""


class ResultsLost(Exception):
    """Results that this stage needs are not in memory any more."""

    def __init__(self, stages: list[str]) -> None:
        super().__init__(f"what {', '.join(stages)} gave is not in memory any more")
        self.stages = stages


@dataclass
class StageWork:
    """What a worker is to do, as its job says."""

    spec: PlacedSpec
    place: carry.ResultStore
    args: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    begun_s: float = field(default_factory=time.monotonic)

    @property
    def label(self) -> str:
        return f"stage/{self.spec.stage.get('pipeline', '')}/{self.spec.stage.get('name', '')}"

    def give(self, value: Any) -> dict[str, Any]:
        """Keep what it gave for the next stages; making it again would take as long as it did."""
        return carry.put(value, self.place, self.label, time.monotonic() - self.begun_s)

    def call(self) -> Any:
        """Load code and inputs, and call the function."""
        run = self.spec.run or ""
        function = load_function(run)
        outputs = getattr(function, "outputs", 0)
        function = getattr(function, "function", function)  # what is marked with @stage is wrapped
        given = self.arguments()
        check_params(function, run, dict.fromkeys(given), typed=False)
        value = function(**given)
        if outputs and isinstance(value, tuple | list) and len(value) != outputs:
            raise InvalidSpec(f"returned {len(value)} values, and outputs says {outputs}", field=self.label,
                              fix=f"return {outputs}, or say @stage(outputs={len(value)})")  # fmt: skip
        return value

    def arguments(self) -> dict[str, Any]:
        """The arguments with the results of other stages in their places; raises :class:`ResultsLost`."""
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
    """Import what most stages need, for the fork server: each that uses scikit-learn would pay a second for it."""
    import sklearn.ensemble
    import sklearn.linear_model
    import sklearn.model_selection
    import sklearn.pipeline  # noqa: F401


def main(spec: PlacedSpec, worker: str, channel: socket.socket) -> int:
    """Live as this worker in the present process; returns its exit code. The working folder holds the user's code."""
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
    except (Exception, SystemExit) as error:  # noqa: BLE001 (the process's edge: whatever user code raises is reported)
        return _report_error(line, error, permanent=False)


def _report_error(line: Channel, error: BaseException, *, permanent: bool) -> int:
    text, trace = describe(error)
    log(f"ends: {text}")
    if trace:
        print(trace, flush=True)
    line.send(wire.Raised(error=text, trace=trace, permanent=permanent))
    return 1


def use_cores(cores: int) -> None:
    """Let libraries that were loaded before the fork, for one core, use as many as this worker was given."""
    if cores > 1 and "threadpoolctl" in sys.modules:  # in an environment of the user's own, variables said it in time
        sys.modules["torch"].set_num_threads(cores)
        sys.modules["threadpoolctl"].threadpool_limits(cores)


class _FunctionWorker:
    """A plain function: it has no state that we know, so when it is told to leave it ends, and starts over later."""

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
            raise InvalidSpec("returned a fairlead.Training and did not say that it would", field=self._work.label,
                              fix="annotate the function with -> fairlead.Training, or say trains: true")  # fmt: skip
        reference = self._work.give(value)
        self._line.send(wire.Finished(self._generation, 0, figures(value), artifacts(), reference))
        return 0

    def _listen(self) -> None:
        """In a thread of its own: user code has no place where it could be asked."""
        while True:
            match self._line.take():
                case wire.Leave() as leave:
                    log(f"generation {leave.generation}: told to leave; what was computed is lost")
                    self._line.send(wire.Left(leave.generation, 0))
                    os._exit(0)
                case wire.Quit():
                    os._exit(0)
                case _:
                    pass


def figures(value: Any) -> dict[str, float]:
    """The numbers that a result consists of, to be shown beside the job."""
    named = value if isinstance(value, dict) and len(value) <= 100 else {"value": value}
    return {name: float(each) for name, each in named.items() if _is_name(name) and _is_figure(each)}


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and len(name) <= LONGEST_NAME and carry.is_text(name)


def _is_figure(value: Any) -> bool:
    """Whether it is a number that a float can hold."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # a whole number with hundreds of digits
        return False


def artifacts() -> list[str]:
    """The files that the stage left in its output folder."""
    folder = Path(os.environ.get("FAIRLEAD_OUTPUT", "output"))
    found = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return found[:MAX_ARTIFACTS]


def _load_pickled(name: str) -> Any:
    """A value that its author put into the bundle, opened only here: in the author's own worker."""
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
    """The same as :class:`ResultsLost`, for the worker of a training, which tells of errors in its own way."""

    def __init__(self, stages: list[str]) -> None:
        super().__init__(str(ResultsLost(stages)))
        self.missing = stages


def _store_training_result(session: Session | CustomSession, work: StageWork) -> dict[str, Any]:
    """What a training gives to the next stages: the state of its model, and its metrics."""
    model = getattr(session, "model", None)
    state = {} if model is None else dict(model.state_dict())
    metrics = session.history.last if isinstance(session, CustomSession) else final_metrics(session)
    return work.give({"state": state, "metrics": dict(metrics)})


def _snapshot_folder(folder: Path, job: str) -> Path:
    """A stage that trains keeps its snapshots apart from results."""
    made = folder / f"snapshots-{job}" / folder.name
    made.mkdir(parents=True, exist_ok=True)
    return made


if __name__ == "__main__":
    code = main(*spec_from_environment())
    os._exit(code)
