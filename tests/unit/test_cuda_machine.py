"""The order of steps on CUDA processes: against a driver that answers as it likes, and step by step."""

from __future__ import annotations

import random

import msgspec
import pytest

from perdure.checkpoint.cuda import driver, machine
from perdure.checkpoint.cuda.contract import Operation, Problem, State, Trouble
from perdure.checkpoint.cuda.machine import Ask, Phase, Told

SEQUENCES = 10_000
NEEDS = {
    Operation.LOCK: State.RUNNING,
    Operation.CHECKPOINT: State.LOCKED,
    Operation.RESTORE: State.CHECKPOINTED,
    Operation.UNLOCK: State.LOCKED,
}
MAKES = {
    Operation.LOCK: State.LOCKED,
    Operation.CHECKPOINT: State.CHECKPOINTED,
    Operation.RESTORE: State.LOCKED,
    Operation.UNLOCK: State.RUNNING,
}


def problem(trouble: Trouble) -> Problem:
    return Problem(trouble=trouble, message=f"the driver says {trouble}")


class Simulated:
    """A driver, and the processes it has. A state that it tells is true; everything else may be otherwise than it should."""

    def __init__(self, count: int, rng: random.Random, *, faults: float, fatal: bool, most_faults: int = 1 << 30) -> None:
        self.states: dict[int, State] = dict.fromkeys(range(100, 100 + count), State.RUNNING)
        self.without = {pid for pid in self.states if count > 1 and rng.random() < 0.1}
        self.rng = rng
        self.faults = faults
        self.fatal = fatal
        self.left = most_faults
        self.died_in_hands = False
        self.failed = False
        self.asked: list[Operation] = []

    def answer(self, ask: Ask) -> list[Told]:
        self.asked.append(ask.operation)
        self.check_order(ask)
        is_faulty = self.left > 0 and self.rng.random() < self.faults
        told = [self.one(ask.operation, pid, is_faulty=is_faulty and self.rng.random() < 0.7) for pid in ask.pids]
        self.left -= is_faulty
        return told

    def check_order(self, ask: Ask) -> None:
        using = {pid: state for pid, state in self.states.items() if pid not in self.without}
        assert ask.operation is Operation.STATE or not self.without & set(ask.pids), "a process without CUDA is acted upon"
        if ask.operation is Operation.CHECKPOINT:
            assert State.RUNNING not in using.values(), "one still runs when another is checkpointed"
        if ask.operation is Operation.UNLOCK:
            assert State.CHECKPOINTED not in using.values(), "one is unlocked before all are restored"

    def one(self, operation: Operation, pid: int, *, is_faulty: bool) -> Told:
        if pid not in self.states:
            return Told(pid, problem(Trouble.GONE))
        if pid in self.without:
            return Told(pid, problem(Trouble.INVALID))
        if is_faulty:
            return self.faulty(operation, pid)
        return self.do(operation, pid)

    def do(self, operation: Operation, pid: int) -> Told:
        if operation is Operation.STATE:
            return Told(pid, None, self.states[pid])
        if self.states[pid] is not NEEDS[operation]:
            return Told(pid, problem(Trouble.WRONG_STATE), self.states[pid])
        self.states[pid] = MAKES[operation]
        return Told(pid, None, self.states[pid])

    def faulty(self, operation: Operation, pid: int) -> Told:
        kinds = ["error", "late", "hang", "late hang", "idle", "mute"] + (["die", "fail"] if self.fatal else [])
        trouble = self.rng.choice([Trouble.TIMED_OUT, Trouble.NO_MEMORY, Trouble.SYSTEM, Trouble.UNSUPPORTED, Trouble.OTHER])
        match self.rng.choice(kinds):
            case "error":
                return Told(pid, problem(trouble), self.states[pid] if self.rng.random() < 0.7 else None)
            case "late":
                self.do(operation, pid)
                return Told(pid, problem(trouble), self.states[pid])
            case "hang":
                return Told(pid, problem(Trouble.HUNG))
            case "late hang":
                self.do(operation, pid)
                return Told(pid, problem(Trouble.HUNG))
            case "mute":  # it does it, and does not say how they are now
                return msgspec.structs.replace(self.do(operation, pid), state=None)
            case "idle":  # it says that it did it, and did not
                return Told(pid, None, self.states[pid])
            case "die":
                self.died_in_hands |= operation is not Operation.STATE
                was = self.states.pop(pid)
                if operation is not Operation.STATE and self.rng.random() < 0.5:
                    return Told(pid, problem(Trouble.OTHER), was)  # it is still there when it is looked at, for the last time
                return Told(pid, problem(Trouble.GONE))
        self.failed = True
        self.states[pid] = State.FAILED
        return Told(pid, problem(trouble), State.FAILED)

    def rest(self) -> set[State]:
        """States of all that use CUDA and live."""
        return {state for pid, state in self.states.items() if pid not in self.without}


def drive(now: machine.Next, driver: Simulated) -> machine.Group:
    group, ask = now
    for _ in range(200):
        if ask is None:
            return group
        group, ask = machine.step(group, driver.answer(ask))
    raise AssertionError("it does not come to an end")


def attempt(driver: Simulated) -> machine.Group:
    """Suspend, make a dump of it or fail to, and make it run; as the supervisor does."""
    pids = list(driver.states)
    for attempts in range(1, machine.ATTEMPTS + 1):
        group = drive(machine.suspend(pids), driver)
        if group.phase is Phase.SUSPENDED:
            assert driver.rest() <= {State.CHECKPOINTED}
            return drive(machine.resume(group), driver)
        if group.phase is Phase.LOST or not machine.may_try_again(group.problem, attempts):
            return group
        assert driver.rest() <= {State.RUNNING}
    return group


def test_ten_thousand_drivers_leave_nothing_locked(capsys):
    """``pytest -n0 tests/unit/test_cuda_machine.py -k ten_thousand`` prints how many came to which end."""
    phases = dict.fromkeys(Phase, 0)
    for seed in range(SEQUENCES):
        rng = random.Random(seed)
        driver = Simulated(rng.randint(1, 4), rng, faults=rng.choice([0.0, 0.1, 0.3, 0.7]), fatal=rng.random() < 0.5)
        group = attempt(driver)
        phases[group.phase] += 1
        assert group.phase is Phase.LOST or not driver.died_in_hands, f"seed {seed}: one died in our hands, and nobody said so"
        if group.phase in (Phase.RUNNING, Phase.UNTOUCHED):
            assert driver.rest() <= {State.RUNNING}, f"seed {seed}: said to run, and does not: {driver.states}"
        else:
            # The tree is ended then, and with it all that is locked. It comes to that only for a reason.
            assert group.phase is Phase.LOST, f"seed {seed}: at rest while {group.phase}"
            assert group.problem is not None
            assert driver.faults, f"seed {seed}: lost, though the driver did all it was asked"
    assert sum(phases.values()) == SEQUENCES
    told = ", ".join(f"{count} {phase.value}" for phase, count in phases.items() if count)
    with capsys.disabled():
        print(f"\n{SEQUENCES} sequences of driver answers: {told}; none left locked")  # noqa: T201 - what the test is asked for
    assert phases[Phase.RUNNING] > SEQUENCES / 2
    assert phases[Phase.LOST] > SEQUENCES / 50


def test_a_driver_that_recovers_in_time_loses_nothing():
    for seed in range(SEQUENCES // 5):
        rng = random.Random(seed)
        driver = Simulated(rng.randint(1, 4), rng, faults=0.8, fatal=False, most_faults=machine.TRIES - 1)
        group = attempt(driver)
        assert group.phase in (Phase.RUNNING, Phase.UNTOUCHED), f"seed {seed}: {group}"
        assert driver.rest() <= {State.RUNNING}, f"seed {seed}: {driver.states}"


def calls(driver: Simulated) -> list[str]:
    return [operation.value for operation in driver.asked]


def test_the_order_of_steps_when_all_goes_well():
    driver = Simulated(3, random.Random(1), faults=0, fatal=False)
    group = drive(machine.suspend(driver.states), driver)
    assert group.phase is Phase.SUSPENDED
    assert calls(driver) == ["state", "lock", "checkpoint"]
    assert drive(machine.resume(group), driver).phase is Phase.RUNNING
    assert calls(driver)[3:] == ["state", "restore", "unlock", "state"]


def scripted(now: machine.Next, *rounds: dict[int, Told]) -> tuple[machine.Group, Ask | None, list[Ask]]:
    """Feed `rounds` of answers; what is not in them succeeds."""
    group, ask = now
    asked = []
    for answers in rounds:
        assert ask is not None
        asked.append(ask)
        good = {Operation.STATE: State.RUNNING} | MAKES
        group, ask = machine.step(group, [answers.get(pid, Told(pid, None, good[ask.operation])) for pid in ask.pids])
    return group, ask, asked


def test_when_one_cannot_be_locked_the_others_are_unlocked_and_the_culprit_is_named():
    late = Told(2, problem(Trouble.TIMED_OUT), State.RUNNING)
    group, ask, _ = scripted(machine.suspend([1, 2]), {}, {2: late}, {1: Told(1, None, State.LOCKED)})
    assert ask == Ask(Operation.UNLOCK, (1,))
    assert (group.culprit, group.problem) == (2, problem(Trouble.TIMED_OUT))
    group, ask = machine.step(group, [Told(1, None, State.RUNNING)])
    group, ask = machine.step(group, [Told(1, None, State.RUNNING), Told(2, None, State.RUNNING)])
    assert (group.phase, ask) == (Phase.RUNNING, None)
    assert machine.may_try_again(group.problem, 1)


def test_what_was_restored_already_is_not_restored_again():
    group, ask, _ = scripted(
        machine.resume(machine.restored([1, 2])),
        {1: Told(1, None, State.CHECKPOINTED), 2: Told(2, None, State.CHECKPOINTED)},
        {2: Told(2, problem(Trouble.NO_MEMORY), State.CHECKPOINTED)},
        {1: Told(1, None, State.LOCKED), 2: Told(2, None, State.CHECKPOINTED)},
    )
    assert ask == Ask(Operation.RESTORE, (2,))
    assert group.tries == 1


def test_a_process_that_only_loaded_cuda_is_left_alone():
    group, ask, _ = scripted(machine.suspend([1, 2]), {2: Told(2, problem(Trouble.INVALID))})
    assert ask == Ask(Operation.LOCK, (1,))
    assert [member.pid for member in group.members] == [1]


def test_a_restored_process_that_the_driver_does_not_know_is_not_passed_over():
    refusing = {1: Told(1, problem(Trouble.INVALID))}
    group, ask, _ = scripted(machine.resume(machine.restored([1])), *[refusing] * machine.TRIES)
    assert (group.phase, ask) == (Phase.LOST, None)


@pytest.mark.parametrize("asked", ["lock", "checkpoint", "restore", "unlock"])
def test_one_that_dies_in_our_hands_is_a_loss(asked):
    gone = {1: Told(1, problem(Trouble.GONE))}
    if asked in ("lock", "checkpoint"):
        good = [{}] if asked == "lock" else [{}, {}]
        group, ask, _ = scripted(machine.suspend([1, 2]), *good, gone)
    else:
        looked = {pid: Told(pid, None, State.CHECKPOINTED) for pid in (1, 2)}
        good = [looked] if asked == "restore" else [looked, {}]
        group, ask, _ = scripted(machine.resume(machine.restored([1, 2])), *good, gone)
    assert (group.phase, ask, group.culprit) == (Phase.LOST, None, 1)


def test_one_that_is_still_there_for_a_moment_after_the_driver_killed_it_is_a_loss_too():
    dying = {1: Told(1, problem(Trouble.OTHER), State.RUNNING)}
    group, ask, _ = scripted(machine.suspend([1]), {}, dying, {1: Told(1, problem(Trouble.GONE))})
    assert (group.phase, ask, group.culprit) == (Phase.LOST, None, 1)


def test_one_that_ends_right_after_it_was_let_go_does_so_by_itself():
    looked = {pid: Told(pid, None, State.LOCKED) for pid in (1, 2)}
    group, ask, _ = scripted(machine.found([1, 2]), looked, {}, {1: Told(1, problem(Trouble.GONE))})
    assert (group.phase, ask) == (Phase.RUNNING, None)


def test_one_that_ends_by_itself_while_it_runs_is_none():
    group, ask, _ = scripted(machine.suspend([1, 2]), {1: Told(1, problem(Trouble.GONE))})
    assert (group.phase, ask) == (Phase.SUSPENDING, Ask(Operation.LOCK, (2,)))


def test_a_driver_that_says_yes_and_does_nothing_is_not_asked_for_ever():
    driver = Simulated(2, random.Random(0), faults=0, fatal=False)
    driver.do = lambda _operation, pid: Told(pid, None, State.LOCKED)
    assert drive(machine.found(driver.states), driver).phase is Phase.LOST
    assert calls(driver).count("unlock") == machine.TRIES


def test_what_was_suspended_by_others_needs_no_step():
    group, ask, asked = scripted(machine.suspend([1]), {1: Told(1, None, State.CHECKPOINTED)})
    assert (group.phase, ask) == (Phase.SUSPENDED, None)
    assert [one.operation for one in asked] == [Operation.STATE]


def test_nothing_is_done_where_the_driver_does_not_tell_how_they_are():
    silent = {2: Told(2, problem(Trouble.HUNG))}
    group, ask, asked = scripted(machine.suspend([1, 2]), silent)
    assert (group.phase, ask, len(asked), group.culprit) == (Phase.UNTOUCHED, None, 1, 2)


@pytest.mark.parametrize("trouble", [Trouble.UNSUPPORTED, Trouble.INVALID, Trouble.GONE, Trouble.NO_DRIVER])
def test_what_does_not_pass_is_not_tried_again(trouble):
    assert not machine.may_try_again(problem(trouble), 1)


def test_what_may_pass_is_tried_a_few_times():
    assert [machine.may_try_again(problem(Trouble.TIMED_OUT), attempts) for attempts in (1, 2, 3)] == [True, True, False]


def test_a_process_that_loaded_the_library_and_never_used_it_has_no_state():
    not_initialized = 3
    assert driver._trouble("cuCheckpointProcessGetState", not_initialized) is Trouble.INVALID
    assert driver._trouble("cuInit", not_initialized) is Trouble.NO_DRIVER
