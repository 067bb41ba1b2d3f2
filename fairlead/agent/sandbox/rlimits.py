"""What every process of a worker is bound by beside its control group, soft and hard, so that none can raise it."""

from __future__ import annotations

import os
import re
import resource
from dataclasses import dataclass

from fairlead.agent.sandbox import linux

_MEMLOCK_BYTES = 8 << 20
_TIMERS_TOGETHER_NS = 1_000_000
"""The kernel's own work on a timer is charged to nobody: hundreds of processes that sleep for a moment each, again and
again, take tens of thousands of interrupts a second from whoever runs there. Within a millisecond they share one."""
_COUNTS_APART = (5, 14)  # from this kernel on, a user's processes are counted in each user namespace for itself


def process_limit(wanted: int, *, sandboxed: bool, grouped: bool, kernel: str | None = None) -> int | None:
    """What a worker's own limit of processes is to be; None: only its control group bounds it, or nothing does.

    Older kernels, and workers without a sandbox, count all processes of the user: those of a tenant's other workers
    too, and without root everybody's. So there it is the last resort of a sandbox that has no control group.
    """
    version = re.match(r"(\d+)\.(\d+)", kernel or os.uname().release)
    apart = version is not None and (int(version[1]), int(version[2])) >= _COUNTS_APART
    return wanted if sandboxed and (apart or not grouped) else None


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one worker, from its tenant's policy."""

    files: int
    disk_bytes: int
    processes: int | None = None
    """And threads, see above. Its control group counts them too, but says no only after a fork has copied everything,
    and a bomb of forks that fail dearly is felt by the neighbours."""

    def numbers(self) -> dict[int, int]:
        """By resource; never more than this process may give."""
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
        """On the calling process and all that it starts, for good."""
        for kind, number in self.numbers().items():
            resource.setrlimit(kind, (number, number))
        linux.set_timer_slack(_TIMERS_TOGETHER_NS)
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))  # whoever wakes up does not push others aside
