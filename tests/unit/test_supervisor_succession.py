"""What a life finds after it waited for those before it: one that completed meanwhile, a checkpoint that is new, or neither."""

from __future__ import annotations

import pytest
from stores import Still, new_repository, save

from perdure import errors
from perdure.model.checkpoint import CheckpointId, LifeEnd
from perdure.store import layout, lives
from perdure.supervisor.record import State
from perdure.supervisor.succession import Completed, Succession
from perdure.supervisor.voice import Voice

DONE = LifeEnd(at_ns=1, completed=True, status=0, reason="it ended with 0")
ILL = LifeEnd(at_ns=1, completed=True, status=7, reason="it ended with 7")
STOPPED = LifeEnd(at_ns=1, completed=False, status=None, reason="SIGTERM")


@pytest.fixture
def repository(tmp_path):
    return new_repository(tmp_path)


@pytest.fixture
def voice():
    return Voice(quiet=True, as_json=False)


def there(repository):
    """A life on another machine, which gives no other sign than its lease."""
    return lives.begin(repository, "w", restored_from=None, surroundings=Still(host="there"), ttl_s=30)


def follow(repository, voice, surroundings, *, regardless=False):
    return Succession(repository, "w", regardless=regardless, surroundings=surroundings, voice=voice)


@pytest.mark.parametrize(("end", "state"), [(DONE, State.COMPLETED), (ILL, State.FAILED)], ids=["well", "badly"])
def test_an_older_one_that_completes_while_it_is_waited_for_is_not_followed(repository, voice, end, state):
    older = there(repository)
    following = follow(repository, voice, Still(on_pause=lambda: older.end(end)))
    assert following.look() is None
    found = following.begin(restored_from=None, ttl_s=30)
    assert found == Completed(1, end)
    assert (found.status, found.state) == (end.status, state)
    # Nothing of the life that was not begun stays: the newest one that ran is the one that completed.
    assert lives.latest(repository, "w").end == end
    assert lives.latest(repository, "w").epoch == 1


def test_one_that_completes_between_two_tries_is_not_followed(repository, voice):
    """A scheduler's job tries again while its copy elsewhere lives, and would find a completed workload, which is started anew."""
    older = there(repository)
    following = follow(repository, voice, Still(on_pause=older.renew))
    assert following.look() is None
    with pytest.raises(errors.WorkloadBusy, match="on there"):
        following.begin(restored_from=None, ttl_s=30)
    older.end(DONE)
    assert following.look() == Completed(1, DONE)


def test_one_that_had_completed_before_is_started_anew(repository, voice):
    there(repository).end(DONE)
    following = follow(repository, voice, Still())
    assert following.look() is None
    assert following.begin(restored_from=None, ttl_s=30).life.epoch == 2


def test_a_fresh_start_is_a_fresh_start_however_the_older_one_ends(repository, voice):
    older = there(repository)
    following = follow(repository, voice, Still(on_pause=lambda: older.end(DONE)), regardless=True)
    assert following.look() is None
    assert following.begin(restored_from=None, ttl_s=30).life.epoch == 2


def test_one_that_is_stopped_meanwhile_is_followed(repository, voice):
    older = there(repository)
    following = follow(repository, voice, Still(on_pause=lambda: older.end(STOPPED)))
    following.look()
    assert following.begin(restored_from=None, ttl_s=30).life.epoch == 2


def test_a_checkpoint_that_was_saved_meanwhile_is_not_passed_over(repository, voice, tmp_path):
    """Whether there was none to go on from, or one of a life before: the next try chooses again, among all of them."""
    older = there(repository)

    def saved() -> None:
        save(repository, "w@1.1", {"a": b"content"}, folder=tmp_path)
        older.end(STOPPED)

    following = follow(repository, voice, Still(on_pause=saved))
    following.look()
    with pytest.raises(errors.WorkloadBusy, match=r"w@1\.1 was saved meanwhile"):
        following.begin(restored_from=None, ttl_s=30)
    assert lives.latest(repository, "w").epoch == 1
    again = follow(repository, voice, Still())
    again.look()
    assert again.begin(restored_from=CheckpointId("w", 1, 1), ttl_s=30).life.epoch == 3


def test_the_end_of_a_life_that_was_not_begun_says_that_the_work_is_done_even_when_damaged(repository, voice):
    older = there(repository)
    following = follow(repository, voice, Still(on_pause=lambda: older.end(DONE)))
    following.look()
    following.begin(restored_from=None, ttl_s=30)
    repository.backend.delete(layout.end_key("w", 2))
    repository.backend.put(layout.end_key("w", 2), b"damaged")
    assert lives.latest(repository, "w").end.completed
