"""Attempts on the walls themselves: capabilities, namespaces, mounts, doors of the kernel."""

# An attacker calls the system as plainly as can be.
# ruff: noqa: PTH103, PTH123

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import struct
import sys
from typing import Any

from known import attempt, call, from_any, syscall


@attempt
def hold_any_capability() -> Any:
    with open("/proc/self/status") as status:
        held = {line.split()[0]: int(line.split()[1], 16) for line in status if line.startswith("Cap")}
    return {name: value for name, value in held.items() if value} or None


@attempt
def run_without_a_system_call_filter() -> Any:
    with open("/proc/self/status") as status:
        mode = next(line.split()[1] for line in status if line.startswith("Seccomp:"))
    return None if mode == "2" else mode


@attempt
def make_a_user_namespace_and_be_root_in_it() -> Any:
    return call("unshare", 0x10000000) or "unshared"


@attempt
def clone_into_a_user_namespace() -> Any:
    pid = syscall("clone", 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    return pid


@attempt
def clone_into_a_user_namespace_by_the_newer_call() -> Any:
    arguments = (ctypes.c_uint64 * 8)(0x10000000, 0, 0, 0, signal.SIGCHLD, 0, 0, 0)
    pid = syscall("clone3", arguments, ctypes.sizeof(arguments))
    if pid == 0:
        os._exit(0)
    return pid


@attempt
def mount_something() -> Any:
    os.makedirs("mountpoint", exist_ok=True)
    return call("mount", b"tmpfs", b"mountpoint", b"tmpfs", 0, None) or "mounted"


@attempt
def make_the_python_writable_by_a_remount() -> Any:
    return call("mount", None, sys.prefix.encode(), None, 32 | 4096, None) or "remounted"


@attempt
def unmount_what_covers_the_rest() -> Any:
    return call("umount2", b"/tmp", 2) or "unmounted"


@attempt
def change_the_root() -> Any:
    os.chroot("/proc")
    return "changed"


@attempt
def enter_the_namespaces_of_another_process() -> Any:
    return from_any(lambda pid: call("setns", os.open(f"/proc/{pid}/ns/net", os.O_RDONLY), 0) or "entered")


@attempt
def load_a_program_into_the_kernel() -> Any:
    program = ctypes.create_string_buffer(struct.pack("=BBhiBBhi", 0xB7, 0, 0, 0, 0x95, 0, 0, 0))  # return 0
    rights = ctypes.create_string_buffer(b"GPL")
    places = (ctypes.addressof(program), ctypes.addressof(rights))
    load = ctypes.create_string_buffer(struct.pack("=IIQQ", 1, 2, *places), 128)
    return syscall("bpf", 5, load, 128)


@attempt
def use_the_kernels_keyring() -> Any:
    return syscall("add_key", b"user", b"mine", b"x", 1, -3)


@attempt
def set_up_an_io_ring() -> Any:
    return syscall("io_uring_setup", 8, ctypes.create_string_buffer(256))


@attempt
def catch_page_faults() -> Any:
    return syscall("userfaultfd", 0)


@attempt
def type_into_the_terminal_of_others() -> Any:
    return fcntl.ioctl(0, 0x5412, b"x")
