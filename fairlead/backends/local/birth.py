"""From a fresh fork to the user's code: limits, folders, privileges dropped, code unpacked, environment, run."""

from __future__ import annotations

import importlib
import os
import resource
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import msgspec

import fairlead
from fairlead import logbook, wire
from fairlead.backends.local import bundles, cgroups, folders, linux

WORKER_MODULE = "fairlead.training.worker"
_PLATFORM_PREFIX = "FAIRLEAD_"


class Birth(msgspec.Struct, frozen=True):
    """All that one worker's start depends on, handed from the node manager to the fork server."""

    worker: str
    device: int
    spec: wire.WorkerSpec
    environment: dict[str, str]


class CannotStart(Exception):
    """The worker cannot be started, and trying again cannot help; one line for the tenant."""


def be_born(
    birth: Birth, channel: socket.socket, output: int, group: cgroups.Group, parent: int, first_core: int = 0
) -> NoReturn:
    """Turn the calling process, just forked, into the worker; never returns."""
    code = 1
    try:
        _redirect(output)
        code = _live(birth, channel, group, parent, first_core)
    except (CannotStart, bundles.BadBundle) as error:
        _say(channel, wire.Raised(error=str(error), permanent=True))
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException as error:  # noqa: BLE001 (the edge of the process: told to the tenant and logged)
        trace = traceback.format_exc()
        print(trace, file=sys.stderr, flush=True)
        _say(channel, wire.Raised(error=f"{type(error).__name__}: {error}", trace=trace))
    os._exit(code)


def _live(birth: Birth, channel: socket.socket, group: cgroups.Group, parent: int, first_core: int) -> int:
    spec = birth.spec
    if os.geteuid() == 0 and not spec.uid:
        raise CannotStart("a worker never runs as root: the job has no user of its own")
    os.setsid()
    linux.call_process(f"{birth.worker}.{spec.job}")
    if group.folders:
        group.enter()
    else:
        cgroups.limit_without_cgroup(spec.cpu, spec.memory_bytes, birth.device, first_core)
    folders.prepare(spec)
    bundle = None if spec.bundle is None else os.open(spec.bundle, os.O_RDONLY)
    _drop_privileges(spec.uid, parent)
    code = Path(spec.folder) / "code"
    if bundle is not None:
        with os.fdopen(bundle, "rb") as packed:
            bundles.unpack(packed, code)
    os.chdir(code)
    environment = worker_environment(birth, os.environ)
    if spec.command is not None:
        _execute(spec.command, environment)
    if spec.venv is not None:
        _execute_in_venv(birth, channel, environment)
    return _run(birth, channel, environment)


def _redirect(output: int) -> None:
    """Standard input from nowhere, output to the pipe that the node manager carries into the log."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(output)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    logbook.forget()


def _drop_privileges(uid: int | None, parent: int) -> None:
    Path("/proc/self/oom_score_adj").write_text("500")  # under pressure a worker goes before the platform
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if os.geteuid() == 0 and uid is not None:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
    linux.no_new_privileges()
    linux.own_proc_entries()
    linux.die_with_parent()
    if os.getppid() != parent:  # it died before we asked to die with it
        os._exit(1)
    os.umask(0o077)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def worker_environment(birth: Birth, outer: Mapping[str, str]) -> dict[str, str]:
    """A clean environment: of the platform's own only what is named here, and that is nobody's to override."""
    spec, folder = birth.spec, Path(birth.spec.folder)
    threads = str(max(1, int(spec.cpu + 1e-9)))
    own_path = [str(Path(spec.venv) / "bin")] if spec.venv else []
    path = [*own_path, str(Path(sys.prefix) / "bin"), "/usr/local/bin", "/usr/bin", "/bin"]
    clean = {"PATH": ":".join(path), "HOME": str(folder / "home"), "LANG": outer.get("LANG", "C.UTF-8")}
    clean |= {"PYTHONUNBUFFERED": "1", "TMPDIR": str(folder / "home")}
    clean |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), threads)
    platform = {
        "FAIRLEAD_JOB": spec.job,
        "FAIRLEAD_TENANT": spec.tenant,
        "FAIRLEAD_WORKER": birth.worker,
        "FAIRLEAD_OUTPUT": str(folder / "output"),
        "FAIRLEAD_SNAPSHOTS": str(folder / "snapshots"),
    }
    if "FAIRLEAD_DATA" in outer:
        platform["FAIRLEAD_DATA"] = outer["FAIRLEAD_DATA"]
    theirs = {name: value for name, value in spec.env.items() if not name.startswith(_PLATFORM_PREFIX)}
    return clean | theirs | birth.environment | platform


def _execute(command: list[str], environment: dict[str, str]) -> NoReturn:
    """Become the command; the channel closes by itself when that works, which tells the node manager so."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        os.execvpe(command[0], command, environment)
    except FileNotFoundError:
        raise CannotStart(f"command not found: {command[0]}") from None
    except (PermissionError, OSError) as error:
        raise CannotStart(f"command cannot be run: {command[0]}: {error.strerror}") from None


def _execute_in_venv(birth: Birth, channel: socket.socket, environment: dict[str, str]) -> NoReturn:
    """Become the worker's main under the tenant's own Python."""
    python = Path(str(birth.spec.venv)) / "bin" / "python"
    channel.set_inheritable(True)
    environment |= {
        "FAIRLEAD_CHANNEL_FD": str(channel.fileno()),
        "FAIRLEAD_WORKER_SPEC": msgspec.json.encode(birth.spec).decode(),
        "PYTHONPATH": str(Path(fairlead.__file__).parent.parent),
    }
    try:
        os.execve(python, [str(python), "-m", WORKER_MODULE], environment)
    except OSError as error:
        hint = "it must lie where the job's own user can read it"
        raise CannotStart(f"venv: {python} cannot be run: {error.strerror}; {hint}") from None


def _run(birth: Birth, channel: socket.socket, environment: dict[str, str]) -> int:
    """Become the worker's main in this very process, which has torch loaded already."""
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # what the host found out holds for the host
    channel.setblocking(True)
    code = importlib.import_module(WORKER_MODULE).main(birth.spec, birth.worker, channel)
    sys.stdout.flush()
    sys.stderr.flush()
    return int(code or 0)


def _say(channel: socket.socket, message: wire.FromWorker) -> None:
    try:
        channel.sendall(wire.pack(message))
    except OSError as error:  # the node manager is gone, and so are we in a moment
        print(f"fairlead: could not report to the node manager: {error}", file=sys.stderr)
