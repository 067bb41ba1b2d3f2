"""What jobs held, against what the ledger says: for every job, whatever befell it.

A job *uses* a device from when a node starts its worker there until the process is gone, or was given back. It is
*kept* one from when a generation with that seat is stored until none that lives has it: meanwhile nobody else can have
it, be it that its worker comes up, that other ranks of its gang still run, or that its node died and is not known to be
fenced yet. The ledger lies between both.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.storm.simulated_workers import SimWorker
    from tests.storm.world import World

_LIVE = """SELECT job, number, members, broken_s IS NOT NULL
    OR (jobs.phase = 'stopping' AND jobs."then" IN ('succeeded', 'failed', 'cancelled'))
    FROM generations JOIN jobs ON jobs.id = job WHERE generations.phase != 'ended' ORDER BY job, number"""
"""The last column: whether its seats, or some, may be another's already, who waits there for the process to go."""

SLACK_S = 1.0  # per seat and generation: coming and going is told a little later, by clocks of leaders
CLOCKS_S = 3.0  # per seat, whenever another leader with another clock goes on


class Holdings:
    """The judge of the ledger."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._used_s: defaultdict[str, float] = defaultdict(float)
        self._kept_s: defaultdict[str, float] = defaultdict(float)
        self._used_since_s: dict[SimWorker, float] = {}
        self._kept_since_s: dict[tuple[str, str], float] = {}  # by job and worker
        self._live: list[Any] = []
        self._sizes: dict[tuple[str, int], int] = {}  # by job and generation

    def begins(self, worker: SimWorker) -> None:
        self._used_since_s[worker] = self._world.loop.now_s

    def ends(self, worker: SimWorker) -> None:
        since_s = self._used_since_s.pop(worker, None)
        if since_s is not None:
            self._used_s[worker.job] += self._world.loop.now_s - since_s

    def committed(self) -> None:
        """A transaction was made: see which seats are kept for whom."""
        live = self._world.eye.execute(_LIVE).fetchall()
        if live == self._live:
            return
        self._live, now_s = live, self._world.loop.now_s
        seats: set[tuple[str, str]] = set()
        given: dict[tuple[str, int], str] = {}
        for job, number, members, gives_back in live:
            found = json.loads(members)
            self._sizes[job, number] = len(found)
            seats |= {(job, each["worker"]) for each in found}
            for each in () if gives_back else found:
                other = given.setdefault((each["node"], each["device"]), job)
                if other != job:
                    self._world.wrong("device-twice", f"{job} and {other} are given {each['node']}/{each['device']}")
        for seat in self._kept_since_s.keys() - seats:
            self._kept_s[seat[0]] += now_s - self._kept_since_s.pop(seat)
        for worker in [each for each in self._used_since_s if (each.job, each.name) not in seats]:
            self.ends(worker)  # given back: that its node is not reached, and it lives on there, is not its job's doing
        for seat in seats - self._kept_since_s.keys():
            self._kept_since_s[seat] = now_s

    def judge(self, job: str) -> None:
        """Whether the ledger says what this job held, which has ended."""
        lines = "SELECT coalesce(sum(devices * (to_s - from_s)), 0) FROM usage WHERE job = ?"
        (charged,) = self._world.eye.execute(lines, (job,)).fetchone()
        sizes = [size for (of, _), size in self._sizes.items() if of == job]
        slack_s = SLACK_S * sum(sizes) + CLOCKS_S * max(sizes, default=0) * len(self._world.leaders)
        used_s, kept_s = self._used_s[job], self._kept_s[job]
        self._world.figures.append((job, round(charged, 2), round(used_s, 2), round(kept_s, 2), round(slack_s, 2)))
        if not used_s - slack_s <= charged <= kept_s + slack_s:
            text = f"{job}: {charged:.1f} device seconds are charged, it used {used_s:.1f} and was kept {kept_s:.1f}"
            self._world.wrong("ledger", f"{text} (± {slack_s:.1f})")
