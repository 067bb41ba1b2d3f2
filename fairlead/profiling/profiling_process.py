"""A worker's look at its model while it trains: in a forked process beside it, with what cpu time is left over.

User code runs where it runs anyway, inside the tenant's sandbox, and the platform hears plain values.
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
from fairlead.profiling.analysis_process import measured
from fairlead.profiling.first_passes import glance
from fairlead.profiling.model_profile import profile_model
from fairlead.training.channel import Channel
from fairlead.training.loading import describe
from fairlead.training.samples import GeneratedSamples, Resident
from fairlead.training.session import Session
from fairlead.units import shown_size

WORTH_IT_S = 20.0
"""A training that ends earlier gains nothing by being planned, and is left alone."""

SLOW_STEP_S = 1.0
"""Steps that take longer are not tried again beside the training: what it takes itself says enough."""

LOOK_S = 60.0
"""So long a gang waits for a look without which it cannot run the plan that was asked for."""

GLANCE_S = 1.0
"""So long a gang waits for the first passes of a model; without them it starts as replicas."""

SAMPLES = 64
"""That are made to look at a model where each is made one by one; tensors give a whole batch at once."""

NICENESS = 10  # a tenth of a core that the training wants as well
MEMORY_PART = 0.25  # of what is free, for the steps that are tried
COPIED_BYTES_PER_S = 5e9
_ENOUGH_STEPS = 3
_ANSWER_BYTES = 4 << 20
_PR_SET_PDEATHSIG = 1


class TrainingPace(msgspec.Struct, frozen=True):
    """How the training itself gets on when the look begins."""

    step_s: float
    samples: float  # that this worker computes in a step
    cores: float = 1.0


def start_profiling(spec: PlacedSpec, session: Session, line: Channel) -> wire.Glance | None:
    """Start the process beside this worker; returns the times of the model's first passes, if they came in time."""
    return ProfilingProcess(spec).begin(session, line)


class ProfilingProcess:
    """The process beside: forked while nothing computes yet, woken when the training runs and will for a while."""

    def __init__(self, spec: PlacedSpec) -> None:
        self._spec = spec
        self._begun: wire.Progress | None = None
        self._go = -1
        self._batch = 0

    def begin(self, session: Session, line: Channel) -> wire.Glance | None:
        """Fork, and wait for the training to be well on its way; returns what the first passes there show.

        A plan that takes the model apart and was asked for by name is looked into at once, before anybody trains.
        """
        weights, room = sum(p.numel() * p.element_size() for p in session.model.parameters()), _room_bytes(self._spec)
        if session.device.type != "cpu":
            line.send(wire.Profiled(why_not=f"it lies on {session.device}, and only models on a cpu can be"))
            return None
        if weights > room:
            free = shown_size(max(room, 0.0))
            line.send(wire.Profiled(why_not=f"a copy of its weights takes {shown_size(weights)}, and {free} are free"))
            return None
        rows = _rows(session)  # by the parent: open files are shared with a fork
        self._batch = session.training.batch_size
        woken, self._go = os.pipe()
        answer, told = os.pipe()
        seen, shown = os.pipe()
        child = os.fork()
        if not child:
            for end in (self._go, answer, seen):
                os.close(end)
            _live(session, rows, line, (woken, told, shown), self._spec)
        for end in (woken, told, shown):
            os.close(end)
        line.on_send = self._hear
        done = threading.Event()
        threading.Thread(target=_wait, args=(child, answer, line, done), name="fairlead-looking", daemon=True).start()
        shows = _seen(seen)
        if (self._spec.plan or session.training.plan) in MODEL_PARALLEL:
            step_s = SLOW_STEP_S if shows is None else shows.fixed_s + shows.sample_s * self._batch
            self._wake(TrainingPace(step_s, self._batch))
            done.wait(LOOK_S)
        return shows

    def _hear(self, message: msgspec.Struct) -> None:
        """From the progress it follows when to begin, or that it is not worth it."""
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
        self._wake(pace if worth_it else None)

    def _wake(self, pace: TrainingPace | None) -> None:
        """Let it look, or end."""
        go, self._go = self._go, -1
        with os.fdopen(go, "wb") as pipe, contextlib.suppress(BrokenPipeError):  # it may have been killed for memory
            pipe.write(b"" if pace is None else msgspec.msgpack.encode(pace))


def _rows(session: Session) -> tuple[torch.Tensor, ...]:
    """A batch like the training's, or so many samples that one can be made of them, again and again."""
    whole = 0 if isinstance(session.samples, GeneratedSamples) else session.training.batch_size
    count = min(max(SAMPLES, whole), len(session.samples))
    rows: tuple[torch.Tensor, ...] = session.samples.take(torch.arange(count), 0)
    return rows


def _wait(child: int, answer: int, line: Channel, done: threading.Event) -> None:
    with os.fdopen(answer, "rb") as pipe:
        said = pipe.read(_ANSWER_BYTES)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if said:
        line.send(msgspec.msgpack.decode(said, type=wire.Profiled))
    elif code < 0:
        name = signal.Signals(-code).name
        line.send(wire.Profiled(why_not=f"the process that looked was ended by {name}: memory may have run short"))
    done.set()


def _seen(end: int) -> wire.Glance | None:
    """What the process beside shows at once; None if its passes raise, or take too long to be waited for."""
    with os.fdopen(end, "rb", buffering=0) as pipe:
        there, _, _ = select.select([pipe], [], [], GLANCE_S)
        said = pipe.read(_ANSWER_BYTES) if there else b""
    return msgspec.msgpack.decode(said, type=wire.Glance) if said else None


# ---------------------------------------------------------------- in the process beside


def _live(
    session: Session, rows: tuple[torch.Tensor, ...], line: Channel, ends: tuple[int, int, int], spec: PlacedSpec
) -> None:
    """Never returns: whatever happens here is nothing to the training."""
    woken, told, shown = ends
    try:
        _settle()
        line.close()
        _show(session, rows, shown)
        os.nice(NICENESS)
        with os.fdopen(woken, "rb") as pipe:
            asked = pipe.read()
        if asked:
            found = _found(session, rows, msgspec.msgpack.decode(asked, type=TrainingPace), spec)
            with os.fdopen(told, "wb") as out:
                out.write(msgspec.msgpack.encode(found))
    finally:
        os._exit(0)


def _settle() -> None:
    """Die with the training, before it when memory is short, after it when cores are; and be quiet."""
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


def _show(session: Session, rows: tuple[torch.Tensor, ...], shown: int) -> None:
    try:
        os.write(shown, msgspec.msgpack.encode(glance(session, rows)))
    except BrokenPipeError:
        return  # nobody waits for it any more
    except Exception:  # noqa: BLE001 (a process's edge: the training itself will tell what is wrong, with its step)
        return
    finally:
        os.close(shown)


def _found(session: Session, rows: tuple[torch.Tensor, ...], pace: TrainingPace, spec: PlacedSpec) -> wire.Profiled:
    begun_s = time.process_time()
    try:
        profile = _look(session, rows, pace, spec)
    except Exception as error:  # noqa: BLE001 (a process's edge: whatever user code raises is told in one line)
        return wire.Profiled(why_not=describe(error)[0][:500], seconds=time.process_time() - begun_s)
    return wire.Profiled(profile=to_plain(profile), seconds=time.process_time() - begun_s)


def _look(session: Session, rows: tuple[torch.Tensor, ...], pace: TrainingPace, spec: PlacedSpec) -> ModelProfile:
    training, some = session.training, Resident(rows)
    profile = profile_model(training, session.model, some)
    profile = msgspec.structs.replace(profile, samples=len(session.samples))
    if pace.step_s <= SLOW_STEP_S and _needs_bytes(profile) < _room_bytes(spec):
        return measured(training, session.model, profile, some, "cpu")
    return msgspec.structs.replace(profile, calibration=rough(profile, pace))


def rough(profile: ModelProfile, pace: TrainingPace) -> Calibration:
    """The scale of the cost model by the training's own steps, as a measured one could not be afforded."""
    moved = profile.parameter_bytes + profile.gradient_bytes + 2 * profile.state_bytes
    update_s = profile.parameters * moved / COPIED_BYTES_PER_S
    sample_s = max(pace.step_s * pace.cores - update_s, 0.5 * pace.step_s * pace.cores) / max(1.0, pace.samples)
    return Calibration(device="cpu", fixed_s=0.0, sample_s=sample_s, optimizer_s=update_s)


def _needs_bytes(profile: ModelProfile) -> float:
    """Of a step: a copy of the parameters, gradients, the optimiser's state, and what is kept of the batch."""
    held = profile.parameters * (profile.parameter_bytes + profile.gradient_bytes + profile.state_bytes)
    each = sum(layer.activation_bytes for layer in profile.layers) + profile.working_bytes + profile.sample_bytes
    return held + each * profile.batch_size


def _room_bytes(spec: PlacedSpec) -> float:
    """What the tried steps may take: a part of what is free on the machine, and of what the worker was given."""
    words = dict(line.split(":", 1) for line in _lines("/proc/meminfo"))
    free = float(words.get("MemAvailable", "0 kB").split()[0]) * 1024
    held = next((line.split()[1] for line in _lines("/proc/self/statm")), "0")
    granted = spec.memory_bytes
    left = free if granted is None else min(free, granted - float(held) * os.sysconf("SC_PAGE_SIZE"))
    return MEMORY_PART * left


def _lines(file: str) -> list[str]:
    try:
        return Path(file).read_text(encoding="ascii").splitlines()
    except OSError:
        return []
