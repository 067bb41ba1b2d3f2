"""One attempt to make room for one job, tried on a copy of the board and kept only if it suffices.

A gang that is larger than what is left of its tenant's guarantee may take the guaranteed part of it from tenants above
their claims, once the rest of it is free: that part it borrows.
"""

from __future__ import annotations

import heapq

from fairlead.scheduling.carry.board import Board
from fairlead.scheduling.carry.draft import Draft
from fairlead.scheduling.carry.gain import pressed, smaller
from fairlead.scheduling.carry.order import TURN_S
from fairlead.scheduling.carry.start import overdue
from fairlead.scheduling.state import JobState

MIN_RUN_S = 120.0
"""A gang runs for at least so long before a job of its own tenant and priority may have its turn."""

COST_SHARE = 0.1
"""... and for so long that restarting it costs no more than this part of the time it ran."""

SETTLE_S = 5.0
"""Not even a promise that is about to be broken takes devices from a sibling younger than this."""


Turn = tuple[int, bool, int, int, str]
"""Who shrinks earlier among the gangs of a tenant; its job comes last."""


class Reclaim:
    """Takes seats from victims, one after the other, until the job fits; then gives back what was too much."""

    def __init__(self, draft: Draft, job: JobState, need: int, kind: str, *, for_growth: bool = False) -> None:
        self.draft, self.job, self.need, self.kind = draft, job, need, kind
        self.shape = draft.board.shape(job).on(kind)
        self.for_growth = for_growth
        self.stays = len(job.seats) if draft.board.kind(job.seats) == kind else 0  # of a gang that moves, nobody
        self.board: Board = draft.board  # a copy of it, as soon as anything is tried
        self.taken: list[tuple[JobState, tuple[str, ...]]] = []
        self.spares: dict[str, int] = {}  # by tenant, as long as nothing more is taken
        self.starving = not for_growth and overdue(draft, job)
        lacking = 0 if for_growth else draft.lacking(job.tenant, kind) or 0
        self.insists = not for_growth and need <= lacking  # it is guaranteed
        self.covered = lacking if 0 < lacking < need and self._free() >= need - lacking else 0  # a part of it is
        self.usable = frozenset(self.board.ready(kind, self.shape.only))
        self.below = draft.headroom(job.tenant, kind) > 0  # its tenant may insist on more
        self.sure = kind in draft.sure
        self.donors: dict[str, list[Turn]] = {}  # by tenant, who would shrink first ...
        self.lined_up = -1  # ... for a gang that needs so many
        self.victims = [other for other in draft.steady_on(self.shape, self._givers()) if other.id != job.id]

    def _givers(self) -> list[str]:
        """The tenants from whom anything may be taken at all: what they have above their claims only becomes less."""
        own = self.job.tenant
        if not (self.starving or self.insists or self.below):
            return [own]
        spare = self._spare if self.starving or self.insists else self._surplus
        return [own, *(tenant for tenant in self.draft.beside(self.shape) if tenant != own and spare(tenant) > 0)]

    def _free(self) -> int:
        """Places for it that nobody uses, nor are kept for anybody else."""
        board, kept = self.draft.board, self.draft.board.held.get(self.job.id, ())
        return board.places(self.shape).total + (len(kept) if board.kind(kept) == self.kind else 0)

    def hopeless(self) -> bool:
        """Whether no victim could help: nothing above a claim, nothing of its own to take from."""
        return not any(self._may_shrink(victim) or self._may_preempt(victim) for victim in self.victims)

    def suffices(self) -> bool:
        """Whether the job fits now, under quota, and no further above its claim than its tenant was before."""
        tenant, draft = self.job.tenant, self.draft
        back = draft.used(tenant) - self.board.used.get(tenant, 0)
        if self.need > draft.quota_room(tenant, self.kind) + back:
            return False
        allowed = max(draft.headroom(tenant, self.kind), 0) + back + len(self.job.seats) - self.stays
        if self.need > allowed and not self.starving and not self.covered:
            return False
        return self.board.places(self.shape).total >= self.need

    def make_fit(self) -> bool:
        """Take from victims until the job fits; False, with all that could be taken, if it never does."""
        if self.board is self.draft.board:
            self.board = self.draft.board.copy()
            self.board.let_go(self.job)
        while not self.suffices():
            if not (self.shrink_one() or self.preempt_one()):
                return False
        return True

    def shrink_one(self) -> bool:
        """Take one worker from the elastic gang that has most to give, if there is one."""
        donor = self._next_donor()
        if donor is None:
            return False
        seats, nodes = self.board.seats[donor.id], self.board.nodes
        usable = sorted(
            (name for name in seats if name in self.usable),
            key=lambda name: (seats.count(name), nodes[name].speed, name),
        )
        fewer = len(seats) - (smaller(donor, len(seats)) or donor.min_workers)
        others = [name for name in seats if name not in self.usable]
        self._take(donor, tuple([*usable, *others][:fewer]))
        return True

    def _next_donor(self) -> JobState | None:
        """Of the tenant with most above its claim for its weight, its own last; who may not give now never will."""
        if self.lined_up != self.need:
            self._line_up()
        best: tuple[bool, float, Turn] | None = None
        for tenant, line in self.donors.items():
            if self._may_give(line):
                surplus = self._surplus(tenant) / self.draft.tenants[tenant].weight
                key = (tenant == self.job.tenant, -surplus, line[0])
                best = key if best is None else min(best, key)
        return None if best is None else self.draft.jobs[best[-1][-1]]

    def _line_up(self) -> None:
        self.donors, self.lined_up = {}, self.need
        for victim in self.victims:
            if victim.elastic:
                self.donors.setdefault(victim.tenant, []).append(self._shrinks_earlier(victim))
        for line in self.donors.values():
            heapq.heapify(line)

    def _may_give(self, line: list[Turn]) -> bool:
        """Whether somebody in this line may still shrink; who would do so first stands at its head then."""
        while line:
            victim = self.draft.jobs[line[0][-1]]
            if not self._may_shrink(victim):
                heapq.heappop(line)
            elif line[0] != (turn := self._shrinks_earlier(victim)):  # it is smaller by now
                heapq.heapreplace(line, turn)
            else:
                return True
        return False

    def preempt_one(self) -> bool:
        """Take the cheapest whole gang that may be taken, if there is one."""
        candidates = [victim for victim in self.victims if self._may_preempt(victim)]
        if not candidates:
            return False
        victim = min(candidates, key=self._cheaper)
        self._take(victim, self.board.seats[victim.id])
        return True

    def prune(self) -> None:
        """Give back whatever turns out not to be needed, the dearest (last taken) first."""
        needed = []
        for victim, seats in reversed(self.taken):
            whole = len(self.board.seats[victim.id]) + len(seats) >= victim.min_workers
            self.board.sit(victim, seats)
            if not whole or not self.suffices():
                self.board.leave(victim, seats)
                needed.append((victim, seats))
        self.taken = needed[::-1]

    def _take(self, victim: JobState, seats: tuple[str, ...]) -> None:
        self.board.leave(victim, seats)
        self.taken.append((victim, seats))
        self.spares.clear()

    def _surplus(self, tenant: str) -> int:
        """Devices above its claim, and of this type above what it is guaranteed."""
        draft = self.draft
        above = self.board.used.get(tenant, 0) - draft.given.get(tenant, 0) - draft.claims[tenant]
        return min(above, self._spare(tenant)) if self.sure else above

    def _lent(self, tenant: str) -> int:
        """Devices above its share. What is taken beyond them only repays somebody, who can wait for a gang's time."""
        draft = self.draft
        return self.board.used.get(tenant, 0) - draft.given.get(tenant, 0) - draft.portions[tenant]

    def _spare(self, tenant: str) -> int:
        """Devices of this type that it could lose while it, and whom it stands below, keep what is guaranteed."""
        if tenant not in self.spares:
            self.spares[tenant] = self._spared(tenant)
        return self.spares[tenant]

    def _spared(self, tenant: str) -> int:
        if not self.sure:
            return 1 << 30
        tree, own = self.draft.parts.tree, self.draft.parts.tree.path(self.job.tenant)
        return min(
            (
                self.draft.held(self.board, name, self.kind) - self.draft.given.get(tenant, 0) - sure
                for name in tree.path(tenant)
                if (sure := self.draft.guaranteed(name, self.kind)) and name not in own
            ),
            default=1 << 30,
        )

    def _may_shrink(self, victim: JobState) -> bool:
        seats = self.board.seats[victim.id]
        if not victim.elastic or self.usable.isdisjoint(seats):
            return False
        if len(seats) <= victim.min_workers or smaller(victim, len(seats)) is None:
            return False
        if victim.tenant == self.job.tenant:
            if victim.priority > self.job.priority:
                return False
            if not self.for_growth and (victim.priority < self.job.priority or self._longest(victim)):
                return True
            above = len(seats) > self._meant_here(victim) and not self._on_time(victim)
            return above and self._meant(self.job) > 0 and (not self.for_growth or self._rested(victim))
        if self.starving or self.insists:
            return self._spare(victim.tenant) > 0
        if not self.below or self._surplus(victim.tenant) <= 0:
            return False
        return self._lent(victim.tenant) > 0 or self._rested(victim)

    def _may_preempt(self, victim: JobState) -> bool:
        size = len(self.board.seats[victim.id])
        if not size:
            return False
        if self.for_growth:  # up to what the market would give it, from a sibling that it would not run, or not here
            own = victim.tenant == self.job.tenant and not victim.starts_over and not self._on_time(victim)
            return own and self.stays + self.need <= self._meant(self.job) and self._has_its_turn(victim)
        if victim.tenant == self.job.tenant:
            return self._outranks(victim) or self._has_its_turn(victim)
        if self.insists:  # even a last gang, or one of a tenant within its claim: what is guaranteed comes first
            return self._spare(victim.tenant) >= size
        if not self.below or self._surplus(victim.tenant) < size:
            return False
        if self._lent(victim.tenant) < size and not self._rested(victim):
            return False
        return self.board.gangs[victim.tenant] > 1

    def _outranks(self, victim: JobState) -> bool:
        """Whether its priority is higher; but who waited for its turn is left to run for a while."""
        ran_s = self.draft.now_s - victim.since_s
        its_turn = victim.since_s - victim.submitted_s >= TURN_S and ran_s < MIN_RUN_S
        return victim.priority < self.job.priority and not its_turn

    def _has_its_turn(self, victim: JobState) -> bool:
        """Whether the market has the job run now instead of its sibling, which has run for long enough, or it has
        waited longest."""
        meant = self._longest(victim) or (self._meant(self.job) > 0 and self._meant_here(victim) == 0)
        return meant and victim.priority <= self.job.priority and self._rested(victim) and not self._on_time(victim)

    def _longest(self, victim: JobState) -> bool:
        """Whether it is its turn as it has waited longest; not at the cost of somebody's promise."""
        return self.draft.turns.get(self.job.tenant) == self.job.id and victim.id not in self.draft.target.due

    def _meant(self, job: JobState) -> int:
        """Workers that it would have if the market were free to move everybody; or its smallest gang while that just
        keeps its deadline: the market can wait for the last moment, who has to make room first cannot."""
        meant = self.draft.target.size.get(job.id, 0)
        return meant or (job.min_workers if self.draft.presses(job) else 0)

    def _on_time(self, victim: JobState) -> bool:
        """Whether it keeps its deadline if it is left alone, and would hardly do so otherwise: whom nothing presses
        does not take from it."""
        return self.job.id not in self.draft.target.due and pressed(victim, len(victim.seats), self.draft.now_s)

    def _meant_here(self, victim: JobState) -> int:
        """... on devices of the type that it sits on."""
        here = self.draft.board.kind(victim.seats)
        return self._meant(victim) if self.draft.target.kind.get(victim.id, here) == here else 0

    def _rested(self, victim: JobState) -> bool:
        ran_s = self.draft.now_s - victim.since_s
        if self.job.id in self.draft.target.due:
            return ran_s >= SETTLE_S
        return ran_s >= max(MIN_RUN_S, self._cost_s(victim) / COST_SHARE)

    def _cost_s(self, victim: JobState) -> float:
        """Seconds of each of its workers that are lost when it has to come up again."""
        return victim.restart_cost_s + (self.draft.now_s - victim.since_s if victim.starts_over else 0.0)

    def _shrinks_earlier(self, victim: JobState) -> Turn:
        """Of siblings those above what the market would give them; who gives no more than is needed. Only what is taken
        from a gang itself changes its place."""
        own, size = victim.tenant == self.job.tenant, len(self.board.seats[victim.id])
        meant = own and size <= self._meant_here(victim)
        wasted = max(0, size - (smaller(victim, size) or victim.min_workers) - self.need)
        return (victim.priority, meant, wasted, victim.min_workers - size, victim.id)

    def _cheaper(self, victim: JobState) -> tuple[bool, bool, int, float, int, str]:
        size = len(self.board.seats[victim.id])
        own = victim.tenant == self.job.tenant
        within = self.insists and not own and self._surplus(victim.tenant) < size  # borrowers give back first
        return (own, within, victim.priority, self._cost_s(victim) * size, size, victim.id)
