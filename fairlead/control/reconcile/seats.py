"""Turns the seats of a scheduling decision into members with nodes and device numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from fairlead.cluster import Member, Node, Placement, nearby_devices, nodes_of, same_seats
from fairlead.control.reconcile.cluster_state import Facts, LiveGenerations, end_is_stored
from fairlead.control.reconcile.data_locality import explain_data_locality
from fairlead.control.reconcile.internal_errors import must_propagate
from fairlead.control.reconcile.next_generation import SeatedGang
from fairlead.control.reconcile.round_store import RoundInput
from fairlead.control.reconcile.straggler_replacement import members_that_stay
from fairlead.scheduling.state import Resize, Round, Start


def seat_gangs(state: RoundInput, decided: Round, failed: dict[str, Exception] | None = None) -> dict[str, SeatedGang]:
    """Seat each started or resized gang; a gang whose device is not free yet waits for the next round.

    Jobs that cannot be seated are put into ``failed``; without it the error is raised.
    """
    over = {job.id for job in state.jobs.values() if end_is_stored(job)}
    devices = FreeDevices(state.cluster.nodes, state.facts, state.generations, over)
    gangs: dict[str, SeatedGang] = {}
    for decision in decided.decisions:
        if not isinstance(decision, Start | Resize):
            continue
        try:
            gang = _seat_gang(state, devices, decision)
        except Exception as error:
            if failed is None or must_propagate(error):
                raise
            failed[decision.job] = error
        else:
            gangs |= {} if gang is None else {decision.job: gang}
    return gangs


def _seat_gang(state: RoundInput, devices: FreeDevices, decision: Start | Resize) -> SeatedGang | None:
    job, seats, reason = state.jobs[decision.job], decision.seats, decision.reason
    reads = next((one for one in state.cluster.jobs if one.id == job.id and "data_bytes" in one.facts), None)
    reason = reason if reads is None else explain_data_locality(reason, reads, seats)
    newest = next(reversed(state.generations.get(job.id, [])), None)
    survivors: Placement = ()
    if newest is not None and not job.training:
        return SeatedGang(job, newest.members, reason, newest)  # a command cannot be resized, it starts over
    if newest is not None:
        workers = state.facts.get(job.id, {})
        alive = tuple(m for m in newest.members if m.worker in workers and workers[m.worker].alive)
        survivors = members_that_stay(alive, workers, reason)
        if newest.broken_s is None and same_seats(seats, nodes_of(survivors)):
            return None
    placed = devices.place(seats, survivors, job.next_worker)
    return None if placed is None else SeatedGang(job, placed[0], reason, newest, placed[1])


class FreeDevices:
    """The free device indices of each node."""

    def __init__(
        self, nodes: Iterable[Node], facts: Facts, generations: LiveGenerations, over: Collection[str] = ()
    ) -> None:
        """``over``: jobs whose finished workers no longer hold a device."""
        self._free: dict[str, list[int]] = {}
        self._numa: dict[str, tuple[int, ...]] = {}
        for node in nodes:
            self._free[node.name] = list(range(node.devices))
            self._numa[node.name] = node.numa
        for job, workers in facts.items():
            for fact in workers.values():
                if not (job in over and fact.phase == "finished"):
                    self._take(fact.node, fact.device)  # even if it exited: its device is free once released
        for job, live in generations.items():
            known = facts.get(job, {})
            whole = (generation for generation in live if generation.broken_s is None)
            for member in (member for generation in whole for member in generation.members):
                if member.worker not in known:  # planned; in a broken generation it would be a lost member
                    self._take(member.node, member.device)

    def _take(self, node: str, device: int) -> None:
        free = self._free.get(node, [])
        if device in free:
            free.remove(device)

    def _nearby(self, node: str, count: int) -> list[int]:
        return sorted(nearby_devices(self._free[node], self._numa.get(node, ()), count))

    def place(self, seats: Sequence[str], survivors: Placement, next_worker: int) -> tuple[Placement, int] | None:
        """Members for the seats, survivors first in their old order; None while a device is not free yet."""
        wanted = Counter(seats)
        staying = []
        for member in sorted(survivors, key=lambda member: member.rank):
            if wanted[member.node] > 0:
                wanted[member.node] -= 1
                staying.append(member)
        missing = sorted(wanted.elements())
        if any(count > len(self._free.get(node, [])) for node, count in Counter(missing).items()):
            return None
        newcomers = [(f"w{next_worker + index}", node) for index, node in enumerate(missing)]
        members = [Member(m.worker, rank, m.node, m.device) for rank, m in enumerate(staying)]
        chosen = {node: self._nearby(node, count) for node, count in Counter(missing).items()}
        for worker, node in newcomers:
            device = chosen[node].pop(0)
            self._free[node].remove(device)
            members.append(Member(worker, len(members), node, device))
        return tuple(members), next_worker + len(newcomers)
