"""How jobs end, and what those that wait are told: each end and each reason has to be true of what really happened."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.storm.simulated_workers import SimWorker
    from tests.storm.world import World

ENDS = ("succeeded", "failed", "cancelled")
QUIET_S = 20.0  # when all has been well for so long, who waits has a reason that is true of what is there
DOUBTFUL_KILLS = 3  # kills of unknown origin that a job fails by, without a step in between
SAYS = {
    "segfault": "SIGSEGV", "peers": "SIGSEGV|ConnectionError", "memory": "memory", "exit": "exit code 3",
    "killed": "SIGKILL|lost its connection", "nonsense": r"invalid message|\]0;x", "odd": "",
    "segfault-at-start": "SIGSEGV", "exit-at-step": "exit code 3", "raises-at-start": "no such column",
    "exit-at-start": "exit code 7",
}  # fmt: skip
"""By what befell a job: what it says if it fails of that."""


class Ends:
    """The judge of ends and reasons."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._ranks: defaultdict[tuple[str, int], set[str]] = defaultdict(set)  # that ended well, by generation
        self._done: set[str] = set()  # commands of which all ranks did
        self._vain_since_s: dict[str, float] = {}

    def ended_well(self, worker: SimWorker) -> None:
        """A command ended by itself, with exit code 0."""
        ranks = self._ranks[worker.job, worker.generation]
        ranks.add(worker.name)
        if len(ranks) == int(worker.environment.get("WORLD_SIZE", "1")):
            self._done.add(worker.job)

    # ------------------------------------------------------------ at the end

    def judge(self, job: str, phase: str, message: str | None) -> None:
        """Whether the job ended, in a way that it had cause to."""
        world, behaviour = self._world, self._world.behaviours[job]
        blamed = world.truth.jobs[job].blamed
        if phase not in ENDS:
            text = f"{job} is {phase} ({message}); its own fault: {behaviour.fault or 'none'}, {blamed}"
            world.wrong("no-end", text)
        elif phase == "succeeded" and not self._finished(job):
            world.wrong("untrue-end", f"{job} succeeded, and has not done its work")
        elif phase == "failed" and not self._has_cause(message or "", [behaviour.fault, *blamed]):
            text = f"{job} failed ({message}); its own fault: {behaviour.fault or 'none'}, {blamed}"
            world.wrong("untrue-end", text)
        elif phase == "cancelled" and not {job, *world.flows.stage_of.get(job, ())[:1]} & world.cancelled:
            world.wrong("untrue-end", f"{job} was cancelled by nobody")

    def _finished(self, job: str) -> bool:
        world, behaviour = self._world, self._world.behaviours[job]
        if behaviour.fault:
            return False
        if behaviour.training:
            return world.durable.get(job, 0) >= behaviour.steps or "odd" in world.truth.jobs[job].blamed
        return job in self._done

    def _has_cause(self, message: str, blamed: list[str]) -> bool:
        kills = blamed.count("killed")
        causes = {each for each in blamed if each and (each != "killed" or kills >= DOUBTFUL_KILLS)}
        return bool(message) and any(re.search(SAYS[each], message) for each in causes)

    # ------------------------------------------------------------ while it waits

    def every_second(self, quiet_s: float) -> None:
        """Judge what waiting jobs are told, when all has been well for so long."""
        world = self._world
        leader = world.supervisor.present
        if quiet_s < QUIET_S or leader is None or leader.controller is None:
            self._vain_since_s.clear()
            return
        rows = world.eye.execute("SELECT id, min_workers, back_off_until_s FROM jobs WHERE phase = 'queued'").fetchall()
        now_s, free = world.loop.now_s, self._free()
        waiting = {row[0] for row in rows}
        self._vain_since_s = {job: since_s for job, since_s in self._vain_since_s.items() if job in waiting}
        for job, needs, until_s in rows:
            hold = leader.controller.last_round.holds.get(job)
            backs_off = until_s is not None and until_s > world.wall_s(leader.process)
            if backs_off or (hold is not None and self._is_true(hold.reason.code, needs, free)):
                self._vain_since_s.pop(job, None)
            elif now_s - self._vain_since_s.setdefault(job, now_s) > QUIET_S:
                told = "nothing" if hold is None else f"{hold.reason.code}: {hold.reason.text}"
                world.wrong("waits-in-vain", f"{job} needs {needs} of {free} free devices, and is told {told}")

    def _is_true(self, code: str, needs: int, free: int) -> bool:
        match code:
            case "no-such-room":
                return needs > sum(machine.shape.devices for machine in self._world.machines.values())
            case "no-room":
                return needs > free
            case "held-for-others":
                return len(self._vain_since_s) > 1
            case _:
                return False

    def _free(self) -> int:
        """Devices on which no process is, and that are kept for no gang on its way."""
        taken = {(one.manager.name, one.device) for one in self._world.workers() if not one.gone.is_set()}
        live = self._world.eye.execute("SELECT members FROM generations WHERE phase != 'ended'").fetchall()
        taken |= {(each["node"], each["device"]) for (members,) in live for each in json.loads(members)}
        return sum(machine.shape.devices for machine in self._world.machines.values()) - len(taken)
