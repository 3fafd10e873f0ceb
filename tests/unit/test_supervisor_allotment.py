"""What a supervisor makes of a scheduler's answers: asked in threads, heard in one, never two at once."""

from __future__ import annotations

import contextlib
import threading

import pytest

from perdure import errors
from perdure.supervisor.allotment import Allotment
from perdure.supervisor.reactor import Reactor
from perdure.supervisor.scheduler import Notice, Outlook, Standing
from perdure.supervisor.voice import Voice

AWAY = errors.SchedulerUnavailable("slurmctld does not answer", hint="see scontrol ping")


class Answering:
    """A scheduler that gives the answers it was handed, one after the other, the last one again and again."""

    poll_s = 0.01
    mercy_s = 2.0

    def __init__(self, *answers, taken=()):
        self.answers = list(answers)
        self.taken = list(taken)
        self.asked = 0
        self.told = []
        self._inside = threading.Lock()

    def look(self):
        with self._alone():
            self.asked += 1
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def saved(self, reason):
        with self._alone():
            self.told.append(reason)
            answer = self.taken.pop(0) if self.taken else "the job was requeued"
        if isinstance(answer, Exception):
            raise answer
        return answer

    def lines(self, begun):
        raise AssertionError("not asked for here")

    @contextlib.contextmanager
    def _alone(self):
        assert self._inside.acquire(blocking=False), "two at once"
        try:
            yield
        finally:
            self._inside.release()


class Spoken(Voice):
    def __init__(self):
        super().__init__(quiet=True, as_json=False)
        self.words = []

    def say(self, words):
        self.words.append(words)


@pytest.fixture
def hear():
    """Make a `Heard`, and let its last question be answered before its reactor goes."""
    with contextlib.closing(Reactor()) as reactor:
        made = []

        def make(scheduler, **more):
            made.append(Heard(reactor, scheduler, **more))
            return made[-1]

        yield make
        for heard in made:
            heard.allotment.close()
            heard.until(lambda heard=heard: not heard.allotment.is_busy)


class Heard:
    """An allotment, and all that it called back."""

    def __init__(self, reactor, scheduler, *, end_ns=None):
        self.reactor = reactor
        self.voice = Spoken()
        self.ends, self.notices, self.overs = [], [], []
        self.allotment = Allotment(
            scheduler,
            reactor,
            self.voice,
            workload="train",
            end_ns=end_ns,
            changed=lambda: self.ends.append(self.allotment.end_ns),
            noticed=self.notices.append,
            over=lambda: self.overs.append(True),
        )

    def until(self, holds):
        while not holds():
            self.reactor.turn()


def running(end_ns, **more):
    return Outlook(standing=Standing.RUNNING, end_ns=end_ns, **more)


def test_without_a_scheduler_what_was_said_at_the_start_holds_and_questions_are_answered_at_once(hear):
    heard, answers = hear(None, end_ns=77), []
    heard.allotment.start()
    heard.allotment.look(answers.append)
    left = []
    heard.allotment.leave("the end", lambda: left.append(True))
    assert (heard.allotment.end_ns, answers, left, heard.allotment.is_asked) == (77, [None], [True], False)


def test_an_end_that_moves_is_told_once_each_time(hear):
    heard = hear(Answering(running(100), running(100), running(200), running(200)), end_ns=100)
    heard.allotment.start()
    heard.until(lambda: heard.ends)
    assert heard.ends == [200]


@pytest.mark.parametrize(
    "outlook", [Outlook(standing=Standing.SUSPENDED, end_ns=100), Outlook(standing=Standing.RUNNING, end_ns=100, returns=False)]
)
def test_a_job_that_stands_still_or_would_not_come_back_has_no_end_to_leave_before(hear, outlook):
    heard = hear(Answering(outlook), end_ns=100)
    heard.allotment.start()
    heard.until(lambda: heard.ends)
    assert heard.ends == [None]


def test_a_notice_is_told_once_and_a_second_one_too(hear):
    first, second = Notice(50, "preempted"), Notice(40, "preempted")
    scheduler = Answering(running(100), running(50, notice=first), running(50, notice=first), running(40, notice=second), running(40))
    heard = hear(scheduler)
    heard.allotment.start()
    heard.until(lambda: len(heard.notices) == 2 and scheduler.asked > 5)
    assert heard.notices == [first, second]


def test_a_job_that_would_not_come_back_is_not_told_of_a_preemption(hear):
    scheduler = Answering(running(50, notice=Notice(50, "preempted"), returns=False))
    heard = hear(scheduler)
    heard.allotment.start()
    heard.until(lambda: scheduler.asked > 3)
    assert heard.notices == []


def test_a_scheduler_that_does_not_answer_changes_nothing_and_is_asked_again(hear):
    scheduler, answers = Answering(running(100), AWAY, AWAY, running(100)), []
    heard = hear(scheduler, end_ns=100)
    scheduler.poll_s = 3600.0  # so that the second answer is for who asks here
    heard.allotment.start()
    heard.until(lambda: scheduler.asked == 1 and not heard.allotment.is_busy)
    scheduler.poll_s = 0.01
    heard.allotment.look(answers.append)
    heard.until(lambda: answers)
    heard.until(lambda: scheduler.asked > 4)
    assert (answers, heard.ends, heard.allotment.end_ns) == ([None], [], 100)


def test_who_asks_while_it_is_being_asked_gets_a_later_answer(hear):
    scheduler, answers = Answering(running(100), running(200)), []
    heard = hear(scheduler)
    heard.allotment.look(answers.append)
    heard.allotment.look(answers.append)
    heard.until(lambda: len(answers) == 2)
    assert [one.end_ns for one in answers] == [100, 200]


def test_a_fault_of_ours_is_not_taken_for_a_scheduler_that_is_away(hear):
    heard = hear(Answering(ZeroDivisionError("a bug")))
    heard.allotment.start()
    with pytest.raises(ZeroDivisionError):
        heard.until(lambda: False)


def test_leaving_is_told_until_it_is_taken(hear):
    scheduler, left = Answering(running(100), taken=[AWAY]), []
    heard = hear(scheduler)
    heard.allotment.start()
    heard.allotment.leave("the allotted time ends", lambda: left.append(True))
    heard.until(lambda: left)
    assert scheduler.told == ["the allotted time ends"] * 2
    assert [words for words in heard.voice.words if "again" in words] == [f"{AWAY}; trying again"]
    assert heard.voice.words[-1] == "the job was requeued"


def test_a_job_that_may_not_come_back_is_said_and_not_tried_again(hear):
    scheduler, left = Answering(running(100), taken=[errors.Unsupported("Slurm refuses", hint="sbatch --requeue")]), []
    heard = hear(scheduler)
    heard.allotment.leave("the allotted time ends", lambda: left.append(True))
    heard.until(lambda: left)
    assert (scheduler.told, heard.voice.words) == (["the allotted time ends"], ["Slurm refuses (sbatch --requeue)"])


def test_a_grace_that_is_too_short_is_said_once_and_only_when_it_is(hear):
    heard = hear(Answering(running(100, grace_s=8.0)))
    heard.allotment.warn_of_grace(60.0)
    assert heard.voice.words == []
    answers = []
    heard.allotment.look(answers.append)
    heard.until(lambda: answers)
    heard.allotment.warn_of_grace(9.9)
    assert heard.voice.words == []
    heard.allotment.warn_of_grace(11.0)
    heard.allotment.warn_of_grace(12.0)
    assert heard.voice.words == [
        "a checkpoint took 11s, a preemption leaves 10s: it cannot be saved then, and goes back to the checkpoint before"
    ]


def test_a_scheduler_that_has_gone_on_without_us_is_heard_once_and_one_look_is_not_enough(hear):
    gone = Outlook(standing=Standing.LEAVING, end_ns=None)
    seen_once = hear(Answering(gone, running(100)))
    seen_once.allotment.start()
    seen_once.until(lambda: seen_once.allotment.end_ns == 100)
    assert seen_once.overs == []
    scheduler = Answering(running(100), gone)
    heard = hear(scheduler)
    heard.allotment.start()
    heard.until(lambda: scheduler.asked > 5)
    assert heard.overs == [True]
