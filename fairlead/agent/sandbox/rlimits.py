"""Sets the rlimits of a worker's processes, soft and hard, so that none can raise them."""

from __future__ import annotations

import os
import re
import resource
from dataclasses import dataclass

from fairlead.agent.sandbox import linux

_MEMLOCK_BYTES = 8 << 20
_TIMERS_TOGETHER_NS = 1_000_000
"""Timer interrupts are not accounted to a cgroup: hundreds of processes in short sleeps cost others on the same cores
tens of thousands of interrupts a second. With 1 ms of slack they share interrupts."""
_COUNTS_APART = (5, 14)  # since this kernel RLIMIT_NPROC counts per user namespace


def process_limit(wanted: int, *, sandboxed: bool, grouped: bool, kernel: str | None = None) -> int | None:
    """RLIMIT_NPROC of a worker; None: only its control group limits it, if it has one.

    Older kernels, and workers without a sandbox, count all processes of the user, including those of other workers and,
    without root, of all tenants. There it is only used for a sandbox without a control group.
    """
    version = re.match(r"(\d+)\.(\d+)", kernel or os.uname().release)
    apart = version is not None and (int(version[1]), int(version[2])) >= _COUNTS_APART
    return wanted if sandboxed and (apart or not grouped) else None


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one worker, from its tenant's policy."""

    files: int
    disk_bytes: int
    processes: int | None = None
    """Including threads, see above. The control group counts them too, but refuses a fork only after the kernel has
    copied the process, so a fork bomb of failing forks would still slow down neighbours."""

    def numbers(self) -> dict[int, int]:
        """The limits by resource, never above this process's own hard limits."""
        wanted = {
            resource.RLIMIT_CORE: 0, resource.RLIMIT_NOFILE: self.files, resource.RLIMIT_FSIZE: self.disk_bytes,
            resource.RLIMIT_MEMLOCK: _MEMLOCK_BYTES,
        }  # fmt: skip
        if self.processes is not None:
            wanted[resource.RLIMIT_NPROC] = self.processes
        most = {kind: resource.getrlimit(kind)[1] for kind in wanted}
        return {
            kind: number if most[kind] == resource.RLIM_INFINITY else min(number, most[kind])
            for kind, number in wanted.items()
        }

    def impose(self) -> None:
        """Apply them to the calling process and its children, irrevocably."""
        for kind, number in self.numbers().items():
            resource.setrlimit(kind, (number, number))
        linux.set_timer_slack(_TIMERS_TOGETHER_NS)
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))  # a waking process does not preempt others
