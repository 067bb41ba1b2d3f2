"""Creates arenas as sealed memfds, maps them and prefaults their pages."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import threading
import weakref
from typing import Any

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_FAILED = ctypes.c_void_p(-1).value
_POPULATE_READ, _POPULATE_WRITE = 22, 23  # since Linux 5.14; before that pages come at their first touch
_STEP = 4 << 20  # unit of prefaulting

JOURNAL_BYTES = 64 << 20  # of address space; only written pages take memory


def create(name: str, size: int) -> int:
    """A memfd of fixed size (sealed) that only its owner can reopen."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    os.fchmod(descriptor, 0o600)  # readers must not reopen it for writing through /proc
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return descriptor


def read_only(descriptor: int) -> int:
    """A read-only descriptor of the same file."""
    return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)


def punch_hole(descriptor: int, begin: int, end: int) -> None:
    """Free the memory of a range; it reads as zeros afterwards. Raises OSError."""
    if end > begin and _libc.fallocate(descriptor, _KEEP_SIZE | _PUNCH_HOLE, begin, end - begin) != 0:
        raise OSError(ctypes.get_errno(), "memory of the arena cannot be freed")


class Mapping:
    """A file mapped into this process; unmapped when the last reference is gone."""

    def __init__(self, descriptor: int, size: int, *, writable: bool) -> None:
        rights = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        address = _libc.mmap(None, size, rights, mmap.MAP_SHARED, descriptor, 0)
        if address == _FAILED:
            raise OSError(ctypes.get_errno(), "the arena cannot be mapped")
        self.address, self.size, self.writable = int(address), size, writable
        self._touched = bytearray(-(-size // _STEP))
        self._touching = threading.Lock()
        weakref.finalize(self, _libc.munmap, address, size)

    def window(self, offset: int, nbytes: int) -> Any:
        """A range as a buffer object that keeps the mapping alive, as memoryviews of it do in turn."""
        if not 0 <= offset <= offset + nbytes <= self.size:
            raise ValueError(f"{nbytes} bytes at {offset} are not in the arena")
        found: Any = (ctypes.c_char * nbytes).from_address(self.address + offset)
        found.mapping = self
        return found

    def view(self, offset: int, nbytes: int) -> memoryview:
        """A memoryview of a range; writable only if the mapping is."""
        seen = memoryview(self.window(offset, nbytes)).cast("B")
        return seen if self.writable else seen.toreadonly()

    def is_prefaulted(self, offset: int, nbytes: int) -> bool:
        """True when all pages of the range are prefaulted."""
        steps = self._touched[offset // _STEP : -(-min(offset + nbytes, self.size) // _STEP)]
        return 0 not in steps

    def prefault(self, offset: int, nbytes: int) -> None:
        """Prefault the pages of a range, so that no access waits for a page fault; cheap when done before."""
        advice = _POPULATE_WRITE if self.writable else _POPULATE_READ
        for step in range(offset // _STEP, -(-min(offset + nbytes, self.size) // _STEP)):
            if self._touched[step]:
                continue
            with self._touching:
                begin = step * _STEP
                _libc.madvise(self.address + begin, min(_STEP, self.size - begin), advice)
                self._touched[step] = 1
