"""Figures of one run of tenants, from what was seen outside of the platform. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from benchmarks.tenants_reference import TURN_S, Promise
from benchmarks.tenants_reference import kept as reference_keeps
from benchmarks.tenants_world import BEGIN_S, EXPONENT, Ask, Course, Kill, Span
from fairlead.scheduling.metrics import jain

WARM_S = 30.0
"""So long nothing counts for shares: everybody begins at once."""

WINDOW_S = 10.0
METERED_S = 20.0  # so long the ledger may lag

Dues = Mapping[str, Sequence[tuple[float, float]]]
"""Of each tenant, the devices that are its due from each moment on."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """From a kill to the next step of a gang that it hit, or to the end of the run, if it took none."""

    kind: str
    job: str
    at_s: float
    took_s: float
    stepped: bool = True
    why_not: str = ""  # why it is not among those that must go on at once


@dataclass(frozen=True, slots=True)
class Missed:
    """A promise that was not kept, and what became of its time."""

    job: str
    late_s: float | None  # None: had not ended
    reference: bool  # it keeps it
    cause: str
    story: str


@dataclass
class Figures:
    """One run."""

    seed: int = 0
    promises: int = 0
    kept: int = 0
    reference: int = 0  # promises that the reference keeps
    kept_of_reference: int = 0
    told_kept: int = 0  # as the platform says
    charged: float | None = None  # device time of jobs that ended a while ago, as the platform has it, over what it was
    told_recoveries_s: Sequence[float] = ()
    jain_devices: float = 1.0
    jain_steps: float = 1.0
    worst_window: float = 1.0
    recoveries: list[Recovery] = field(default_factory=list)
    kills: Mapping[str, int] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    preempts: int = 0
    resizes: int = 0
    jobs: int = 0  # that ended
    used: float = 0.0  # part of all device time that was held
    lost_to_changes: float = 0.0  # part of the device time that was held
    lost_to_kills: float = 0.0
    empty_s: float = 0.0  # the longest that a tenant with work held nothing
    empty_of: str = ""
    empty_part: float = 0.0  # of what its largest gang may wait for its turn, the most that any tenant held nothing
    ratios: Mapping[str, float] = field(default_factory=dict)  # used / due, by tenant
    missed: list[Missed] = field(default_factory=list)


def figures(course: Course) -> Figures:
    """All of them."""
    dues = due_of(course)
    seen = Figures(preempts=course.preempts, resizes=course.resizes, jobs=len(course.ended))
    seen.lost, seen.doubled, seen.wrong = list(course.failed), list(course.doubled), list(course.wrong)
    _promises(seen, course, dues)
    _shares(seen, course, dues)
    seen.kills = dict(Counter(kill.kind for kill in course.kills))
    seen.recoveries = [one for kill in course.kills for one in recoveries(course, kill, dues)]
    _changes(seen, course)
    seen.told_recoveries_s = list(course.told_recoveries_s)
    waits = {tenant: longest_empty(course, tenant) for tenant in course.weights}
    seen.empty_of = max(waits, key=lambda tenant: waits[tenant])
    seen.empty_s = waits[seen.empty_of]
    means = {tenant: due / course.span.long_s for tenant, due in _due_in(dues, course.span).items()}
    seen.empty_part = max((waits[tenant] * mean / (TURN_S * gang(course, tenant)) for tenant, mean in means.items()),
                          default=0.0)  # fmt: skip
    return seen


# ------------------------------------------------------------ shares


def max_min(weights: Mapping[str, float], wants: Mapping[str, float], devices: float) -> dict[str, float]:
    """Devices of each tenant: by weight, but none more than it wants."""
    given = dict.fromkeys(weights, 0.0)
    left, open_to = devices, {name for name in weights if wants.get(name, 0.0) > 0}
    while open_to and left > 0:
        part = left / sum(weights[name] for name in open_to)
        full = {name for name in open_to if wants[name] <= part * weights[name]}
        for name in full or open_to:
            given[name] = wants[name] if full else part * weights[name]
        left -= sum(given[name] for name in full or open_to)
        open_to = open_to - full if full else set()
    return given


def due_of(course: Course) -> dict[str, list[tuple[float, float]]]:
    """What is each tenant's due, from each submission or end on: as much as its open jobs can use."""
    changes: list[tuple[float, str, int]] = []
    for ask in course.asks.values():
        changes.append((max(ask.submitted_s, course.span.from_s), ask.tenant, ask.most))
        if ask.id in course.ended:
            changes.append((course.ended[ask.id], ask.tenant, -ask.most))
    wants = dict.fromkeys(course.weights, 0.0)
    dues: dict[str, list[tuple[float, float]]] = {name: [(course.span.from_s, 0.0)] for name in wants}
    for at_s, tenant, more in sorted(changes):
        wants[tenant] += more
        for name, rate in max_min(course.weights, wants, course.devices).items():
            if dues[name][-1][1] != rate:
                dues[name].append((at_s, rate))
    return dues


def summed(steps: Sequence[tuple[float, float]], span: Span) -> float:
    """A rate over a span."""
    ends = [*(at_s for at_s, _ in steps[1:]), span.to_s]
    return sum(rate * Span(at_s, to_s).within(span) for (at_s, rate), to_s in zip(steps, ends, strict=True))


def rate_at(steps: Sequence[tuple[float, float]], at_s: float) -> float:
    """The rate at one moment."""
    return next((rate for from_s, rate in reversed(steps) if from_s <= at_s), 0.0)


def _shares(seen: Figures, course: Course, dues: Dues) -> None:
    span = Span(course.span.from_s + WARM_S, course.span.to_s)
    spans, at_s = [], span.from_s
    while at_s + WINDOW_S <= span.to_s:
        spans.append(Span(at_s, at_s + WINDOW_S))
        at_s += WINDOW_S
    seen.ratios = ratios(course, dues, span)
    seen.jain_devices = jain(seen.ratios.values())
    seen.worst_window = min((jain(ratios(course, dues, one).values()) for one in spans), default=1.0)
    useful = useful_s(course, span)
    seen.jain_steps = jain(useful[name] / due for name, due in _due_in(dues, span).items() if due > 0)
    held = sum(one.within(course.span) for spans in course.held.values() for one in spans)
    seen.used = held / (course.devices * course.span.long_s)
    over = [job for job, at_s in course.ended.items() if course.told_device_s and at_s < course.span.to_s - METERED_S]
    really_s = sum(one.long_s for job in over for one in course.held.get(job, ()))
    seen.charged = sum(course.told_device_s.get(job, 0.0) for job in over) / really_s if really_s else None


def _due_in(dues: Dues, span: Span) -> dict[str, float]:
    return {name: summed(steps, span) for name, steps in dues.items()}


def ratios(course: Course, dues: Dues, span: Span) -> dict[str, float]:
    """Device time that each tenant used over what was its due."""
    used = dict.fromkeys(course.weights, 0.0)
    for job, spans in course.held.items():
        used[course.asks[job].tenant] += sum(one.within(span) for one in spans)
    return {name: used[name] / due for name, due in _due_in(dues, span).items() if due > 0}


def useful_s(course: Course, span: Span) -> dict[str, float]:
    """Work of each tenant, in seconds of one worker, that was done once and for all."""
    done = dict.fromkeys(course.weights, 0.0)
    for job, steps in course.steps.items():
        reached = 0
        for at_s, step in steps:
            if step > reached and span.from_s <= at_s <= span.to_s:
                done[course.asks[job].tenant] += course.step_s[job]
            reached = max(reached, step)
    for ask in course.asks.values():
        if ask.kind == "command" and course.worked[ask.id]:
            last, _ = course.worked[ask.id][-1]
            if ask.id in course.ended or last.to_s >= course.span.to_s:  # else it was stopped, and starts over
                done[ask.tenant] += last.within(span)
    return done


def gang(course: Course, tenant: str) -> int:
    """A tenant's largest gang."""
    return max((ask.least for ask in course.asks.values() if ask.tenant == tenant), default=1)


def longest_empty(course: Course, tenant: str) -> float:
    """The longest that a tenant had work in the cluster and held no device."""
    own = [ask for ask in course.asks.values() if ask.tenant == tenant]
    wants = union(Span(ask.submitted_s, course.ended.get(ask.id, course.span.to_s)) for ask in own)
    has = union(span for ask in own for span in course.held.get(ask.id, ()))
    return max((one.long_s for one in gaps(wants, has)), default=0.0)


def union(spans: Iterable[Span]) -> list[Span]:
    """The same time in as few spans as possible."""
    found: list[Span] = []
    for span in sorted(spans, key=lambda one: one.from_s):
        if found and span.from_s <= found[-1].to_s:
            found[-1] = Span(found[-1].from_s, max(found[-1].to_s, span.to_s))
        else:
            found.append(span)
    return found


def gaps(wants: Sequence[Span], has: Sequence[Span]) -> list[Span]:
    """What is in the former and not in the latter; both are unions."""
    found = []
    for span in wants:
        at_s = span.from_s
        for other in has:
            if other.to_s <= at_s or other.from_s >= span.to_s:
                continue
            if other.from_s > at_s:
                found.append(Span(at_s, other.from_s))
            at_s = other.to_s
        if at_s < span.to_s:
            found.append(Span(at_s, span.to_s))
    return found


# ------------------------------------------------------------ recovery and changes


def recoveries(course: Course, kill: Kill, dues: Dues) -> list[Recovery]:
    """How long each gang that was hit took to its next step."""
    found = []
    for job in kill.jobs:
        ask = course.asks[job]
        next_s = next_step_s(course, job, kill.at_s)
        due = rate_at(dues[ask.tenant], kill.at_s)
        why_not = ""
        if kill.others.get(job, 0) + ask.least > -(-due // 1):
            why_not = f"its tenant holds {kill.others.get(job, 0)} more, {due:.2f} are its due"
        if next_s is None and course.span.to_s - kill.at_s < WINDOW_S:
            why_not = "the run was over soon"
        took_s = (course.span.to_s if next_s is None else next_s) - kill.at_s
        found.append(Recovery(kill.kind, job, kill.at_s, took_s, next_s is not None, why_not))
    return found


def next_step_s(course: Course, job: str, at_s: float) -> float | None:
    """When a gang took its next step; a command is at work or not."""
    if course.asks[job].kind != "command":
        return next((stepped_s for stepped_s, _ in course.steps.get(job, ()) if stepped_s > at_s), None)
    works = [span for span, _ in course.worked.get(job, ()) if span.to_s > at_s]
    return max(at_s, works[0].from_s) if works else None


def _changes(seen: Figures, course: Course) -> None:
    """Device time that was held without a step between two times at work, and that of steps which were done again."""
    held_s = sum(one.within(course.span) for spans in course.held.values() for one in spans)
    lost_s, killed_s = 0.0, 0.0
    for job, works in course.worked.items():
        hits = [kill.at_s for kill in course.kills if job in kill.jobs and kill.kind != "control-plane"]
        for (former, size), (latter, _) in pairwise(works):
            pause = Span(former.to_s, latter.from_s)
            idle_s = sum(one.within(pause) for one in course.held.get(job, ()))
            idle_s += former.long_s if course.asks[job].kind == "command" else repeated_s(course, job, latter) * size
            if any(former.to_s - 1.0 <= at_s <= latter.from_s for at_s in hits):
                killed_s += idle_s
            else:
                lost_s += idle_s
    seen.lost_to_changes, seen.lost_to_kills = lost_s / max(held_s, 1e-9), killed_s / max(held_s, 1e-9)


def repeated_s(course: Course, job: str, span: Span) -> float:
    """How long a gang did steps again that had been done before, in this span."""
    reached, again, last_s = 0, 0.0, span.from_s
    for at_s, step in course.steps.get(job, ()):
        if span.from_s <= at_s <= span.to_s:
            again += at_s - last_s if step <= reached else 0.0
            last_s = at_s
        reached = max(reached, step)
    return again


def pooled(found: Sequence[Recovery]) -> tuple[float | None, float | None]:
    """Median and worst of those that must go on at once."""
    times = [one.took_s for one in found if not one.why_not]
    return (median(times), max(times)) if times else (None, None)


# ------------------------------------------------------------ promises


def _promises(seen: Figures, course: Course, dues: Dues) -> None:
    due = [ask for ask in course.asks.values() if ask.deadline_s is not None and ask.deadline_s <= course.span.to_s]
    reference = reference_keeps(
        [promise(ask) for ask in course.asks.values() if ask.deadline_s is not None], dues, course.devices,
        {name: gang(course, name) for name in dues}, begin_s=BEGIN_S,
    )  # fmt: skip
    for ask in due:
        assert ask.deadline_s is not None
        ended_s = course.ended.get(ask.id)
        holds, could = ended_s is not None and ended_s <= ask.deadline_s, ask.id in reference
        seen.promises += 1
        seen.kept += holds
        seen.reference += could
        seen.kept_of_reference += holds and could
        seen.told_kept += course.told_kept.get(ask.id, False)
        if not holds:
            seen.missed.append(missed(course, ask, dues, reference=could))


def promise(ask: Ask) -> Promise:
    """A job with a deadline, as the reference sees it."""
    assert ask.deadline_s is not None
    runs_s = {size: ask.run_s(size) for size in range(ask.least, ask.most + 1)}
    return Promise(ask.id, ask.tenant, ask.submitted_s, ask.deadline_s, runs_s)


def missed(course: Course, ask: Ask, dues: Dues, *, reference: bool) -> Missed:
    """What became of the time of a job that was late, up to its deadline; the largest part is its likely cause."""
    assert ask.deadline_s is not None
    life = Span(ask.submitted_s, ask.deadline_s)
    has = [one for one in union(course.held.get(ask.id, ())) if one.within(life) > 0]
    first_s = min(has[0].from_s if has else life.to_s, life.to_s)
    works = [(span, size) for span, size in course.worked.get(ask.id, ()) if span.within(life) > 0]
    at_work_s = sum(span.within(life) for span, _ in works)
    waits = gaps([life], has)
    waited = Span(life.from_s, first_s)
    again_s = sum(one.long_s for one in waits if one.from_s >= first_s)
    coming_s = max(0.0, sum(one.within(life) for one in has) - at_work_s)
    done_s = sum(span.within(life) * size**EXPONENT for span, size in works)
    small_s = max(0.0, at_work_s - ask.run_s(ask.most)) if ask.most > ask.least else 0.0
    again_s += sum(span.within(life) for span, _ in works[:-1]) if ask.kind == "command" else 0.0
    parts = {
        "waited for its first device": waited.long_s, "waited after it was stopped": again_s,
        "ran with fewer devices than it could": small_s, "was coming up": coming_s,
    }  # fmt: skip
    hits = [f"{kill.kind} killed at {kill.at_s:.1f}" for kill in course.kills
            if life.from_s - 5.0 <= kill.at_s <= life.to_s
            and (ask.id in kill.jobs or kill.kind == "control-plane")]  # fmt: skip
    cause = max(parts, key=lambda name: parts[name])
    killed = any(ask.id in kill.jobs and kill.kind != "control-plane" and kill.at_s <= life.to_s
                 for kill in course.kills)  # fmt: skip
    if killed:
        cause = "was killed"
    ended_s = course.ended.get(ask.id)
    late = "had not ended" if ended_s is None else f"{ended_s - ask.deadline_s:.1f} s late"
    told = ", ".join(f"{name} {each:.1f} s" for name, each in parts.items() if each > 0.5)
    alone_s = ask.run_s(ask.least)
    story = [f"asked at {ask.submitted_s:.1f} with {life.long_s:.1f} s, {alone_s:.1f} s of work, {late}: {told}",
             beside(course, ask, waits, dues), f"{min(done_s / ask.work_s, 1.0):.0%} done in time", *hits]  # fmt: skip
    return Missed(ask.id, None if ended_s is None else ended_s - ask.deadline_s, reference, cause, "; ".join(story))


def beside(course: Course, ask: Ask, waits: Sequence[Span], dues: Dues) -> str:
    """Where the devices were while it waited: mean numbers."""
    total_s = sum(one.long_s for one in waits)
    if total_s < 0.5:
        return "never waited"
    parts: defaultdict[str, float] = defaultdict(float)
    for job, spans in course.held.items():
        other = course.asks[job]
        whose = "its tenant's" if other.tenant == ask.tenant else "others'"
        kind = whose + (" promised" if other.deadline_s is not None else " unpromised")
        parts[kind] += sum(one.within(wait) for one in spans for wait in waits)
    idle_s = max(0.0, course.devices * total_s - sum(parts.values()))
    due = sum(summed(dues[ask.tenant], wait) for wait in waits) / total_s
    text = ", ".join(f"{each / total_s:.1f} {kind}" for kind, each in sorted(parts.items()) if each / total_s >= 0.05)
    return f"meanwhile {text}, {idle_s / total_s:.1f} idle ({due:.2f} its tenant's due)"
