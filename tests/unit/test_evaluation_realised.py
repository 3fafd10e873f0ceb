"""The realised schedule of faults: what struck where, and whether that is what a rate gives."""

from __future__ import annotations

import msgspec
import pytest
import reported
import synthetic_runs
from scipy import stats

from perdure.evaluation import course, realised, schedule
from perdure.evaluation.plan import Faults
from perdure.evaluation.schedule import Pace, Planned
from perdure.model.evaluation import Arm, Event, EventKind, FaultKind, Run

KINDS = (FaultKind.KILL, FaultKind.HANG)
WHOLE = 400


def run(pair: int, planned: tuple[Planned, ...], arm: Arm = Arm.MANAGED, *, completed: bool = True) -> Run:
    """A run that counts to `WHOLE`, once a second, and goes on at once where each fault strikes."""
    events = [Event(0.0, EventKind.LAUNCHED)]
    events += [Event(0.0, EventKind.FAULT_PLANNED, each.counter, {"kind": each.kind.value, "drawn_s": each.drawn_s}) for each in planned]
    coming = list(planned)
    for step in range(1, WHOLE + 1):
        events.append(Event(float(step), EventKind.PROGRESS, float(step)))
        while coming and coming[0].counter is not None and coming[0].counter <= step:
            due = coming.pop(0)
            events.append(Event(step + 0.1, EventKind.FAULT_INJECTED, due.counter, {"kind": due.kind.value}))
            events.append(Event(step + 0.2, EventKind.RESTARTED, None, {"how": "restore"}))
    events.append(Event(WHOLE + 1.0, EventKind.ENDED, None, {"completed": completed}))
    return Run(
        id=f"{arm}-{pair}",
        arm=arm,
        pair=pair,
        repetition=pair,
        node="n",
        nodes=1,
        gpus=0,
        begun_unix_s=float(pair),
        environment=synthetic_runs.ENVIRONMENT,
        command=("c",),
        events=tuple(events),
        plan_hash="a",
    )


def drawn(seed: int, pairs: int) -> list[Run]:
    """Both arms of evaluations whose faults are drawn at a rate of about four a run."""
    plan = Faults(seed=seed, kinds=KINDS, rate_per_hour=36.0)
    made = []
    for pair in range(1, pairs + 1):
        planned = schedule.draw(plan, pair=pair, pace=Pace(1.0, float(WHOLE)))
        made += [run(pair, planned, arm) for arm in Arm]
    return made


def read(runs: list[Run]) -> realised.Realised:
    return realised.read([course.read(each) for each in runs])


def test_a_drawn_schedule_is_what_its_rate_gives():
    """Of 100 evaluations with a true rate about one in twenty has p < 0.05; binomial bounds at 1e-6."""
    few = 0
    for seed in range(100):
        found = read(drawn(seed, 10))
        assert found.probability is not None
        few += found.probability < 0.05
    assert 0 < few < stats.binom.ppf(1 - 1e-6, 100, 0.05)


def test_a_pair_counts_once_and_every_fault_is_told_of():
    runs = drawn(3, 10)
    found = read(runs)
    assert found.pairs == 10
    injected = sum(event.kind is EventKind.FAULT_INJECTED for each in runs for event in each.events)
    assert found.struck == found.planned == injected
    assert len(found.places) == injected / 2
    assert sum(found.kinds.values()) == injected
    assert abs(found.kinds["kill"] - found.kinds["hang"]) <= 20  # dealt like cards, run by run
    expected = stats.kstest(found.places, "uniform")
    assert found.distance == pytest.approx(expected.statistic, abs=1e-9)
    assert found.probability == pytest.approx(expected.pvalue, abs=0.02)


@pytest.mark.parametrize("at_s", [(lambda pair: 200.0), (lambda pair: 20.0 + pair)], ids=["always in the middle", "always early"])
def test_a_schedule_that_was_not_drawn_is_found(at_s):
    """As of an injector that says a random delay and waits for a constant one."""
    runs = [run(pair, (Planned(FaultKind.KILL, at_s(pair), at_s(pair)),)) for pair in range(1, 31)]
    found = read(runs)
    assert found.probability is not None
    assert found.probability < realised.DOUBTFUL
    assert "30 of 30 planned faults struck" in found.describe()


def test_places_that_a_person_chose_are_not_held_against_chance():
    planned = tuple(msgspec.structs.replace(each, drawn_s=None) for each in (Planned(FaultKind.KILL, 10.0),))
    named = run(1, planned)
    events = tuple(
        msgspec.structs.replace(one, data={"kind": "kill"}) if one.kind is EventKind.FAULT_PLANNED else one for one in named.events
    )
    found = read([msgspec.structs.replace(named, events=events)])
    assert (found.planned, found.struck, found.probability) == (1, 1, None)
    assert found.describe() == "1 of 1 planned faults struck: 1 × kill; the plan names their places"
    assert read([]).describe() == "0 of 0 planned faults struck; the plan names their places"


def test_a_run_that_was_not_watched_to_its_end_has_no_places():
    found = read([run(1, (Planned(FaultKind.KILL, 10.0, 10.0),), completed=False)])
    assert (found.struck, found.places) == (1, ())


def test_the_report_tells_of_it(tmp_path):
    told = reported.read(reported.clean(tmp_path / "trial"))
    assert told.schedule.struck == told.schedule.planned == 36
    assert told.schedule.describe() == "36 of 36 planned faults struck: 12 × hang, 12 × kill, 12 × node-lost; the plan names their places"
