"""Turns a fresh fork into a worker: limits, sandbox, dropped rights, unpacked code, environment, user code."""

from __future__ import annotations

import faulthandler
import importlib
import os
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import msgspec

import fairlead
from fairlead import data_folder, framing, logbook, wire
from fairlead.agent.node import cgroups, code_bundles, disk_usage
from fairlead.agent.node.messages import Start
from fairlead.agent.sandbox import job_mounts, linux
from fairlead.agent.sandbox.bwrap_args import CannotStart
from fairlead.agent.sandbox.rlimits import Limits
from fairlead.agent.sandbox.sandbox import Namespaces
from fairlead.agent.zygote import sandbox_entry
from fairlead.local_wire import PlacedSpec

WORKER_MODULE = "fairlead.worker"
STAGE_MODULE = "fairlead.pipelines.worker"
_PLATFORM_PREFIX = "FAIRLEAD_"


class WorkerBootstrap(msgspec.Struct, frozen=True):
    """What the worker itself needs to start, passed through the fork server unread."""

    worker: str
    device: int
    spec: PlacedSpec
    environment: dict[str, str]


class NoRoom(Exception):
    """The disk is full before any user code has run."""


@dataclass(frozen=True, slots=True)
class Files:
    """A worker's open files, which come with its Start."""

    channel: int
    output: int
    packed: int
    bundle: int | None = None
    arguments: int | None = None  # of its sandbox; for the fork server only

    @classmethod
    def received(cls, start: Start, descriptors: Sequence[int]) -> Files:
        """Assign the descriptors as the Start describes; raises ValueError when some are missing."""
        channel, output, packed, *rest = descriptors
        bundle = rest.pop(0) if start.bundle else None
        return cls(channel, output, packed, bundle, rest.pop(0) if start.sandboxed else None)

    @property
    def own(self) -> list[int]:
        return [each for each in (self.channel, self.output, self.packed, self.bundle) if each is not None]

    def close(self) -> None:
        for descriptor in (*self.own, *([] if self.arguments is None else [self.arguments])):
            os.close(descriptor)


@dataclass(frozen=True, slots=True)
class PreparedWorker:
    """What the fork server has prepared for one worker."""

    group: cgroups.Group
    limits: Limits
    namespaces: Namespaces | None  # None: without a sandbox
    parent: int
    first_core: int
    gangs: Path  # folder of the records of gang networks


def become_worker(start: Start, files: Files, prepared: PreparedWorker) -> NoReturn:
    """Turn the calling, just forked process into the worker; never returns."""
    code = 1
    sandbox_entry.close_all_but([*files.own, *([] if prepared.namespaces is None else prepared.namespaces.descriptors)])
    channel = socket.socket(fileno=files.channel)
    try:
        _redirect(files.output)
        _become(start, prepared)
        code = _run_worker(files, channel, sandboxed=prepared.namespaces is not None)
    except NoRoom as error:
        _send(channel, wire.Raised(error=str(error), no_room=True))
    except (CannotStart, code_bundles.BadBundle) as error:
        _send(channel, wire.Raised(error=str(error), permanent=True))
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException as error:  # noqa: BLE001 (the edge of the process: reported to the tenant and logged)
        trace = traceback.format_exc()
        print(trace, file=sys.stderr, flush=True)
        _send(channel, wire.Raised(error=f"{type(error).__name__}: {error}", trace=trace))
    os._exit(code)


def _become(start: Start, prepared: PreparedWorker) -> None:
    """Become a process of the tenant; no data of the tenant has been read before."""
    if os.geteuid() == 0 and not start.uid:
        raise CannotStart("a worker never runs as root, and the job has no user of its own")
    os.setsid()
    linux.set_process_name(f"{start.worker}.{start.job}")
    if prepared.namespaces is not None and start.network != "open":  # before its limits: it holds the gang's lock
        sandbox_entry.join_gang(prepared.namespaces, prepared.gangs, start.job)
    if not prepared.group.folders:
        cgroups.limit_without_cgroup(start.cpu, start.memory_bytes, start.device, prepared.first_core)
    sandbox_entry.apply_limits(prepared.group, prepared.limits)
    if prepared.namespaces is None:
        sandbox_entry.enter_user(start.uid, prepared.parent)
    else:
        mounts = job_mounts.pack(start.folder, start.memory) if start.folder else None
        sandbox_entry.enter_sandbox(prepared.namespaces, start.uid, mounts)


def _run_worker(files: Files, channel: socket.socket, *, sandboxed: bool) -> int:
    with os.fdopen(files.packed, "rb") as packed:
        bootstrap = msgspec.msgpack.decode(packed.read(), type=WorkerBootstrap)
    spec = bootstrap.spec
    code = Path(spec.folder) / "code"
    if files.bundle is not None:
        _unpack(files.bundle, code)
    os.chdir(code)
    environment = worker_environment(bootstrap, os.environ, sandboxed=sandboxed)
    if spec.command is not None:
        if advice := data_folder.advice(" ".join(spec.command), environment):
            print(f"fairlead: {advice}", flush=True)
        _execute(spec.command, environment)
    if spec.venv is not None:
        _execute_in_venv(bootstrap, channel, environment)
    return _run(bootstrap, channel, environment)


def _unpack(bundle: int, code: Path) -> None:
    try:
        with os.fdopen(bundle, "rb") as packed:
            code_bundles.unpack(packed, code)
    except OSError as error:
        if disk_usage.is_full(error):
            raise NoRoom(f"its code cannot be unpacked: {error}") from None
        raise


def _redirect(output: int) -> None:
    """Redirect stdin from /dev/null, stdout and stderr to the pipe of the log."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(output)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    logbook.reset()


def worker_environment(
    bootstrap: WorkerBootstrap, outer: Mapping[str, str], *, sandboxed: bool = False
) -> dict[str, str]:
    """A clean environment; users cannot override the platform's own variables."""
    spec, folder = bootstrap.spec, Path(bootstrap.spec.folder)
    threads = str(max(1, int(spec.cpu + 1e-9)))
    own_path = [str(Path(spec.venv) / "bin")] if spec.venv else []
    path = [*own_path, str(Path(sys.prefix) / "bin"), "/usr/local/bin", "/usr/bin", "/bin"]
    clean = {"PATH": ":".join(path), "HOME": str(folder / "home"), "LANG": outer.get("LANG", "C.UTF-8")}
    clean |= {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
    clean["TMPDIR"] = "/tmp" if sandboxed else str(folder / "tmp")
    clean |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), threads)
    platform = {
        "FAIRLEAD_JOB": spec.job,
        "FAIRLEAD_TENANT": spec.tenant,
        "FAIRLEAD_WORKER": bootstrap.worker,
        "FAIRLEAD_OUTPUT": str(folder / "output"),
        "FAIRLEAD_SNAPSHOTS": str(folder / "snapshots"),
    }
    if spec.memory_bytes is not None:
        platform["FAIRLEAD_MEMORY"] = str(spec.memory_bytes)
    if data := outer.get(data_folder.VARIABLE):
        platform[data_folder.VARIABLE] = data
        if not os.access(data, os.R_OK | os.X_OK):
            platform[data_folder.CLOSED] = "1"
    theirs = {name: value for name, value in spec.env.items() if not name.startswith(_PLATFORM_PREFIX)}
    return clean | theirs | bootstrap.environment | platform


def _execute(command: list[str], environment: dict[str, str]) -> NoReturn:
    """Execute the command; the channel closes on success, which tells the node manager that it runs."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        os.execvpe(command[0], command, environment)
    except FileNotFoundError:
        raise CannotStart(f"command not found: {command[0]}") from None
    except (PermissionError, OSError) as error:
        raise CannotStart(f"cannot run command {command[0]}: {error.strerror}") from None


def _execute_in_venv(bootstrap: WorkerBootstrap, channel: socket.socket, environment: dict[str, str]) -> NoReturn:
    """Execute the worker's main with the venv's Python."""
    python = Path(str(bootstrap.spec.venv)) / "bin" / "python"
    channel.set_inheritable(True)
    environment |= {
        "FAIRLEAD_CHANNEL_FD": str(channel.fileno()),
        "FAIRLEAD_WORKER_SPEC_FD": str(_written(msgspec.json.encode(bootstrap.spec))),
        "PYTHONPATH": str(Path(fairlead.__file__).parent.parent),
    }
    try:
        os.execve(python, [str(python), "-m", _module(bootstrap.spec)], environment)
    except OSError as error:
        hint = "it must be readable for the job's user"
        raise CannotStart(f"venv: cannot run {python}: {error.strerror}; {hint}") from None


def _written(text: bytes) -> int:
    """The text in a memfd that survives exec: a manifest may be too long for an environment variable."""
    descriptor = os.memfd_create("fairlead-spec", 0)
    with os.fdopen(descriptor, "wb", closefd=False) as file:
        file.write(text)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _module(spec: PlacedSpec) -> str:
    """The module of the worker's main."""
    return STAGE_MODULE if spec.stage else WORKER_MODULE


def _run(bootstrap: WorkerBootstrap, channel: socket.socket, environment: dict[str, str]) -> int:
    """Run the worker's main in this process, which has torch loaded."""
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # cached by the host
    channel.setblocking(True)
    faulthandler.enable(2)  # a trace in the log at SIGSEGV and the like
    code = importlib.import_module(_module(bootstrap.spec)).main(bootstrap.spec, bootstrap.worker, channel)
    sys.stdout.flush()
    sys.stderr.flush()
    return int(code or 0)


def _send(channel: socket.socket, message: wire.FromWorker) -> None:
    try:
        channel.sendall(framing.pack(message))
    except OSError as error:  # the node manager is gone; this process will be killed
        print(f"fairlead: could not report to the node manager: {error}", file=sys.stderr)
