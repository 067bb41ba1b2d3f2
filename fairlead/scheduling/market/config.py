"""Settings of the scheduling policy, with one set of defaults for every cluster and trace."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fairlead.scheduling.state import Sharing


@dataclass(frozen=True, slots=True)
class MarketConfig:
    """Parameters of the bids, shares and turns."""

    shortness: float = 0.85
    """Preference for short jobs: a device is worth 1 / (remaining time ** shortness) to a job. At 1 only the mean
    completion time counts, at 0 all jobs are equal."""

    patience: float = 3.0
    """How fast a job's bid grows as its finish moves away from the fair one: (expected finish / exclusive time) **
    patience. It bounds waiting: a job that waits long enough outbids all others."""

    stretch_limit: float = 4.0
    """Up to this stretch a bid grows with ``patience``; beyond it only in proportion."""

    tail: float = 0.85
    """A job whose remaining time is more than this part of all remaining work over all devices determines when all work
    ends; it bids at least ``tail_bid`` times the going price, and more the longer it is. This applies to declared
    work only."""

    tail_bid: float = 3.0
    tail_power: float = 2.0

    worst_off: float = 0.03
    """This part of the jobs, furthest from their fair finish, bids at least ``late_bid`` times the going price."""

    late_bid: float = 3.0

    comparison: float = 1.15
    """How sharply device types are told apart: (speed / best speed) ** comparison. Above 1, a fast type goes to the
    job that gains most by it."""

    breadth: float = 0.9
    """Worth of growth: (speed / speed of the most efficient gang) ** breadth. At 1 the sum of speeds counts, near 0
    devices are spread evenly."""

    energy: float = 0.01
    """How much less a type of device is worth that needs more energy for the same work: (least / what it needs) **
    energy. So small that it decides only between types of equal speed; at 1 half the energy would count as much as
    twice the speed, at 0 energy does not count."""

    stay: float = 1.15
    """A job that runs is worth so much more than the same job waiting, so that equal jobs do not alternate."""

    horizon_s: float = 600.0
    """How long a new gang is expected to run: a change costs restart cost / horizon of its worth."""

    min_run: float = 5.0
    """A gang is left alone until it has run for so many times what stopping it costs: its measured restart, and all its
    work if it starts over. So at most a fifth of its time is lost to stops, and a command does not take turns.
    Deadlines, guarantees, other tenants' shares and higher priorities of its own tenant come first. A larger value
    makes new jobs wait longer; at 0 no gang is left alone."""

    floor_s: float = 30.0
    """... and in any case until it has run for this long, however little a change costs: the speed of a new gang
    is hardly known, and bids drift as other jobs start and end."""

    fresh_s: float = 0.0
    """Until it has run for this long, however little a change costs, a gang is worth ``fresh`` times what it bids, as
    it is. Where rounds are a minute apart, they leave it alone for long enough."""

    fresh: float = 10.0
    """With a much larger value a large gang never outbids a stream of short jobs; with a much smaller one equal jobs
    alternate all day."""

    deadline_margin: float = 1.03
    """Safety factor on the work to be done by a deadline."""

    hopeless: float = 0.1
    """Factor of the bid of a job whose deadline is out of reach, while others can be kept."""

    guarded: float = 0.75
    """The part of its share that every tenant keeps, even when other tenants' deadlines need more than theirs."""

    repay_s: float = 10_800.0
    """Debts between tenants are repaid within this time. With a much shorter time gangs change their size all the time;
    with a much longer one large gangs do not get their turn within a day."""

    turn_s: float = 1_800.0
    """A gang that is larger than its tenant's share has its turn once that would repay the tenant's debt within this
    time. A longer time makes turns longer; a shorter one makes gangs restart more often."""

    quick_turn_s: float = 40.0
    """The same where a change costs at most two seconds: shares then hold over a few minutes. With a shorter time
    changes cost more than they even out; with a longer one a tenant of half a device waits for minutes."""

    gives: float = 0.03
    """Debts that no tenant profited from, as devices were idle or gangs restarted, are repaid by all tenants, who also
    make room for turns of large gangs; with at most this part of their shares."""

    fair: float = 0.9
    """Below this index of fairness between tenants (Jain's, of what each had over what it was due) ..."""

    hurry_s: float = 1_800.0
    """... debts are repaid within this time, until the index is ``restored`` above ``fair``."""

    restored: float = 0.02
    """A smaller margin would switch the correction on and off for an index that stays around ``fair``."""

    forget_s: float = 43_200.0
    """After this time a tenant's use and debts count half."""

    prior_shape: float = 1.0
    """Unknown durations: a job that has done x of work is expected to need ``prior_shape`` times x more."""

    prior_s: float = 300.0
    """... and this many seconds on its most efficient gang, however young it is."""

    priority_base: float = 1.25
    """Each step of priority makes a bid so many times as large, among the jobs of a tenant, for up to ten steps."""

    alpha: float = 0.5
    """Weight of memory in the resource score RS = alpha M + beta C + gamma N; a bid per device is divided by 1 + RS,
    relative to a worker that takes just its device's share."""

    beta: float = 0.5
    """... weight of cores ..."""

    gamma: float = 0.0
    """... and weight of the speed lost to the network."""

    def under(self, sharing: Sharing) -> MarketConfig:
        """This config with the settings of the cluster."""
        fair = self.fair if sharing.fair is None else sharing.fair
        forget_s = self.forget_s if sharing.forget_s is None else sharing.forget_s
        return self if (fair, forget_s) == (self.fair, self.forget_s) else replace(self, fair=fair, forget_s=forget_s)
