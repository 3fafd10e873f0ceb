"""The plan: what it may hold, how a mistake is answered, and that its hash is of what it says and not of how it is written."""

from __future__ import annotations

import datetime
import random
import re
from pathlib import Path

import evaluations
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure import errors
from perdure.evaluation import canonical, completeness, lock, measured, plan, plan_workload, template, typed_toml
from perdure.evaluation.plan import Plan
from perdure.evaluation.this_machine import Signature
from perdure.model.evaluation import FaultKind, MeasureKind, Threshold

HEAD = '[evaluation]\nname = "a"\nformat = 1\n'


def read(text: str) -> Plan:
    return plan.parse(text.encode(), source="evaluation.toml")


def test_a_whole_plan_is_read_into_records(tmp_path):
    found = plan.load(evaluations.begin(tmp_path).plan)
    assert found.header.name == "trial"
    assert found.workload.command == ("sh", "-c", "echo step 1")
    assert found.success.of(MeasureKind.UTILISATION) == Threshold(reason="less would not pay for the storage", gain_at_least=0.05)
    assert found.success.of(MeasureKind.CHECKPOINT_COST) is None
    assert found.faults.kinds == (FaultKind.KILL,)
    assert found.site.window == plan.Window(duration_s=3600.0)
    assert found.arms == plan.Arms()


MISTAKES = [
    # text, what the message says, what the hint says
    ("[workload]\ncomand = []", "workload.comand: unknown key", "command"),
    ("[wrkload]\ncommand = []", "wrkload: unknown key", "workload"),
    ("[success.recovery_time]\nat_most = 1", "success.recovery_time: unknown key", "recovery-time"),
    ("[success.recovery-time]\nat_mots = 1\nreason = 'x'", "success.recovery-time.at_mots: unknown key", "at_most"),
    ("[success.recovery-time]\nat_most = 1", "success.recovery-time.reason: it is not there", ""),
    ("[success.overhead]\nat_most = nan\nreason = 'x'", "success: .*finite", ""),
    ("[[workload.requests]]\nurll = 'x'", r"workload.requests\[0\].urll: unknown key", "url"),
    ("[workload]\ncommand = 'python train.py'", "workload.command: Expected array, got str", "as a list"),
    ("[workload]\ngpus = -1", "workload.gpus: Expected int >= 0", "GPUs"),
    ("[workload]\ngpus = true", "workload.gpus: Expected int, got bool", "GPUs"),
    ("[workload.progress]\npattern = 'step'", "workload.progress: pattern has 0 groups", ""),
    ("[workload.progress]\npattern = '(a)(b)'", "workload.progress: pattern has 2 groups", ""),
    ("[workload.progress]\npattern = '('", "workload.progress: pattern is not a regular expression", ""),
    ("[workload.progress]\nkind = 'metrics'\nurl = 'x'", 'workload.progress: kind = "metrics" needs metric', ""),
    ("[workload.progress]\nkind = 'smoke'", "workload.progress.kind: Invalid enum value 'smoke'", "where"),
    ("[workload.own_checkpoint]\nkind = 'file'\nglob = '*.pt'", "needs pattern", ""),
    ("[workload.ready]\nkind = 'command'", "needs command", ""),
    ("[site.window]\nstart = 2026-12-01T00:00:00", "site.window.start: Expected datetime with a timezone", "offset"),
    ("[site.window]\nstart = 2026-12-02T00:00:00Z\nend = 2026-12-01T00:00:00Z", "the end must be after the start", ""),
    ("[site.window]\nend = 2026-12-02T00:00:00Z\nduration_s = 5", "not both", ""),
    ("[site]\nlevel = 1.0", "site.level: Expected float <= 0.999", "level"),
    ("[faults]\nkinds = ['kil']", r"faults.kinds\[0\]: Invalid enum value 'kil'", "kinds"),
    ("[faults]\nat_progress = [1, inf]", "faults: at_progress must be a finite number", ""),
    ("[faults]\nat_progress = [0]", "must be above 0", ""),
    ("[faults]\nat_progress = [1]\nrate_per_hour = 1", "not both", ""),
    ("[faults]\nkinds = ['time-limit']", "needs time_limit_s", ""),
    ("[versions]\ntorch = [1]", r"versions.\*\[0\]: Expected str, got int", "first line"),
    ("x", "not valid TOML", "toml"),
]


@pytest.mark.parametrize(("text", "message", "hint"), MISTAKES)
def test_a_mistake_is_answered_with_its_key_and_what_to_write(text, message, hint):
    with pytest.raises(errors.InputFormat, match=message) as caught:
        read(HEAD + text + "\n")
    assert str(caught.value).startswith("evaluation.toml: ")
    assert hint in caught.value.hint
    assert caught.value.hint
    assert "\n" not in str(caught.value)


def test_a_newer_format_and_bytes_that_are_no_text_are_refused():
    with pytest.raises(errors.InputFormat, match="format: Expected int <= 1"):
        read('[evaluation]\nname = "a"\nformat = 2\n')
    with pytest.raises(errors.InputFormat, match="not valid TOML"):
        plan.parse(b"\xff\xfe", source="x")
    with pytest.raises(errors.InputFormat, match="not valid TOML"):
        read(HEAD + "[workload]\nsetup = " + "[" * 100_000)


def test_a_plan_is_no_link_no_folder_and_no_mountain(tmp_path):
    there = evaluations.begin(tmp_path)
    with pytest.raises(errors.InputMissing, match="there is no plan") as caught:
        plan.load(tmp_path / "none" / "evaluation.toml")
    assert "init" in caught.value.hint
    (tmp_path / "link.toml").symlink_to(there.plan)
    with pytest.raises(errors.LinkInPath):
        plan.load(tmp_path / "link.toml")
    with pytest.raises(errors.LinkInPath):
        plan.load(tmp_path.parent / tmp_path.name)
    there.plan.write_bytes(b"#" * (typed_toml.LONGEST_BYTES + 1))
    with pytest.raises(errors.InputFormat, match="larger"):
        plan.load(there.plan)


# The hash is of what a plan says -----------------------------------------------------------------------------------

_words = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12)
_argv = st.lists(_words, max_size=4).map(tuple)
_seconds = st.floats(0, 366 * 86400)
_spans = st.floats(0.001, 366 * 86400)
_times = st.datetimes(
    datetime.datetime(2000, 1, 1),
    datetime.datetime(2100, 1, 1),
    timezones=st.sampled_from([datetime.UTC, datetime.timezone(datetime.timedelta(hours=5.5))]),
)
_thresholds = st.none() | st.builds(
    Threshold,
    reason=_words,
    at_most=st.none() | st.floats(0, 1e9),
    ratio_at_most=st.none() | st.floats(0, 10),
    at_least=st.none() | st.floats(0, 1),
)
plans = st.builds(
    Plan,
    header=st.builds(plan.Header, name=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True), format=st.just(1)),
    workload=st.builds(
        plan_workload.Workload,
        command=_argv,
        working_directory=st.none() | _words,
        made_for_evaluation=st.none() | st.booleans(),
        gpus=st.integers(0, 1_000_000),
        progress=st.none()
        | st.builds(plan_workload.Progress, pattern=st.just("step ([0-9]+)"), heartbeat_s=_spans, target=st.none() | st.floats(1, 1e9)),
        own_checkpoint=st.none() | st.just(plan_workload.OwnCheckpoint()),
        requests=st.lists(
            st.builds(plan_workload.Request, url=_words, body=st.none() | st.text(st.characters(exclude_categories=["Cs"]))), max_size=2
        ).map(tuple),
    ),
    success=st.builds(plan.Success, recovery_time=_thresholds, work_lost=_thresholds, utilisation=_thresholds, overhead=_thresholds),
    way_out=st.builds(plan.WayOut, commands=st.lists(_argv, max_size=2).map(tuple), who=st.none() | _words),
    site=st.builds(
        plan.Site,
        nodes=_argv,
        level=st.floats(0.5, 0.999),
        window=st.none() | st.builds(plan.Window, start=_times, duration_s=st.none() | _spans),
    ),
    faults=st.builds(
        plan.Faults,
        seed=st.none() | st.integers(0, (1 << 53) - 1),
        at_progress=st.lists(st.floats(0.1, 1e9), max_size=3).map(tuple),
        grace_s=_seconds,
    ),
    versions=st.dictionaries(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,8}", fullmatch=True), _argv, max_size=2),
)


def written(data: dict, draw: random.Random, where: str = "") -> str:
    """Write content as TOML in one of many ways: keys and tables in any order, with blanks and comments between them."""
    blank = lambda: draw.choice(["", " ", "\t  "])  # noqa: E731
    end = lambda: blank() + draw.choice(["", "# a comment = 1", "#"]) + "\n" * draw.randint(1, 3)  # noqa: E731
    tables = [(key, value) for key, value in data.items() if isinstance(value, dict)]
    rows = [(key, value) for key, value in data.items() if not isinstance(value, dict)]
    draw.shuffle(rows)
    draw.shuffle(tables)
    key = template.toml
    text = f"[{where}]{end()}" if where else ""
    text += "".join(f"{blank()}{key(name)}{blank()}={blank()}{value_of(value, draw)}{end()}" for name, value in rows)
    return text + "".join(written(value, draw, f"{where}.{key(name)}" if where else key(name)) for name, value in tables)


def value_of(value: object, draw: random.Random) -> str:
    match value:
        case bool():
            return str(value).lower()
        case int():
            return draw.choice([f"{value}", f"{value:_}"])
        case float():
            return repr(value)
        case list():
            return (
                "[" + ",".join(draw.choice(["", " ", "\n"]) + value_of(item, draw) for item in value) + draw.choice(["", "\n", " "]) + "]"
            )
        case dict():
            return "{" + ", ".join(f"{template.toml(name)} = {value_of(item, draw)}" for name, item in value.items()) + "}"
    return template.toml(value) if not re.fullmatch(r"\d{4}-\d\d-\d\dT.*Z", str(value)) else str(value)


@settings(deadline=None, max_examples=40)
@given(plans, st.randoms(use_true_random=False))
def test_the_hash_stands_however_the_plan_is_written(one, draw):
    content = canonical.content(one)
    again = read(written(content, draw))
    assert again == one
    assert canonical.plan_hash(again) == canonical.plan_hash(one)
    assert canonical.workload_hash(again) == canonical.workload_hash(one)


@settings(deadline=None, max_examples=40)
@given(plans)
def test_the_content_is_the_plan(one):
    content = canonical.content(one)
    assert canonical.restore(content) == one
    # As it comes back from the lock's JSON.
    through = msgspec.json.decode(msgspec.json.encode(content))
    assert canonical.digest(through) == canonical.plan_hash(one)


@settings(deadline=None, max_examples=40)
@given(plans, plans)
def test_plans_that_differ_have_different_hashes(one, other):
    assert (canonical.plan_hash(one) == canonical.plan_hash(other)) == (one == other)


def test_defaults_written_out_and_whole_numbers_change_nothing():
    short = read(HEAD)
    long = read(
        HEAD + "[arms]\nwarm_up_s = 0.0\norder = 'alternating'\n[site]\nlevel = 0.90\nrepetitions = 5\n[faults]\ngrace_s = 30\n[versions]\n"
    )
    assert canonical.content(short) == canonical.content(long) == {"evaluation": {"name": "a", "format": 1}}
    assert canonical.plan_hash(read(HEAD + "[faults]\ngrace_s = 40")) == canonical.plan_hash(read(HEAD + "[faults]\ngrace_s = 4e1"))
    assert canonical.plan_hash(read(HEAD + "[faults]\ngrace_s = 40")) != canonical.plan_hash(short)


def test_saying_that_nothing_survives_is_not_saying_nothing():
    said = read(HEAD + "[workload.own_checkpoint]\nkind = 'none'\n")
    assert said.workload.own_checkpoint == plan_workload.OwnCheckpoint()
    assert canonical.plan_hash(said) != canonical.plan_hash(read(HEAD))


def test_the_hash_is_what_it_always_was():
    # Fixed: a lock of today must be checkable by every later version. Computed here by hand from the documented form.
    import hashlib

    text = (
        '{"evaluation":{"format":1,"name":"a"},"site":{"window":{"duration_s":60,"start":"2026-12-01T07:00:00Z"}},'
        '"workload":{"command":["x","\\u00e9"],"own_checkpoint":{}}}'
    )
    wanted = hashlib.sha256(b"perdure evaluation plan 1\n" + text.encode()).hexdigest()
    found = read(
        HEAD
        + "[workload]\ncommand = ['x', 'é']\ngpus = 0\n[workload.own_checkpoint]\n"
        + "[site.window]\nstart = 2026-12-01T08:00:00+01:00\nduration_s = 60.0\n"
    )
    assert canonical.plan_hash(found) == wanted


def test_the_baseline_is_of_the_workload_alone(tmp_path):
    before = read(evaluations.text(tmp_path))
    numbers = read(evaluations.text(tmp_path, at_most="at_most = 5"))
    other = read(evaluations.text(tmp_path, command='command = ["other"]'))
    assert canonical.hash_for(before, "baseline") == canonical.hash_for(numbers, "baseline") != canonical.hash_for(other, "baseline")
    assert canonical.hash_for(before, "arms") != canonical.hash_for(numbers, "arms")


# The template ------------------------------------------------------------------------------------------------------


def known(**changed) -> template.Known:
    return template.Known(**({"name": "a", "working_directory": "/w", "seed": 7} | changed))


def test_the_template_is_a_plan_and_names_every_key():
    text = template.write(known())
    assert read(text).faults.seed == 7
    keys = {line.lstrip("# ").split(" =")[0] for line in text.splitlines() if " = " in line}
    assert keys >= {key.rpartition(".")[2] for key in typed_toml.describe(Plan)} - {"runs", "duration_s", "ready_s", "versions"}


def test_the_template_with_all_its_examples_is_a_plan_too():
    lines = template.write(known(command=("python", "train.py"))).splitlines()
    shown = [re.sub(r"^# (?=\[|[a-z_]+ = )", "", line) for line in lines]
    # Where a plan may say one of two things, the template shows both.
    shown = [line for line in shown if not line.startswith(("end = ", "rate_per_hour = "))]
    read("\n".join(shown))


@settings(deadline=None, max_examples=40)
@given(
    command=_argv,
    owner=st.none() | _words,
    pattern=st.none() | st.sampled_from(["step ([0-9]+)", 'a"b([0-9])', "\\d+ (\\d+) \x7f"]),
    window=st.none() | st.floats(1, 1e6),
    declared=st.none() | st.booleans(),
)
def test_what_is_given_comes_back_from_the_template(command, owner, pattern, window, declared):
    given = known(command=command, owner=owner, pattern=pattern, window_s=window, made_for_evaluation=declared, kinds=("kill", "hang"))
    found = read(template.write(given))
    assert (found.workload.command, found.workload.owner, found.workload.made_for_evaluation) == (command, owner, declared)
    assert (found.workload.progress and found.workload.progress.pattern) == pattern
    assert found.faults.kinds == (FaultKind.KILL, FaultKind.HANG)
    assert (found.site.window is None) == (window is None)


def test_text_that_no_plan_can_hold_is_refused():
    with pytest.raises(errors.UsageError, match="UTF-8"):
        template.write(known(command=("\udcff",)))


def test_the_plan_in_the_documentation_lacks_nothing_but_its_machine():
    page = (Path(__file__).parents[2] / "docs" / "howto" / "evaluate.md").read_text()
    tables = "\n".join(re.findall(r"```toml\n(.*?)```", page, re.DOTALL))
    found = read(HEAD + tables)
    assert {lack.key for lack in completeness.check(found)} <= {
        # What is only there: its node, its folder and its programs.
        *(
            "site.nodes",
            "workload.working_directory",
            "workload.command",
            "exit.commands[0]",
            "exit.commands[1]",
            "exit.test",
            "versions.torch",
        )
    }


# The measured baseline in it ---------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(plans, st.randoms(use_true_random=False), st.floats(0.001, 1e5))
def test_the_measured_baseline_is_put_in_and_replaced_and_nothing_else_changes(one, draw, duration_s):
    content = written(canonical.content(one), draw).encode()
    first = plan.Measured(runs=("b1", "b2"), duration_s=duration_s)
    second = plan.Measured(runs=("b3",), ready_s=1.5)
    once = measured.insert(content, one, first, source="x")
    twice = measured.insert(once, plan.parse(once, source="x"), second, source="x")
    assert plan.parse(twice, source="x").baseline.measured == second
    assert once.startswith(content.rstrip(b"\n"))
    assert twice.startswith(content.rstrip(b"\n"))
    assert twice.count(b"[baseline.measured]") == 1


@pytest.mark.parametrize(
    "table",
    [
        "[baseline]\nmeasured = {runs = ['a']}\n",
        "[baseline]\nmeasured.runs = ['a']\n",
        "[baseline.measured]\nruns = [\n'a',\n]\n",
        # The table's name in a text is not the table.
        '[workload]\ncommand = ["""x\n[baseline.measured]\nruns = [\'a\']\n"""]\n',
    ],
)
def test_a_plan_that_it_cannot_be_put_into_is_left_alone(table):
    text = HEAD + table
    with pytest.raises(errors.InputFormat, match="cannot be written") as caught:
        measured.insert(text.encode(), read(text), plan.Measured(runs=("b",)), source="x")
    assert "by hand" in caught.value.hint


def test_the_baseline_s_medians_are_written_from_its_runs(tmp_path):
    there = evaluations.begin(tmp_path)
    evaluations.measure_baseline(there, 3)
    before = there.plan.read_text()
    wanted = plan.Measured(runs=tuple(f"baseline-unmanaged-{number}" for number in range(3)), duration_s=11.0, ready_s=1.0)
    assert measured.record(there) == wanted
    assert plan.load(there.plan).baseline.measured == wanted
    assert there.plan.read_text().startswith(before)
    lock.fix(there, signed=Signature(1.0, "maria", "login1"))
    locked = there.plan.read_bytes()
    with pytest.raises(errors.UsageError, match="locked"):
        measured.record(there)
    assert there.plan.read_bytes() == locked
