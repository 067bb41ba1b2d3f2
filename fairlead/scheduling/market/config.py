"""The dials of the policy: one set of defaults for every cluster and trace, each with its meaning."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fairlead.scheduling.state import Sharing


@dataclass(frozen=True, slots=True)
class MarketConfig:
    """What a device is worth to a job, relative to what it is worth to others."""

    shortness: float = 0.85
    """How much sooner short jobs come: a device is worth 1 / (remaining time ** shortness) to a job. At 1 the mean
    completion time counts alone, at 0 everybody is alike."""

    patience: float = 3.0
    """How fast a job's bid grows as its finish moves away from the fair one: (expected finish / exclusive time) **
    patience. It bounds waiting: whoever waits long enough outbids everybody."""

    stretch_limit: float = 4.0
    """Up to this stretch a bid grows with ``patience``; beyond it only in proportion."""

    tail: float = 0.85
    """A job whose remaining time is more than this part of all remaining work over all devices decides when everything
    ends; it bids at least ``tail_bid`` times the going price, and more the longer it is. Only of declared work that can
    be said."""

    tail_bid: float = 3.0
    tail_power: float = 2.0

    worst_off: float = 0.03
    """This part of the jobs, furthest from their fair finish, bids at least ``late_bid`` times the going price."""

    late_bid: float = 3.0

    comparison: float = 1.15
    """How sharply device types are told apart: (speed / best speed) ** comparison. Above 1, a fast type goes to who
    gains most by it."""

    breadth: float = 0.9
    """What growth is worth: (speed / speed of the most efficient gang) ** breadth. At 1 the sum of speeds counts,
    near 0 devices are dealt out evenly."""

    energy: float = 0.01
    """How much less a type of device is worth that needs more energy for the same work: (least / what it needs) **
    energy. So small that it decides only between types on which a job gets on alike; at 1 half the energy would count
    as much as twice the speed, at 0 it does not count."""

    stay: float = 1.15
    """A job that runs is worth so much more than the same job waiting, so that equals do not take turns."""

    horizon_s: float = 600.0
    """How long a new gang is expected to stand: a change loses restart cost / horizon of its worth."""

    min_run: float = 5.0
    """A gang is left alone until it has run for so many times what stopping it costs: its measured restart, and for one
    that starts over all that it has done. So no more than a fifth of its time is lost to being stopped, and who would
    lose everything is not made to take turns. Deadlines, guarantees, what other tenants are entitled to and a higher
    priority of its own tenant come first. Longer, and those who come wait for it; at 0 nobody is left alone."""

    floor_s: float = 30.0
    """... and in any case until it has run for this long, however little a change costs: a gang that has just come up
    has hardly shown how fast it is, and bids drift as others start and end."""

    fresh_s: float = 0.0
    """Until it has run for this long, however little a change costs, a gang is worth ``fresh`` times what it bids, as
    it is. Where rounds are a minute apart, they leave it alone for long enough."""

    fresh: float = 10.0
    """Much more, and a large gang never outbids a stream of short jobs; much less, and equals take turns all day."""

    deadline_margin: float = 1.03
    """What has to be done by a deadline is taken to be so much more than it is."""

    hopeless: float = 0.1
    """What the bid of a job is worth whose deadline cannot be kept any more, while others can be."""

    guarded: float = 0.75
    """What every tenant keeps of its share, even when deadlines of others need more than theirs."""

    repay_s: float = 10_800.0
    """Within this time a tenant is given what it was denied before, or gives back what it had too much. Much shorter,
    and gangs change their size all the time; much longer, and large gangs do not come to their turn within a day."""

    turn_s: float = 1_800.0
    """A gang for which there is no whole room in its tenant's share has its turn once that would make up for what is
    owed within this time. Longer, and a turn is more of a day; shorter, and gangs restart more often."""

    quick_turn_s: float = 40.0
    """The same where a change costs no more than two seconds: shares then hold over a few minutes. Shorter, and changes
    cost more than they even out; longer, and a tenant of half a device waits for minutes."""

    gives: float = 0.03
    """What is owed to a tenant though nobody had it, as devices were idle or gangs restarted, is repaid by all, and
    room is made for turns of large gangs; with no more than this part of their shares, so that nobody is far below its
    own for it."""

    fair: float = 0.9
    """Below this index of fairness between tenants (Jain's, of what each had over what it was due) ..."""

    hurry_s: float = 1_800.0
    """... it is repaid within this time, until the index is ``restored`` above ``fair``."""

    restored: float = 0.02
    """Less, and an index that stays around ``fair`` would have gangs hurry and rest all the time."""

    forget_s: float = 43_200.0
    """After this long, what a tenant used and what it is owed counts half."""

    prior_shape: float = 1.0
    """Unknown durations: a job that has done x of work is expected to need ``prior_shape`` times x more."""

    prior_s: float = 300.0
    """... and this many seconds on its most efficient gang, however young it is."""

    priority_base: float = 1.25
    """Each step of priority makes a bid so many times as large, among the jobs of a tenant, for up to ten steps."""

    alpha: float = 0.5
    """What memory counts in the resource score RS = alpha M + beta C + gamma N; a bid per device is divided by 1 + RS,
    relative to who takes just what a device comes with."""

    beta: float = 0.5
    """... what cores count ..."""

    gamma: float = 0.0
    """... and what the speed that is lost to the network counts."""

    def under(self, sharing: Sharing) -> MarketConfig:
        """With what was settled for this cluster."""
        fair = self.fair if sharing.fair is None else sharing.fair
        forget_s = self.forget_s if sharing.forget_s is None else sharing.forget_s
        return self if (fair, forget_s) == (self.fair, self.forget_s) else replace(self, fair=fair, forget_s=forget_s)
