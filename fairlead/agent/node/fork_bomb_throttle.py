"""Crowds make way: a worker of hundreds of processes has the cores only when nobody else wants them.

A quota bounds how much they take, but not when: hundreds that wake up cost a neighbour an eighth of its speed where
both share a core. With the least weight that there is it is a thirtieth, and when they wake up together rather than
each by a timer of its own, hardly anything (``python -m benchmarks.neighbours``).
"""

from __future__ import annotations

from collections.abc import Iterable

from fairlead.agent.node.cgroups import Group

MANY_TASKS = 200
"""Processes and threads of one worker: several times what a training on many cores has."""

SLACK_S = 0.02
"""How much later than asked one of a crowd may wake up: hundreds of timers of their own are thousands of interrupts."""


class ForkBombThrottle:
    """Those of one node."""

    def __init__(self) -> None:
        self._yielding: set[Group] = set()

    def update(self, node: Group, workers: Iterable[Group]) -> None:
        """Have crowds yield to the others of their node, and the node to other nodes if it holds nothing else."""
        present = [group for group in workers if group.folders]
        crowds = {group for group in present if group.tasks() > MANY_TASKS}
        if crowds and len(crowds) == len(present):
            crowds.add(node)
        for group in crowds - self._yielding:
            group.set_lowest_weight(True)
        for group in (self._yielding - crowds) & {node, *present}:
            group.set_lowest_weight(False)
        for group in present:
            if group in crowds:  # each time, as those who have come since may have it from nobody
                group.set_timer_slack(SLACK_S)
            elif group in self._yielding:
                group.set_timer_slack(0.0)
        self._yielding = crowds
