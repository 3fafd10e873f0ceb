"""Checkpoints of a job on Slurm: told by Perdure in the job's output, parted from what the job writes, and timed as progress is."""

from __future__ import annotations

import itertools
import socket

import msgspec
import pytest
import synthetic_runs
from hypothesis import given
from hypothesis import strategies as st

from perdure.agent.told import Told
from perdure.evaluation import course, loss, overhead, proof, runs, signs, slurm_course, slurm_events
from perdure.evaluation.arms import Said
from perdure.evaluation.checkpoints import Checkpoints
from perdure.evaluation.slurm_events import Parting
from perdure.model.checkpoint import CheckpointId
from perdure.model.evaluation import Arm, Event, EventKind, Point, Run, Unmeasured
from perdure.supervisor import messages
from perdure.supervisor.line import Line
from perdure.supervisor.record import LastCheckpoint

LAST = LastCheckpoint(
    id=CheckpointId("slurm-lab-7", 1, 1),
    created_ns=1,
    logical_bytes=1 << 20,
    stored_bytes=1 << 19,
    new_bytes=1 << 18,
    stopped_s=0.25,
    cost_s=0.5,
)


def event(phase: str, at_s: float, sequence: int = 1, **more) -> messages.Event:
    """What the engine says at `at_s` of the node's clock."""
    made = LAST if phase == "committed" else None
    if made is not None:
        made = msgspec.structs.replace(made, id=CheckpointId("slurm-lab-7", 1, sequence))
    return messages.Event(phase, "slurm-lab-7", round(at_s * 1e9), checkpoint=made, **more)


def written(*events: messages.Event) -> bytes:
    """What the task writes of `events`, through the voice and the socket that a seat has."""
    here, there = socket.socketpair()
    with here, there:
        voice = Told(Line(here), quiet=False, events=True, in_words=True)
        for each in events:
            voice.event(each)
        said = [msgspec.json.decode(line) for line in there.recv(1 << 20).splitlines()]
    return b"".join(b"perdure: " + one["said"].encode() + b"\n" for one in said if "said" in one)


def test_a_seat_says_each_step_of_a_checkpoint_and_not_how_far_storing_is():
    lines = written(event("freeze", 1.0), event("store", 1.5, done_bytes=5, total_bytes=9), event("committed", 2.0))
    said = Parting().feed(lines).said
    assert [(one.phase, one.at_ns) for one in said] == [("freeze", 10**9), ("committed", 2 * 10**9)]
    assert said[1].checkpoint is not None
    assert (said[1].checkpoint.stopped_s, said[1].checkpoint.stored_bytes) == (0.25, 1 << 19)


def test_a_long_reason_fits_into_the_line_of_a_task():
    line = written(event("failed", 1.0, text="\u00e9" * 5000))
    assert len(line) < 4096
    assert Parting().feed(line).said[0].text.startswith("\u00e9")


JOB = b"step 1\nperdure: slurm-lab-7, life 1 on n1: starts anew\nstep 2\nI say perdure: event\nstep 3\n"


@given(st.lists(st.integers(0, 1000), max_size=12), st.integers(0, len(JOB)))
def test_what_the_job_wrote_comes_through_whole_however_it_is_read_and_wherever_perdure_speaks(cuts, place):
    line = b'perdure: event {"phase":"freeze","workload":"w","at_ns":5}\n'
    content = JOB[:place] + line + JOB[place:]
    parting, own, said = Parting(), b"", []
    edges = sorted({0, len(content), *(cut % len(content) for cut in cuts)})
    for first, last in itertools.pairwise(edges):
        parted = parting.feed(content[first:last])
        own += parted.own
        said += parted.said
    assert own == JOB
    assert [one.phase for one in said] == ["freeze"]


def test_what_was_read_at_once_lies_apart_as_the_node_says_and_not_before_the_last_look():
    said = [Said("check", 10 * 10**9), Said("freeze", 11 * 10**9), Said("committed", 15 * 10**9)]
    assert [at_s for _, at_s in slurm_events.times(said, since_s=98.0, now_s=100.0)] == [98.0, 98.0, 100.0]
    assert [at_s for _, at_s in slurm_events.times(said, since_s=0.0, now_s=100.0)] == [95.0, 96.0, 100.0]
    assert [at_s for _, at_s in slurm_events.times(said, since_s=-float("inf"), now_s=100.0)] == [95.0, 96.0, 100.0]


# A whole job, played: what it writes and when is known, and so is its overhead


Line_at = tuple[float, bytes]


def job(pace_s: float, checkpoints: tuple[float, ...], steps: int = 600) -> list[Line_at]:
    """What a job writes and when: it counts at `pace_s`, stands still for 1.5 s for a checkpoint from each of `checkpoints` on, and
    counts at half that pace for two seconds more, while the checkpoint is stored."""
    lines: list[Line_at] = []
    now_s, busy_s, coming = 0.0, 0.0, list(checkpoints)
    for step in range(1, steps + 1):
        if coming and now_s >= coming[0]:
            number = len(checkpoints) - len(coming) + 1
            thawed_s, busy_s = now_s + 1.5, now_s + 3.5
            lines.append((now_s, written(event("check", now_s + 7), event("freeze", now_s + 7.1))))
            lines.append((thawed_s, written(event("store", thawed_s + 7))))
            lines.append((busy_s, written(event("committed", busy_s + 7, number))))
            now_s = thawed_s
            coming.pop(0)
        now_s += pace_s * (2 if now_s < busy_s else 1)
        lines.append((now_s, b"step %d\n" % step))
    return sorted(lines, key=lambda line: line[0])


def play(place, arm: Arm, *, pace_s: float, read_every_s: float, checkpoints: tuple[float, ...]) -> Run:
    """The run of such a job, read now and then as a harness does."""
    lines = job(pace_s, checkpoints)
    place.mkdir()
    recorder = runs.Recorder(place, msgspec.structs.replace(synthetic_runs.play(synthetic_runs.Script(), arm), events=()))
    recorder.event(Event(0.0, EventKind.LAUNCHED, None, {"life": 1}))
    parting, told = Parting(), Checkpoints(recorder.signals)
    before_s, at_s, ready = 0.0, read_every_s, False
    while before_s < lines[-1][0]:
        parted = parting.feed(b"".join(line for when_s, line in lines if before_s < when_s <= at_s))
        for said, said_s in slurm_events.times(parted.said, since_s=before_s, now_s=at_s):
            for each in told.hear(said, said_s):
                recorder.event(each)
        for line in parted.own.split():
            if line.isdigit():
                if not ready:
                    recorder.event(Event(at_s, EventKind.READY, float(line)))
                ready = True
                recorder.signal(at_s, float(line))
        before_s, at_s = at_s, min(at_s + read_every_s, lines[-1][0])  # an end is seen at once
    recorder.event(Event(before_s, EventKind.ENDED, None, {"completed": True}))
    return recorder.close(finished=True)


@pytest.mark.parametrize("read_every_s", [0.2, 3.0], ids=["every-look", "a-slow-file-system"])
def test_the_overhead_of_a_job_is_what_it_was_made_with_and_holds_no_checkpoint(tmp_path, read_every_s):
    unmanaged = course.read(play(tmp_path / "u", Arm.UNMANAGED, pace_s=0.1, read_every_s=read_every_s, checkpoints=()))
    managed = course.read(play(tmp_path / "m", Arm.MANAGED, pace_s=0.102, read_every_s=read_every_s, checkpoints=(10.0, 25.0, 40.0)))
    (point,) = overhead.points(unmanaged, managed)
    assert isinstance(point, Point)
    assert point.value == pytest.approx(0.02, abs=0.01)
    # Of the same work as a whole, with the checkpoints in it, three times 1.5 s and 2 s of half the pace would be 5 %.
    assert point.parts["timed"] < point.parts["work"]
    costs = list(overhead.costs(managed))
    assert [one.value for one in costs if isinstance(one, Point)] == [0.25, 0.25, 0.25]
    assert all(one.parts["stored_bytes"] == 1 << 19 for one in costs if isinstance(one, Point))


def restored(counter: float, *, told: float | None) -> Run:
    """A run that was struck at 9 and went on behind `counter`, where Perdure told of a checkpoint at `told` if it did."""
    saved = () if told is None else (Event(6.0, EventKind.RECOVERABLE, told, {"source": "perdure", "id": "1.1"}),)
    events = (
        Event(0.0, EventKind.LAUNCHED, None, {"life": 1}),
        *(Event(float(step), EventKind.PROGRESS, step) for step in range(1, 10)),
        *saved,
        Event(9.5, EventKind.FAULT_INJECTED, 9.0, {"kind": "kill"}),
        Event(10.0, EventKind.DETECTED, None, {"how": "Slurm: PENDING"}),
        Event(11.0, EventKind.RESTARTED, None, {"life": 2, "how": "start"}),
        Event(12.0, EventKind.RESTORED, None, {"from": "slurm-lab-7@1.1"}),
        Event(13.0, EventKind.USEFUL, counter + 1),
        Event(13.0, EventKind.PROGRESS, counter + 1),
        Event(20.0, EventKind.ENDED, None, {"completed": True}),
    )
    return msgspec.structs.replace(synthetic_runs.play(synthetic_runs.Script(), Arm.MANAGED), events=events)


@pytest.mark.parametrize("told", [4.0, 7.0, None], ids=["told-lower", "told-higher", "not-told"])
def test_the_counter_that_a_restore_proves_counts_and_the_time_that_perdure_told(told):
    run = restored(6.0, told=told)
    settled = msgspec.structs.replace(run, events=proof.prove(run.events, is_each_heard=True))
    (saved,) = [event for event in settled.events if event.kind is EventKind.RECOVERABLE]
    assert (saved.value, saved.at_s) == (6.0, 6.0)
    (point,) = loss.points(course.read(settled))
    assert isinstance(point, Point)
    assert (point.parts["at_fault"], point.parts["recoverable"]) == (9.0, 6.0)


def test_a_counter_that_is_looked_at_now_and_then_proves_no_more_than_was_thought():
    for told, proved in ((4.0, 4.0), (7.0, 6.0)):
        (saved,) = [one for one in proof.prove(restored(6.0, told=told).events, is_each_heard=False) if one.kind is EventKind.RECOVERABLE]
        assert saved.value == proved
        assert saved.data.get("thought") == (None if told == proved else told)


def test_no_life_ends_before_its_last_checkpoint_did():
    """The accounting knows whole seconds: an end may be told for before the checkpoint that the grace was for."""
    grace = (Event(9.6, EventKind.CHECKPOINT_BEGUN), Event(10.7, EventKind.CHECKPOINT_DONE, None, {"id": "1.1", "stopped_s": 0.2}))
    run = restored(6.0, told=None)
    late = [msgspec.structs.replace(event, at_s=11.0) if event.kind is EventKind.DETECTED else event for event in run.events]
    run = msgspec.structs.replace(run, events=tuple(sorted((*late, *grace), key=lambda event: event.at_s)))
    found = slurm_course.settle(run, ATTEMPTS, origin_unix_s=1000.0, is_each_heard=True)
    assert next(event for event in found.events if event.kind is EventKind.DETECTED).at_s >= 10.7


ATTEMPTS = tuple(
    slurm_course.Attempt(
        state=state, submit_s=1000.0, start_s=start_s, end_s=end_s, elapsed_s=end_s - start_s, nodes=1, node_list="n1", gpus=0,
        exit_status=0, exit_signal=0,
    )
    for state, start_s, end_s in (("PREEMPTED", 1000.0, 1009.0), ("COMPLETED", 1011.0, 1020.0))
)  # fmt: skip


def test_where_perdure_on_the_node_is_older_the_overhead_is_not_made_up():
    run = restored(6.0, told=None)
    end = msgspec.structs.replace(run.events[-1], data={"completed": True, "checkpoints_told": False})
    old = course.read(msgspec.structs.replace(run, events=(*run.events[:-1], end)))
    (found,) = overhead.points(old, old)
    assert isinstance(found, Unmeasured)
    assert found.code == "not-told"


def test_what_is_said_of_a_life_that_ended_at_once_was_said_before():
    assert signs.before(9.5, 9.7) < 9.5
    assert signs.before(9.5, 9.2) == 9.2
