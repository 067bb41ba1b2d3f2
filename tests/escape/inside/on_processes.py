"""Attempts on processes: to see, signal, trace or read others, and to become somebody else."""

# An attacker calls the system as plainly as can be.
# ruff: noqa: PTH110, PTH116, PTH123, PTH207, PTH208

from __future__ import annotations

import ctypes
import fcntl
import glob
import os
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

from known import CANARY, MAP, PARENT, attempt, call, from_any, others, syscall


@attempt
def see_processes_of_others() -> Any:
    seen = []
    for pid in os.listdir("/proc"):
        with suppress(FileNotFoundError):  # it has ended meanwhile
            if pid.isdigit() and os.stat(f"/proc/{pid}").st_uid != os.getuid():
                seen.append(pid)
    return seen or None


@attempt
def be_told_which_programs_others_run() -> Any:
    watch = syscall("inotify_init1", 0)
    return syscall("inotify_add_watch", watch, ctypes.c_char_p(b"/usr/bin"), 0x20)  # whenever one is opened


@attempt
def be_signalled_when_others_read_programs() -> Any:
    folder = os.open("/usr/bin", os.O_RDONLY)
    fcntl.fcntl(folder, fcntl.F_NOTIFY, fcntl.DN_ACCESS | fcntl.DN_MULTISHOT)
    return "told"


@attempt
def signal_processes_of_others() -> Any:
    hit = []
    for pid in others():
        try:
            os.kill(pid, 0)
        except OSError:
            continue
        hit.append(pid)
    return hit or None


@attempt
def read_the_environment_of_others() -> Any:
    for path in glob.glob("/proc/[0-9]*/environ"):
        try:
            text = Path(path).read_bytes()
        except OSError:
            continue
        if CANARY.search(text):
            return path
    return None


@attempt
def trace_process_one() -> Any:
    return call("ptrace", 16, 1, 0, 0)


@attempt
def trace_the_parent() -> Any:
    return call("ptrace", 0x4206, PARENT or 2, 0, 0)


@attempt
def read_the_memory_of_another_process() -> Any:
    buffer = ctypes.create_string_buffer(64)
    local = (ctypes.c_ulong * 2)(ctypes.addressof(buffer), 64)

    def read(pid: int) -> int:
        with suppress(OSError):  # it need not be told where: programs mostly begin at the same place
            begin = int(Path(f"/proc/{pid}/maps").read_text().partition("-")[0] or "400000", 16)
            return syscall("process_vm_readv", pid, local, 1, (ctypes.c_ulong * 2)(begin, 64), 1, 0)
        return syscall("process_vm_readv", pid, local, 1, (ctypes.c_ulong * 2)(0x400000, 64), 1, 0)

    return from_any(read)


@attempt
def find_another_tenants_secret_in_ones_own_memory() -> Any:
    """A worker is forked from a server that starts everybody's workers."""
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
        for line in maps:
            span, rights = line.split()[:2]
            start, end = (int(part, 16) for part in span.split("-"))
            if not rights.startswith("rw") or end - start > 1 << 30 or "[v" in line:
                continue
            try:
                memory.seek(start)
                if CANARY.search(memory.read(end - start)):
                    return line
            except (OSError, ValueError):
                continue
    return None


@attempt
def take_a_descriptor_of_another_process() -> Any:
    return from_any(lambda pid: syscall("pidfd_getfd", os.pidfd_open(pid), 0, 0))


@attempt
def become_root() -> Any:
    os.setuid(0)
    return os.getuid()


@attempt
def become_the_victims_user() -> Any:
    os.setuid(MAP["victim_uid"])
    return os.getuid()


@attempt
def become_root_by_a_set_user_id_program() -> Any:
    for program in ("/usr/bin/su", "/usr/bin/passwd", "/usr/bin/mount", "/usr/bin/newgrp"):
        if os.path.exists(program):
            done = subprocess.run([program, "--help"], capture_output=True, check=False)
            with open(f"/proc/{os.getpid()}/status") as status:
                flags = status.read()
            if "NoNewPrivs:\t1" not in flags:
                return (program, done.returncode)
    return None
