"""What deaths mean: what counts ends in a failure soon, what others cause never does, and progress is remembered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.recovery.deaths import DOUBTFUL, FINAL, OTHERS, OWN, Cause, Death
from fairlead.recovery.policy import FORGET_S, LONGEST_S, OFTEN, SPACING_S, TIMES, back_off_s, decide
from fairlead.recovery.verdicts import Action, Situation, Verdict


@dataclass
class Played:
    """A job whose workers die, with what is remembered of it as the control plane does that."""

    retries: int = 0
    min_workers: int = 1
    training: bool = True
    plan: str | None = None
    failures: int = 0
    generation: int = 0
    now_s: float = 1000.0
    former: tuple[Death, ...] = ()
    verdicts: list[Verdict] = field(default_factory=list)

    def dies(
        self, cause: Cause, *, step: int = 0, survivors: int = 0, joined: bool = True, progress_s: float = 0.0,
        workers: Sequence[str] = ("w0",),
    ) -> Verdict:  # fmt: skip
        self.generation += 1
        self.now_s += progress_s + 1.0
        deaths = tuple(Death(worker, cause, self.generation, "SIGSEGV", step, self.now_s, joined) for worker in workers)
        verdict = decide(Situation(
            "job-1", self.training, deaths, self.former, self.retries, self.failures, self.min_workers, survivors,
            step, progress_s, self.plan,
        ))  # fmt: skip
        done = tuple(replace(death, answered=True, spared=verdict.spares, counted=verdict.counts) for death in deaths)
        self.former = done if verdict.resets_history else (*self.former, *done)
        self.failures = (0 if verdict.resets_history else self.failures) + verdict.counts
        self.plan = None if verdict.without_plan else self.plan
        self.now_s += verdict.after_s
        self.verdicts.append(verdict)
        return verdict

    def to_the_end(self, cause: Cause, **facts: object) -> int:
        """How many deaths it takes until the job fails."""
        for times in range(1, 1000):
            if self.dies(cause, **facts).action is Action.FAIL:  # type: ignore[arg-type]
                return times
        raise AssertionError("it never fails")


def ordered(causes: frozenset[Cause]) -> list[Cause]:
    return sorted(causes)


@pytest.mark.parametrize("cause", ordered(OWN))
@pytest.mark.parametrize("retries", [0, 1, 5])
def test_what_is_the_jobs_fault_counts_at_once(cause: Cause, retries: int) -> None:
    assert Played(retries).to_the_end(cause) == retries + 1
    assert Played(retries, training=False).to_the_end(cause) == retries + 1


@pytest.mark.parametrize("cause", ordered(OWN))
def test_steps_in_between_make_no_difference_to_what_is_the_jobs_fault(cause: Cause) -> None:
    job = Played(retries=2)
    assert [job.dies(cause, step=step).action for step in (10, 20, 30)] == [
        Action.START_OVER, Action.START_OVER, Action.FAIL
    ]  # fmt: skip


@pytest.mark.parametrize("cause", ordered(FINAL))
def test_what_another_attempt_cannot_help_is_not_tried_again(cause: Cause) -> None:
    assert Played(retries=5).to_the_end(cause) == 1


@pytest.mark.parametrize("cause", ordered(DOUBTFUL))
@pytest.mark.parametrize("retries", [0, 1, 40])
def test_what_is_in_doubt_counts_when_it_comes_three_times_at_the_same_step(cause: Cause, retries: int) -> None:
    assert Played(retries).to_the_end(cause, step=7) == TIMES * (retries + 1)
    assert Played(retries, training=False).to_the_end(cause) == TIMES * (retries + 1)


@pytest.mark.parametrize("cause", ordered(DOUBTFUL))
def test_what_is_in_doubt_never_counts_while_the_job_gets_further(cause: Cause) -> None:
    job = Played()
    assert not any(job.dies(cause, step=step).counts for step in range(1, 50))
    assert job.dies(cause, step=49).action is Action.START_OVER, "the second at step 49"
    assert job.dies(cause, step=40).action is Action.FAIL, "the third, and it has never passed step 49"


@given(st.lists(st.sampled_from(ordered(OTHERS)), max_size=30), st.integers(0, 3), st.booleans())
def test_what_others_cause_never_counts(causes: list[Cause], survivors: int, training: bool) -> None:
    job = Played(training=training, min_workers=2)
    for cause in causes:
        verdict = job.dies(cause, survivors=survivors)
        assert verdict.action is not Action.FAIL and not verdict.counts
    assert job.dies(Cause.KILLED).action is Action.START_OVER, "and says nothing of the job"


@given(st.data())
def test_whatever_a_job_without_progress_dies_of_it_ends(data: st.DataObject) -> None:
    job, causes = Played(retries=data.draw(st.integers(0, 3))), st.sampled_from(ordered(OWN | DOUBTFUL))
    for times in range(1, 100):
        verdict = job.dies(data.draw(causes), step=3, survivors=data.draw(st.integers(0, 2)))
        if verdict.action is Action.FAIL:
            assert times <= TIMES * (job.retries + 1) + TIMES - 1
            return
    raise AssertionError("it never fails")


@given(st.lists(st.tuples(
    st.sampled_from(ordered(frozenset(Cause))), st.integers(0, 5), st.integers(0, 4), st.booleans(),
    st.sampled_from([0.0, 10.0, 700.0]),
), max_size=25), st.integers(0, 3), st.integers(1, 3), st.booleans(), st.none() | st.just("fsdp2"))  # fmt: skip
def test_every_verdict_makes_sense(
    script: list[tuple[Cause, int, int, bool, float]], retries: int, least: int, training: bool, plan: str | None
) -> None:
    job = Played(retries, least, training, plan)
    for cause, step, survivors, joined, progress_s in script:
        had_plan = job.plan is not None
        verdict = job.dies(cause, step=step, survivors=survivors, joined=joined, progress_s=progress_s)
        assert verdict.text and "\n" not in verdict.text and verdict.code == f"worker-{cause}"
        assert 0.0 <= verdict.after_s <= LONGEST_S
        assert job.failures <= job.retries + 1
        assert not (verdict.counts and verdict.spares)
        assert had_plan or not verdict.without_plan
        if verdict.action is Action.GO_ON:
            assert training and survivors > 0 and not verdict.counts
        if verdict.spares:
            assert not joined and survivors >= least
        if verdict.action is Action.FAIL:
            return


def test_repetitions_back_off_ever_longer_up_to_a_limit() -> None:
    job = Played(retries=100)
    pauses = [job.dies(Cause.EXITED).after_s for _ in range(10)]
    assert pauses == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]
    assert job.dies(Cause.NODE_LOST).after_s == 0.0, "another cause"
    assert job.dies(Cause.EXITED, step=9).after_s == 0.0, "it got further"
    assert back_off_s(10**9) == LONGEST_S


def test_a_full_disk_before_the_start_is_tried_again_and_again() -> None:
    job = Played()
    verdicts = [job.dies(Cause.NO_ROOM, joined=False) for _ in range(50)]
    assert {verdict.action for verdict in verdicts} == {Action.START_OVER}
    assert verdicts[0].after_s == 0.0 and verdicts[-1].after_s == LONGEST_S
    assert "because the disk was full" in verdicts[-1].text


def test_ten_minutes_of_progress_make_up_for_all_before() -> None:
    job = Played(retries=1)
    job.dies(Cause.CRASHED, step=5)
    assert FORGET_S == 600.0
    verdict = job.dies(Cause.CRASHED, step=900, progress_s=FORGET_S)
    assert (verdict.action, verdict.resets_history, verdict.after_s) == (Action.START_OVER, True, 0.0)
    assert (job.failures, len(job.former)) == (1, 1)
    assert job.dies(Cause.CRASHED, step=1800, progress_s=FORGET_S - 1).action is Action.FAIL


def test_time_without_a_new_step_is_no_progress() -> None:
    job = Played(retries=1)
    job.dies(Cause.CRASHED, step=5)
    assert job.dies(Cause.CRASHED, step=5, progress_s=10 * FORGET_S).action is Action.FAIL
    command = Played(retries=1, training=False)
    command.dies(Cause.EXITED)
    assert command.dies(Cause.EXITED, progress_s=FORGET_S).action is Action.START_OVER, "a command takes no steps"


def test_survivors_go_on_when_they_are_enough() -> None:
    assert Played(min_workers=2).dies(Cause.KILLED, survivors=2).action is Action.GO_ON
    assert Played(min_workers=2).dies(Cause.NODE_LOST, survivors=3).action is Action.GO_ON
    short = Played(min_workers=2)
    assert short.dies(Cause.KILLED, survivors=1).action is Action.GO_ON, "another may take the place, once"
    assert short.dies(Cause.KILLED, survivors=1).action is Action.START_OVER
    assert Played(training=False).dies(Cause.NODE_LOST, survivors=3).action is Action.START_OVER


@pytest.mark.parametrize("cause", [Cause.CRASHED, Cause.EXITED, Cause.UNFINISHED, Cause.OUT_OF_MEMORY, Cause.KILLED])
def test_a_gang_goes_on_without_one_that_dies_at_its_start(cause: Cause) -> None:
    job = Played(min_workers=1)
    verdicts = [job.dies(cause, survivors=1, joined=False) for _ in range(20)]
    assert {verdict.action for verdict in verdicts} == {Action.GO_ON} and job.failures == 0
    assert [verdict.after_s for verdict in verdicts[:3]] == [1.0, 2.0, 4.0], "it is tried less and less"
    assert verdicts[-1].after_s == LONGEST_S
    assert job.dies(cause, survivors=0, joined=False).action is (
        Action.START_OVER if cause is Cause.KILLED else Action.FAIL
    )


def test_a_gang_that_needs_all_does_not_go_on_without_one() -> None:
    assert Played(min_workers=2).dies(Cause.CRASHED, survivors=1, joined=False).action is Action.FAIL


def test_an_error_that_one_worker_raises_at_its_start_is_not_passed_over() -> None:
    assert Played().dies(Cause.RAISED, survivors=1, joined=False).action is Action.FAIL


def test_a_plan_is_blamed_before_the_job() -> None:
    job = Played(plan="fsdp2")
    verdict = job.dies(Cause.RAISED, step=4)
    assert (verdict.action, verdict.without_plan, verdict.counts) == (Action.START_OVER, True, False)
    assert job.dies(Cause.RAISED, step=4).action is Action.FAIL
    doubtful = Played(plan="fsdp2", min_workers=1)
    first, second = (doubtful.dies(Cause.LOST_TOUCH, survivors=2) for _ in range(2))
    assert (first.without_plan, second.without_plan) == (False, True)
    assert first.action is second.action is Action.GO_ON
    assert not Played(plan="fsdp2").dies(Cause.NODE_LOST).without_plan


def test_several_deaths_of_one_generation_count_once() -> None:
    job = Played()
    for _ in range(2):
        assert job.dies(Cause.KILLED, workers=("w0", "w1", "w2")).action is Action.START_OVER
    assert job.dies(Cause.KILLED, workers=("w0", "w1", "w2")).action is Action.FAIL


def test_a_death_that_is_heard_of_later_explains_the_generation() -> None:
    touched = Death("w0", Cause.LOST_TOUCH, 3, step=8, time_s=10.0, answered=True)
    earlier = tuple(Death("w0", Cause.LOST_TOUCH, number, step=8, time_s=1.0, answered=True) for number in (1, 2))
    lost = Death("w1", Cause.NODE_LOST, 3, step=8, time_s=19.0)
    verdict = decide(Situation("job-1", True, (lost,), (*earlier, touched), survivors=1, step=8))
    assert verdict.action is Action.GO_ON and not verdict.counts


@pytest.mark.parametrize(
    ("causes", "steps", "said"),
    [
        ([Cause.CRASHED], [0], "w0 was killed by SIGSEGV before step 1; see fairlead logs job-1"),
        ([Cause.CRASHED], [39], "w0 was killed by SIGSEGV after step 39; see fairlead logs job-1"),
        ([Cause.CRASHED] * 2, [0, 0],
         "w0 was killed by SIGSEGV before step 1, 2 times in a row; see fairlead logs job-1"),
        ([Cause.CRASHED] * 3, [31, 39, 39],
         "w0 was killed by SIGSEGV (2 times at step 40: perhaps a poison batch); see fairlead logs job-1"),
        ([Cause.RAISED] * 2, [39, 39], "w0: SIGSEGV (2 times at step 40: perhaps a poison batch)"),
    ],
)  # fmt: skip
def test_the_reason_names_signal_and_step(causes: list[Cause], steps: list[int], said: str) -> None:
    job = Played(retries=len(causes) - 1)
    for cause, step in zip(causes, steps, strict=True):
        job.dies(cause, step=step)
    assert (job.verdicts[-1].action, job.verdicts[-1].text) == (Action.FAIL, said)


@pytest.mark.parametrize("cause", list(Cause))
def test_the_same_situation_has_the_same_answer(cause: Cause) -> None:
    asked = Situation("job-1", True, (Death("w0", cause, 1),), survivors=1)
    assert decide(asked) == decide(asked)


@pytest.mark.parametrize("passed_over", [1, 2])
def test_a_gang_that_dies_after_some_were_passed_over_is_judged_by_its_own_deaths(passed_over: int) -> None:
    """Also when the generation that was to follow it was given up before."""
    former = Death("w9", Cause.CRASHED, passed_over, "SIGSEGV", time_s=1.0, joined=False, spared=True, answered=True)
    last = Death("w0", Cause.CRASHED, 1, "SIGSEGV", time_s=2.0, joined=False)
    verdict = decide(Situation("j", True, (last,), (former,)))
    assert verdict.action is Action.FAIL and "w0 was killed by SIGSEGV" in verdict.text


@pytest.mark.parametrize("cause", ordered(OWN | DOUBTFUL | OTHERS))
def test_deaths_that_come_again_and_again_back_off_whatever_step_was_made_in_between(cause: Cause) -> None:
    job = Played(retries=100)
    for step in range(1, 25):
        job.dies(cause, step=step)
    pauses = [verdict.after_s for verdict in job.verdicts]
    assert pauses[:OFTEN] == [0.0] * OFTEN, "kills now and then cost nothing"
    assert pauses == sorted(pauses) and pauses[-1] == LONGEST_S
    assert all(verdict.action is Action.START_OVER for verdict in job.verdicts if verdict.after_s)


def test_a_gang_with_survivors_starts_over_when_it_loses_workers_all_the_time() -> None:
    job = Played(min_workers=1)
    for step in range(1, 21):
        job.dies(Cause.LOST_TOUCH, step=step, survivors=1)
    assert {verdict.action for verdict in job.verdicts[:OFTEN]} == {Action.GO_ON}
    assert job.verdicts[-1].action is Action.START_OVER and job.verdicts[-1].after_s > 0


def test_kills_from_outside_now_and_then_never_slow_an_honest_training_down() -> None:
    job = Played(min_workers=2)
    for step in range(1, 101):
        job.dies(Cause.KILLED, step=step, survivors=1, progress_s=SPACING_S)
    assert {verdict.after_s for verdict in job.verdicts} == {0.0}


def test_work_makes_up_for_former_deaths_and_waiting_does_not() -> None:
    job = Played()
    for step in range(1, OFTEN + 4):
        job.dies(Cause.KILLED, step=step)
    assert job.verdicts[-1].after_s == 2.0
    job.dies(Cause.KILLED, step=50, progress_s=5 * SPACING_S)
    assert job.verdicts[-1].after_s == 0.0


def test_a_generation_that_lost_one_that_worked_is_not_taken_for_one_that_lost_only_newcomers() -> None:
    both = tuple(Death(f"w{at}", Cause.CRASHED, 1, "SIGSEGV", joined=at == 0) for at in range(2))
    verdict = decide(Situation("job-1", True, both, (), 0, 0, 1, 1, 5, 0.0, None))
    assert (verdict.action, verdict.spares) == (Action.FAIL, False)
    newcomer = decide(Situation("job-1", True, both[1:], (), 0, 0, 1, 1, 5, 0.0, None))
    assert (newcomer.action, newcomer.spares) == (Action.GO_ON, True)


def test_a_retry_that_was_used_is_given_back_though_the_death_itself_is_no_longer_known() -> None:
    this = Death("w0", Cause.CRASHED, 2, "SIGSEGV", step=9)
    verdict = decide(Situation("job-1", True, (this,), (), 1, 1, 1, 0, 9, FORGET_S, None))
    assert (verdict.resets_history, verdict.action) == (True, Action.START_OVER)


def test_long_progress_counts_only_beyond_the_furthest_step_at_which_it_ever_died() -> None:
    former = tuple(
        Death("w0", Cause.CRASHED, at, "SIGSEGV", step=step, answered=True) for at, step in enumerate((5, 20), 1)
    )
    this = Death("w0", Cause.CRASHED, 3, "SIGSEGV")
    for step, forgets in ((10, False), (20, False), (21, True)):
        asked = Situation("job-1", True, (replace(this, step=step),), former, 5, 2, 1, 0, step, FORGET_S, None)
        assert decide(asked).resets_history is forgets, step


def test_what_others_cause_in_between_does_not_make_a_doubtful_death_the_first_again() -> None:
    job = Played()
    causes = [Cause.KILLED, Cause.NODE_LOST, Cause.KILLED, Cause.NODE_LOST, Cause.KILLED]
    assert [job.dies(cause, step=3).action for cause in causes] == [Action.START_OVER] * 4 + [Action.FAIL]


def test_a_step_made_in_between_ends_the_row_whatever_came_before_it() -> None:
    job = Played(retries=9)
    assert [job.dies(Cause.CRASHED, step=step).after_s for step in (7, 3, 7)] == [0.0, 1.0, 0.0]


def test_newcomers_that_die_after_something_else_are_counted_from_there() -> None:
    job = Played()
    pauses = [job.dies(Cause.CRASHED, survivors=1, joined=False).after_s for _ in range(3)]
    assert job.dies(Cause.NODE_LOST, survivors=1).after_s == 0.0
    assert [*pauses, job.dies(Cause.CRASHED, survivors=1, joined=False).after_s] == [1.0, 2.0, 4.0, 1.0]


def test_kills_that_come_often_are_counted_whatever_else_came_before_or_between() -> None:
    job = Played()
    job.dies(Cause.NODE_LOST, step=1)
    for step in range(2, OFTEN + 5):
        job.dies(Cause.KILLED, step=step)
        if step == 4:
            job.dies(Cause.NODE_LOST, step=step)
    assert [verdict.after_s for verdict in job.verdicts[-4:]] == [0.0, 0.0, 1.0, 2.0]


@pytest.mark.parametrize(("stretches", "pause_s"), [(0.0, 4.0), (0.5, 2.0), (1.0, 2.0), (1.9, 1.0), (2.1, 0.0)])
def test_each_stretch_of_work_makes_up_for_one_death_and_half_of_it_for_half_of_one(
    stretches: float, pause_s: float
) -> None:
    job = Played()
    for step in range(1, OFTEN + 3):
        job.dies(Cause.KILLED, step=step)
        job.now_s -= 1.0  # no time passes but that which is waited
    assert job.verdicts[-1].after_s == 2.0
    job.dies(Cause.KILLED, step=50, progress_s=stretches * SPACING_S)
    assert job.verdicts[-1].after_s == pause_s


def test_whoever_uses_up_a_retry_is_told_where_to_look_and_nobody_else_is() -> None:
    job = Played(retries=1)
    job.dies(Cause.NODE_LOST)
    job.dies(Cause.CRASHED)
    job.dies(Cause.KILLED)
    job.dies(Cause.CRASHED)
    assert ["fairlead logs" in verdict.text for verdict in job.verdicts] == [False, True, False, True]
    assert [verdict.action for verdict in job.verdicts[1::2]] == [Action.START_OVER, Action.FAIL]


def test_one_survivor_is_enough_for_a_job_of_which_nobody_says_how_many_it_needs() -> None:
    former = Death("w1", Cause.KILLED, 1, step=3, time_s=1.0, answered=True)
    verdict = decide(Situation("j", True, (Death("w1", Cause.KILLED, 2, step=3, time_s=2.0),), (former,), survivors=1))
    assert verdict.action is Action.GO_ON and (verdict.counts, verdict.spares, verdict.resets_history) == (False,) * 3


def test_a_job_that_never_died_has_nothing_to_forget() -> None:
    assert not Played().dies(Cause.KILLED, step=900, progress_s=FORGET_S).resets_history
    used = decide(Situation("j", True, (Death("w0", Cause.KILLED, 2, step=1),), (), 1, 1, 1, 0, 1, FORGET_S))
    assert used.resets_history, "a first step is beyond none"


def test_what_was_only_in_doubt_is_forgotten_too() -> None:
    job = Played()
    for _ in range(2):
        job.dies(Cause.KILLED, step=5)
    assert job.dies(Cause.KILLED, step=900, progress_s=FORGET_S).resets_history and len(job.former) == 1
    command = Played(training=False)
    for _ in range(2):
        command.dies(Cause.KILLED)
    assert command.dies(Cause.KILLED, progress_s=FORGET_S).action is Action.START_OVER
    assert command.dies(Cause.KILLED).action is Action.START_OVER and command.dies(Cause.KILLED).action is Action.FAIL


def test_what_is_known_of_the_same_generation_is_not_forgotten() -> None:
    node = Death("w1", Cause.NODE_LOST, 3, step=8, time_s=10.0, answered=True)
    touch = Death("w0", Cause.LOST_TOUCH, 3, step=9, time_s=11.0)
    verdict = decide(Situation("j", True, (touch,), (node,), 1, 1, 1, 1, 9, FORGET_S))
    assert verdict.resets_history and "was lost with its node" in verdict.text and verdict.code == "worker-node-lost"


def test_generations_count_in_their_order_whenever_they_were_heard_of() -> None:
    former = (Death("w0", Cause.KILLED, 2, step=7, answered=True), Death("w0", Cause.KILLED, 1, step=3, answered=True))
    this = Death("w0", Cause.KILLED, 3, step=7)
    assert decide(Situation("j", True, (this,), former, step=7)).after_s == 1.0


@pytest.mark.parametrize(
    ("first", "then", "after_s"),
    [
        (Cause.NODE_LOST, Cause.EXITED, 0.0), (Cause.EXITED, Cause.NODE_LOST, 0.0), (Cause.CRASHED, Cause.EXITED, 1.0),
        (Cause.KILLED, Cause.SILENT, 1.0), (Cause.KILLED, Cause.EXITED, 0.0), (Cause.NODE_LOST, Cause.NO_ROOM, 0.0),
        (Cause.NODE_LOST, Cause.NODE_LOST, 1.0),
    ],
)  # fmt: skip
def test_only_deaths_of_the_same_kind_are_a_row(first: Cause, then: Cause, after_s: float) -> None:
    job = Played(retries=9)
    job.dies(first)
    assert job.dies(then).after_s == after_s


def test_a_full_disk_of_ones_own_is_not_passed_over() -> None:
    assert Played().dies(Cause.DISK_FULL, survivors=1, joined=False).action is Action.FAIL
    assert Played().dies(Cause.REFUSED, survivors=1, joined=False).action is Action.FAIL


@pytest.mark.parametrize(("apart_s", "after_s"), [(FORGET_S, 2.0), (FORGET_S + 1.0, 1.0)])
def test_newcomers_that_died_long_ago_do_not_count(apart_s: float, after_s: float) -> None:
    former = Death("w9", Cause.CRASHED, 1, time_s=100.0, joined=False, spared=True, answered=True)
    this = Death("w8", Cause.CRASHED, 2, time_s=100.0 + apart_s, joined=False)
    verdict = decide(Situation("j", True, (this,), (former,), survivors=1))
    assert (verdict.action, verdict.spares, verdict.after_s) == (Action.GO_ON, True, after_s)


def test_those_that_were_passed_over_do_not_slow_down_what_comes_later() -> None:
    former = tuple(
        Death("w9", Cause.CRASHED, number, time_s=1.0, joined=False, spared=True, answered=True)
        for number in range(1, 20)
    )
    this = Death("w0", Cause.CRASHED, 20, "SIGSEGV", time_s=1.0, step=3)
    verdict = decide(Situation("j", True, (this,), former, retries=1, step=3))
    assert (verdict.action, verdict.after_s) == (Action.START_OVER, 0.0)


def test_no_plan_is_blamed_for_what_others_cause_however_often() -> None:
    job = Played(plan="fsdp2")
    assert not any(job.dies(Cause.NODE_LOST).without_plan for _ in range(5))


@pytest.mark.parametrize(("retries", "action"), [(0, Action.FAIL), (1, Action.START_OVER)])
def test_a_plan_that_came_late_goes_with_the_retry(retries: int, action: Action) -> None:
    former = tuple(Death("w0", Cause.KILLED, number, step=3, answered=True) for number in (1, 2))
    asked = Situation("j", True, (Death("w0", Cause.KILLED, 3, step=3),), former, retries, step=3, plan="fsdp2")
    verdict = decide(asked)
    assert (verdict.action, verdict.counts, verdict.without_plan) == (action, True, True)
    assert verdict.after_s == (0.0 if action is Action.FAIL else 2.0)
