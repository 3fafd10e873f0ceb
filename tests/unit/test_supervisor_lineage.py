"""Which checkpoint the next life goes on from."""

from __future__ import annotations

from perdure.model.checkpoint import CheckpointId, Life, LifeEnd
from perdure.supervisor import lineage


def point(epoch: int, sequence: int) -> CheckpointId:
    return CheckpointId("a", epoch, sequence)


def lives(*origins: CheckpointId | None, completed: bool = False) -> dict[int, Life]:
    end = LifeEnd(0, completed, 0, "") if completed else None
    return {
        epoch: Life(
            workload="a",
            epoch=epoch,
            started_ns=0,
            restored_from=origin,
            hostname="h",
            boot_id="b",
            supervisor_pid=1,
            supervisor_start_ticks=1,
            end=end if epoch == len(origins) else None,
        )
        for epoch, origin in enumerate(origins, 1)
    }


def test_the_newest_of_a_chain_of_lives_comes_first():
    there = [point(1, 1), point(1, 2), point(2, 1)]
    assert lineage.candidates(lives(None, point(1, 2)), there) == (point(2, 1), point(1, 2), point(1, 1))


def test_a_life_that_saved_nothing_falls_back_to_where_it_came_from():
    assert lineage.candidates(lives(None, point(1, 2), point(1, 2)), [point(1, 1), point(1, 2)]) == (point(1, 2), point(1, 1))


def test_a_branch_that_was_left_is_not_picked():
    """Restored from 1.1 by hand: 1.2 and 1.3 belong to what was given up."""
    there = [point(1, 1), point(1, 2), point(1, 3), point(2, 1)]
    assert lineage.candidates(lives(None, point(1, 1)), there) == (point(2, 1), point(1, 1))


def test_a_run_that_was_started_over_forgets_the_one_before():
    assert lineage.candidates(lives(None, None), [point(1, 1), point(1, 2)]) == ()
    assert lineage.candidates(lives(None, None), [point(1, 2), point(2, 1)]) == (point(2, 1),)


def test_a_completed_run_has_none():
    assert lineage.candidates(lives(None, point(1, 2), completed=True), [point(1, 2), point(2, 1)]) == ()


def test_an_imported_checkpoint_without_lives_counts():
    assert lineage.candidates({}, [point(3, 1), point(3, 2)]) == (point(3, 2), point(3, 1))


def test_a_life_that_is_not_known_ends_the_walk_and_all_before_counts():
    known = {3: lives(None, None, point(2, 4))[3]}
    there = [point(1, 9), point(2, 3), point(2, 4), point(2, 5), point(3, 1)]
    assert lineage.candidates(known, there) == (point(3, 1), point(2, 4), point(2, 3), point(1, 9))


def test_an_import_newer_than_all_that_is_known_comes_first():
    assert lineage.candidates(lives(None), [point(1, 1), point(5, 2)]) == (point(5, 2), point(1, 1))
