"""Lowers the CPU weight of workers with hundreds of processes, so that they get only cores that no other worker wants.

A quota bounds how much cpu they take, but not when: hundreds of waking processes cost a neighbour an eighth of its
speed on a shared core. With the lowest weight it is a thirtieth, and with timers that fire together instead of one by
one hardly anything (``python -m benchmarks.neighbours``).
"""

from __future__ import annotations

from collections.abc import Iterable

from fairlead.agent.node.cgroups import Group

MANY_TASKS = 200
"""Tasks (processes and threads) of one worker: several times those of a training on many cores."""

SLACK_S = 0.02
"""Timer slack for such workers: hundreds of separate timers cause thousands of interrupts a second."""


class ForkBombThrottle:
    """Throttles the workers of one node."""

    def __init__(self) -> None:
        self._yielding: set[Group] = set()

    def update(self, node: Group, workers: Iterable[Group]) -> None:
        """Lower workers with many tasks below the node's others; the whole node too if it has no other workers."""
        present = [group for group in workers if group.folders]
        crowds = {group for group in present if group.tasks() > MANY_TASKS}
        if crowds and len(crowds) == len(present):
            crowds.add(node)
        for group in crowds - self._yielding:
            group.set_lowest_weight(True)
        for group in (self._yielding - crowds) & {node, *present}:
            group.set_lowest_weight(False)
        for group in present:
            if group in crowds:  # every time: threads may have been added
                group.set_timer_slack(SLACK_S)
            elif group in self._yielding:
                group.set_timer_slack(0.0)
        self._yielding = crowds
