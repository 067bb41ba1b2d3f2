"""Assembles the seccomp filter of sandboxed processes: system calls that no training needs fail with EPERM.

A deny list, so that torch, NumPy and users' libraries keep working; the namespaces isolate, and the filter reduces the
kernel's attack surface. ``clone3`` hides its flags from a filter and fails with ENOSYS, upon which the C library falls
back to ``clone``, whose flags are checked. Calls of another architecture kill the process.
"""

from __future__ import annotations

import errno
import functools
import platform
import struct
from collections.abc import Mapping, Sequence

from fairlead.agent.sandbox import linux

_ARCHITECTURES: Mapping[str, int] = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# number on x86_64, number on aarch64 (None: not there)
_DENIED: Mapping[str, tuple[int | None, int | None]] = {
    # into other processes
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "process_madvise": (440, 440), "pidfd_getfd": (438, 438), "kcmp": (312, 272),
    # file systems and namespaces
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "open_tree": (428, 428),
    "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432),
    "fspick": (433, 433), "mount_setattr": (442, 442), "open_tree_attr": (467, 467), "unshare": (272, 97),
    "setns": (308, 268), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262), "statmount": (457, 457), "listmount": (458, 458),
    # large parts of the kernel with a history of exploits
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "add_key": (248, 217), "request_key": (249, 218),
    "keyctl": (250, 219), "lookup_dcookie": (212, 18), "vhangup": (153, 58), "nfsservctl": (180, 42),
    "remap_file_pages": (216, 234), "uselib": (134, None), "modify_ldt": (154, None), "lsm_set_self_attr": (460, 460),
    # the machine as a whole
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "create_module": (174, None), "reboot": (169, 142), "swapon": (167, 224),
    "swapoff": (168, 225), "syslog": (103, 116), "acct": (163, 89), "quotactl": (179, 60), "quotactl_fd": (443, 443),
    "clock_settime": (227, 112), "clock_adjtime": (305, 266), "adjtimex": (159, 171), "settimeofday": (164, 170),
    "iopl": (172, None), "ioperm": (173, None), "sethostname": (170, 161), "setdomainname": (171, 162),
    "migrate_pages": (256, 238), "move_pages": (279, 239), "_sysctl": (156, None), "sysfs": (139, None),
    "ustat": (136, None),
}  # fmt: skip

_CLONE, _CLONE3, _SOCKET, _IOCTL = (56, 220), (435, 435), (41, 198), (16, 29)
_PERSONALITY, _PRCTL = (135, 92), (157, 167)
_NEW_NAMESPACES = (
    linux.CLONE_NEWNS | linux.CLONE_NEWCGROUP | linux.CLONE_NEWUTS | linux.CLONE_NEWIPC
    | linux.CLONE_NEWUSER | linux.CLONE_NEWPID | linux.CLONE_NEWNET
)  # fmt: skip
_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_INOTIFY = ((253, None), (294, 26))  # init, init1: fail with ENOSYS, upon which programs poll
_FALLOCATE, _KEEP_SIZE, _PUNCH_HOLE = (285, 47), 1, 2
_RESERVE = (0x40305828, 0x4030582A, 0x40305839)  # FS_IOC_RESVSP, RESVSP64, ZERO_RANGE: fallocate by ioctl
_FCNTL, _F_NOTIFY = (72, 25), 1026
_X32 = 0x40000000  # system calls of the x32 ABI begin here

_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data; the low half of an argument comes first
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERROR, _KILL = 0x7FFF0000, 0x00050000, 0x80000000

Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, value


def supported() -> bool:
    """True when this architecture's system call numbers are known."""
    return platform.machine() in _ARCHITECTURES


@functools.cache
def program() -> bytes:
    """The filter for this machine, as BPF bytes for the kernel and bubblewrap."""
    return assemble(platform.machine())


def assemble(machine: str) -> bytes:
    column = list(_ARCHITECTURES).index(machine)
    code = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, _ARCHITECTURES[machine]),
        _answer(_KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if machine == "x86_64":
        code += [(_AT_LEAST, 0, 1, _X32), _answer(_KILL)]
    denied = [number for pair in _DENIED.values() if (number := pair[column]) is not None]
    for number in denied:
        code += _for_call(number, [_refuse(errno.EPERM)])
    code += _for_call(_CLONE3[column], [_refuse(errno.ENOSYS)])
    code += _for_call(_CLONE[column], [_argument(0), (_ANY_BIT, 0, 1, _NEW_NAMESPACES), _refuse(errno.EPERM), _ok()])
    code += _for_call(_PERSONALITY[column], [
        _argument(0), (_EQUAL, 2, 0, 0), (_EQUAL, 1, 0, 0xFFFFFFFF), _refuse(errno.EPERM), _ok(),
    ])  # fmt: skip
    code += _for_call(_IOCTL[column], [
        _argument(1), (_EQUAL, 1, 0, _TIOCSTI), (_EQUAL, 0, 1, _TIOCLINUX), _refuse(errno.EPERM),
        (_EQUAL, 2, 0, _RESERVE[0]), (_EQUAL, 1, 0, _RESERVE[1]), (_EQUAL, 0, 1, _RESERVE[2]),
        _refuse(errno.EOPNOTSUPP), _ok(),
    ])  # fmt: skip
    # Space allocated beyond a file's end escapes RLIMIT_FSIZE; punching holes is allowed.
    code += _for_call(_FALLOCATE[column], [
        _argument(1), (_ANY_BIT, 0, 2, _KEEP_SIZE), (_ANY_BIT, 1, 0, _PUNCH_HOLE), _refuse(errno.EOPNOTSUPP), _ok(),
    ])  # fmt: skip
    # inotify on readable folders of the machine would reveal what other tenants run and read.
    for number in (each for pair in _INOTIFY if (each := pair[column]) is not None):
        code += _for_call(number, [_refuse(errno.ENOSYS)])
    code += _for_call(_FCNTL[column], [
        _argument(1), (_EQUAL, 0, 1, _F_NOTIFY), _refuse(errno.EINVAL), _ok(),
    ])  # fmt: skip
    code += _for_call(_PRCTL[column], [
        _argument(0), (_EQUAL, 0, 1, linux.PR_SET_TIMERSLACK), _refuse(errno.EPERM), _ok(),
    ])  # fmt: skip
    code += _for_call(_SOCKET[column], [
        _argument(0), (_EQUAL, 6, 0, _AF_UNIX), (_EQUAL, 5, 0, _AF_INET), (_EQUAL, 4, 0, _AF_INET6),
        (_EQUAL, 0, 2, _AF_NETLINK), _argument(2), (_EQUAL, 1, 0, 0), _refuse(errno.EAFNOSUPPORT), _ok(),
    ])  # fmt: skip
    code.append(_ok())
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def _for_call(number: int, body: Sequence[Instruction]) -> list[Instruction]:
    """Run the body for the call with this number; otherwise the number stays loaded for the next comparison."""
    return [(_EQUAL, 0, len(body), number), *body]


def _argument(index: int) -> Instruction:
    """Load the low half of an argument; the kernel uses only that half of the arguments checked here."""
    return (_LOAD, 0, 0, _ARGUMENTS + 8 * index)


def _answer(value: int) -> Instruction:
    return (_RETURN, 0, 0, value)


def _refuse(code: int) -> Instruction:
    return _answer(_ERROR | code)


def _ok() -> Instruction:
    return _answer(_ALLOW)
