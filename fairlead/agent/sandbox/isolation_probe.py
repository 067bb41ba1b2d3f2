"""Finds the isolation level of this machine (sandbox, user or none) by trying it.

sandbox: own namespaces for every worker, none of the platform's files, a network per gang, a system call filter.
user: a Unix user per tenant and control groups; needs root. none: all workers run as the platform's user.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from fairlead.agent.embedded import gang_network
from fairlead.agent.embedded.node_records import living_nodes
from fairlead.agent.node import job_folders, processes
from fairlead.agent.sandbox import bwrap_args, job_mounts, linux, sandbox, seccomp, tenant_access
from fairlead.agent.zygote import sandbox_entry
from fairlead.agent.zygote.start_message import memory_file
from fairlead.home import Home

LEVELS = ("sandbox", "user", "none")
INSTALL = "install bubblewrap (Debian: apt install bubblewrap)"
_NOBODY = 65534
_BUILD_S = 15.0


def choose(wanted: str, home: Path) -> tuple[str, str | None]:
    """The level that this machine can provide, and why it is not the wanted or the strongest one."""
    ordinary = "user" if os.geteuid() == 0 else "none"
    if wanted == "user" and ordinary != "user":
        return ordinary, "a user per tenant needs root"
    if wanted in ("user", "none"):
        return ordinary, None
    problem = sandbox_problem(home)
    return ("sandbox", None) if problem is None else (ordinary, problem)


def sandbox_problem(home: Path) -> str | None:
    """Why no sandbox can be built here, tried in a child process; None when it works."""
    if not seccomp.supported():
        return "the system call numbers of this architecture are not known"
    tools = ("bwrap", "setpriv") if os.geteuid() == 0 else ("bwrap",)
    missing = [tool for tool in tools if shutil.which(tool, path=sandbox.TOOLS) is None]
    if missing:
        return f"{missing[0]} is not installed"
    return in_child(lambda: _try(home))


def in_child(body: Callable[[], str | None]) -> str | None:
    """Run the body in a forked process; returns its answer."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            answer = body() or ""
        except (OSError, sandbox.NotBuilt, sandbox_entry.StillPrivileged) as error:
            answer = str(error) or type(error).__name__
        except BaseException as error:  # noqa: BLE001 (a child must not continue in the parent's code)
            answer = f"{type(error).__name__}: {error}"
        os.write(writing, answer.encode()[:4000])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        text = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    return text or (None if status == 0 else "the attempt was killed")


def _try(home: Path) -> str | None:
    linux.adopt_orphans()
    root = os.geteuid() == 0
    if root:
        tenant_access.make_reachable(tenant_access.needed(home))
    uid = _NOBODY if root else None
    seen = bwrap_args.outermost(bwrap_args.pythons())
    places, later = [str(path) for path in seen], bwrap_args.job_mounted_later(seen)
    words = [*bwrap_args.base(), *bwrap_args.own_network(), *bwrap_args.reading(places)]
    words += ["--dir", "/tmp"] if later else ["--remount-ro", "/"]
    with _in_fresh_network() if root else contextlib.nullcontext():
        box = sandbox.Sandbox(memory_file("\0".join([*words, ""]).encode()), uid)
    if not box.wait(_BUILD_S):
        return f"bubblewrap was not ready within {_BUILD_S:g} s"
    with tempfile.TemporaryDirectory(prefix=".trial-", dir=home) as folder:
        return _ask_inside(box.namespaces(), uid, places, Path(folder), later)


def _ask_inside(
    namespaces: sandbox.Namespaces, uid: int | None, places: list[str], folder: Path, later: bool
) -> str | None:
    job_folders.make(folder / "tmp", 0o700, uid)
    job_folders.make(folder / "logs", 0o700)
    reading, writing = os.pipe()
    child = sandbox.fork_into(namespaces)
    if child == 0:
        try:
            mounts = job_mounts.pack(str(folder), str(folder)) if later else None
            sandbox_entry.enter_sandbox(namespaces, uid, mounts)
            hidden = [place for place in places if not os.access(place, os.R_OK | os.X_OK)]
            answer = f"Python in {hidden[0]} cannot be read inside" if hidden else ""
        except (OSError, sandbox_entry.StillPrivileged) as error:
            answer = str(error) or type(error).__name__
        except BaseException as error:  # noqa: BLE001 (the edge of a process, as above)
            answer = f"{type(error).__name__}: {error}"
        os.write(writing, answer.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    return answer or (None if status == 0 else "a process inside was killed")


def help_for(wanted: str) -> str:
    """What an operator can do when the wanted level is not available."""
    if wanted == "user":
        return "start the platform as root, or ask for --isolation sandbox"
    return f"{INSTALL} and allow user namespaces (fairlead doctor), or choose --isolation user or none"


@contextlib.contextmanager
def _in_fresh_network() -> Iterator[None]:
    network = gang_network.create_network()
    try:
        with gang_network.entered(network):
            yield
    finally:
        os.close(network)


def own_child_namespaces(home: Home) -> None:
    """Without root: move this process into a user namespace that owns all its children's, if the machine allows it.

    All fork servers must be in one user namespace, so that each can enter a gang's network that another one made. If
    fork servers of an earlier host still run, this process joins theirs.
    """
    if os.geteuid() == 0:
        return
    for record in living_nodes(home):
        if record.fork_server is not None and processes.alive(record.fork_server):
            with contextlib.suppress(OSError):  # that host could not do it either
                theirs = os.open(f"/proc/{record.fork_server.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
                linux.enter(theirs, linux.CLONE_NEWUSER)
                linux.allow_proc_access()
                os.close(theirs)
                return
    if in_child(linux.own_user_namespace) is None:
        linux.own_user_namespace()
