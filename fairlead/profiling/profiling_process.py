"""Profiles a worker's model while it trains: in a forked process beside it, with CPU time that is left over.

User code runs where it runs anyway, inside the tenant's sandbox, and the platform gets plain values.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import torch

from fairlead import wire
from fairlead.local_wire import PlacedSpec
from fairlead.planning.plan_choice import MODEL_PARALLEL
from fairlead.planning.profiles import Calibration, ModelProfile, to_plain
from fairlead.profiling.analysis_process import measure_profile
from fairlead.profiling.first_passes import time_first_passes
from fairlead.profiling.model_profile import profile_model
from fairlead.training.channel import Channel
from fairlead.training.loading import describe
from fairlead.training.samples import GeneratedSamples, Resident
from fairlead.training.session import Session
from fairlead.units import shown_size

WORTH_IT_S = 20.0
"""A training that ends earlier gains nothing from a plan, and is not profiled."""

SLOW_STEP_S = 1.0
"""Longer steps are not timed beside the training: its own steps are measurement enough."""

PROFILE_WITHIN_S = 60.0
"""How long a gang waits for the profile, if it cannot run the requested plan without one."""

FIRST_PASSES_WITHIN_S = 1.0
"""How long a gang waits for the times of a model's first passes; without them it starts as replicas."""

SAMPLES = 64
"""Samples for profiling where each is generated; tensors in memory give a whole batch at once."""

NICENESS = 10  # at this niceness it gets a tenth of a core that the training wants, too
MEMORY_PART = 0.25  # of free memory, for the timed steps
COPIED_BYTES_PER_S = 5e9
_ENOUGH_STEPS = 3
_ANSWER_BYTES = 4 << 20
_PR_SET_PDEATHSIG = 1


class TrainingPace(msgspec.Struct, frozen=True):
    """The training's own speed when profiling starts."""

    step_s: float
    samples: float  # per step, of this worker
    cores: float = 1.0


def start_profiling(spec: PlacedSpec, session: Session, line: Channel) -> wire.Glance | None:
    """Start the process beside this worker; returns the times of the model's first passes, if they came in time."""
    return ProfilingProcess(spec).begin(session, line)


class ProfilingProcess:
    """The forked process: created before anything computes, started when the training runs and will for a while."""

    def __init__(self, spec: PlacedSpec) -> None:
        self._spec = spec
        self._begun: wire.Progress | None = None
        self._go = -1
        self._batch = 0

    def begin(self, session: Session, line: Channel) -> wire.Glance | None:
        """Fork, and start to follow the training's progress; returns the times of the model's first passes.

        If a plan that splits the model was requested by name, profiling starts at once, before the training.
        """
        weights, room = sum(p.numel() * p.element_size() for p in session.model.parameters()), _room_bytes(self._spec)
        if session.device.type != "cpu":
            line.send(wire.Profiled(why_not=f"it lies on {session.device}, and only models on a cpu are profiled"))
            return None
        if weights > room:
            free = shown_size(max(room, 0.0))
            line.send(wire.Profiled(why_not=f"a copy of its weights takes {shown_size(weights)}, and {free} are free"))
            return None
        rows = _sample_rows(session)  # read by the parent, because a fork shares its open files
        self._batch = session.training.batch_size
        go_in, self._go = os.pipe()
        answer, answer_out = os.pipe()
        passes_in, passes_out = os.pipe()
        child = os.fork()
        if not child:
            for end in (self._go, answer, passes_in):
                os.close(end)
            _run_child(session, rows, line, (go_in, answer_out, passes_out), self._spec)
        for end in (go_in, answer_out, passes_out):
            os.close(end)
        line.on_send = self._follow_progress
        done = threading.Event()
        threading.Thread(
            target=_forward_answer, args=(child, answer, line, done), name="fairlead-looking", daemon=True
        ).start()
        shows = _read_first_passes(passes_in)
        if (self._spec.plan or session.training.plan) in MODEL_PARALLEL:
            step_s = SLOW_STEP_S if shows is None else shows.fixed_s + shows.sample_s * self._batch
            self._start(TrainingPace(step_s, self._batch))
            done.wait(PROFILE_WITHIN_S)
        return shows

    def _follow_progress(self, message: msgspec.Struct) -> None:
        """Decide from the training's progress when to start, or that profiling does not pay."""
        if not isinstance(message, wire.Progress) or self._go < 0:
            return
        first = self._begun
        if first is None or first.generation != message.generation:
            self._begun = message
            return
        if message.step - first.step < _ENOUGH_STEPS or message.step_s <= 0:
            return
        worth_it = (message.total_steps - message.step) * message.step_s >= WORTH_IT_S
        own_s = message.compute_s or message.step_s
        pace = TrainingPace(own_s, self._batch * (message.share or 1.0), min(1.0, self._spec.cpu or 1.0))
        self._start(pace if worth_it else None)

    def _start(self, pace: TrainingPace | None) -> None:
        """Start profiling, or end the process without ``pace``."""
        go, self._go = self._go, -1
        with (
            os.fdopen(go, "wb") as pipe,
            contextlib.suppress(BrokenPipeError),
        ):  # the process may have been killed by the OOM killer
            pipe.write(b"" if pace is None else msgspec.msgpack.encode(pace))


def _sample_rows(session: Session) -> tuple[torch.Tensor, ...]:
    """A batch as large as the training's, or SAMPLES generated samples."""
    whole = 0 if isinstance(session.samples, GeneratedSamples) else session.training.batch_size
    count = min(max(SAMPLES, whole), len(session.samples))
    rows: tuple[torch.Tensor, ...] = session.samples.take(torch.arange(count), 0)
    return rows


def _forward_answer(child: int, answer: int, line: Channel, done: threading.Event) -> None:
    with os.fdopen(answer, "rb") as pipe:
        data = pipe.read(_ANSWER_BYTES)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if data:
        line.send(msgspec.msgpack.decode(data, type=wire.Profiled))
    elif code < 0:
        name = signal.Signals(-code).name
        line.send(wire.Profiled(why_not=f"the profiling process was ended by {name}: memory may have run short"))
    done.set()


def _read_first_passes(end: int) -> wire.Glance | None:
    """The times of the first passes; None if they raised an error or took too long."""
    with os.fdopen(end, "rb", buffering=0) as pipe:
        there, _, _ = select.select([pipe], [], [], FIRST_PASSES_WITHIN_S)
        data = pipe.read(_ANSWER_BYTES) if there else b""
    return msgspec.msgpack.decode(data, type=wire.Glance) if data else None


# ---------------------------------------------------------------- in the profiling process


def _run_child(
    session: Session, rows: tuple[torch.Tensor, ...], line: Channel, ends: tuple[int, int, int], spec: PlacedSpec
) -> None:
    """Never returns, and no error here affects the training."""
    go_in, answer_out, passes_out = ends
    try:
        _prepare_child()
        line.close()
        _send_first_passes(session, rows, passes_out)
        os.nice(NICENESS)
        with os.fdopen(go_in, "rb") as pipe:
            asked = pipe.read()
        if asked:
            found = _profiled_message(session, rows, msgspec.msgpack.decode(asked, type=TrainingPace), spec)
            with os.fdopen(answer_out, "wb") as out:
                out.write(msgspec.msgpack.encode(found))
    finally:
        os._exit(0)


def _prepare_child() -> None:
    """Die with the training, before it when memory is short; yield cores to it; write no output."""
    parent = os.getppid()
    prctl: Callable[..., int] | None = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    torch.set_num_threads(1)


def _send_first_passes(session: Session, rows: tuple[torch.Tensor, ...], passes_out: int) -> None:
    try:
        os.write(passes_out, msgspec.msgpack.encode(time_first_passes(session, rows)))
    except BrokenPipeError:
        return  # the worker waits no longer
    except Exception:  # noqa: BLE001 (a process's edge: the training itself will report the error)
        return
    finally:
        os.close(passes_out)


def _profiled_message(
    session: Session, rows: tuple[torch.Tensor, ...], pace: TrainingPace, spec: PlacedSpec
) -> wire.Profiled:
    begun_s = time.process_time()
    try:
        profile = _profile(session, rows, pace, spec)
    except Exception as error:  # noqa: BLE001 (a process's edge: reports any error of user code in one line)
        return wire.Profiled(why_not=describe(error)[0][:500], seconds=time.process_time() - begun_s)
    return wire.Profiled(profile=to_plain(profile), seconds=time.process_time() - begun_s)


def _profile(session: Session, rows: tuple[torch.Tensor, ...], pace: TrainingPace, spec: PlacedSpec) -> ModelProfile:
    training, some = session.training, Resident(rows)
    profile = profile_model(training, session.model, some)
    profile = msgspec.structs.replace(profile, samples=len(session.samples))
    if pace.step_s <= SLOW_STEP_S and _needs_bytes(profile) < _room_bytes(spec):
        return measure_profile(training, session.model, profile, some, "cpu")
    return msgspec.structs.replace(profile, calibration=estimate_calibration(profile, pace))


def estimate_calibration(profile: ModelProfile, pace: TrainingPace) -> Calibration:
    """The calibration from the training's own steps, where timing some would cost too much."""
    moved = profile.parameter_bytes + profile.gradient_bytes + 2 * profile.state_bytes
    update_s = profile.parameters * moved / COPIED_BYTES_PER_S
    sample_s = max(pace.step_s * pace.cores - update_s, 0.5 * pace.step_s * pace.cores) / max(1.0, pace.samples)
    return Calibration(device="cpu", fixed_s=0.0, sample_s=sample_s, optimizer_s=update_s)


def _needs_bytes(profile: ModelProfile) -> float:
    """Memory of a step: a copy of the parameters, gradients, optimiser state, and activations of the batch."""
    held = profile.parameters * (profile.parameter_bytes + profile.gradient_bytes + profile.state_bytes)
    each = sum(layer.activation_bytes for layer in profile.layers) + profile.working_bytes + profile.sample_bytes
    return held + each * profile.batch_size


def _room_bytes(spec: PlacedSpec) -> float:
    """Memory for the timed steps: a part of what is free on the machine, and of the worker's own limit."""
    memory = dict(line.split(":", 1) for line in _lines("/proc/meminfo"))
    free = float(memory.get("MemAvailable", "0 kB").split()[0]) * 1024
    held = next((line.split()[1] for line in _lines("/proc/self/statm")), "0")
    granted = spec.memory_bytes
    left = free if granted is None else min(free, granted - float(held) * os.sysconf("SC_PAGE_SIZE"))
    return MEMORY_PART * left


def _lines(file: str) -> list[str]:
    try:
        return Path(file).read_text(encoding="ascii").splitlines()
    except OSError:
        return []
