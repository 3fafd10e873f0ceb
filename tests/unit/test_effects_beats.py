import threading
import time

import pytest
from children import wait_for
from supervised import LIMIT_S

from perdure import errors
from perdure.effects.beats import Beats, Held
from perdure.effects.rows import Claim

LONG_S = 3600.0


def test_whoever_closes_waits_for_no_sign_of_life():
    """Also when the thread that gives them has only just been started, or is in the middle of one."""
    for pause_s in (0.0, 0.0, 0.0, 0.001, 0.05):
        closed = []
        beats = Beats(LONG_S, renew=lambda _: None, settle=lambda *_: None, close=lambda closed=closed: closed.append(True))
        beats.add(Held(Claim("key", "nonce", 0, None, is_doubtful=False, must_look=False)))
        time.sleep(pause_s)
        closing = threading.Thread(target=beats.close, daemon=True)
        closing.start()
        closing.join(LIMIT_S)
        assert closed == [True]


def test_what_is_held_after_it_was_closed_is_renewed_again():
    renewed = threading.Event()
    beats = Beats(0.03, renew=lambda _: renewed.set(), settle=lambda *_: None, close=lambda: None)
    beats.close()
    beats.add(Held(Claim("key", "nonce", 0, None, is_doubtful=False, must_look=False)))
    assert renewed.wait(LIMIT_S)
    beats.close()


@pytest.mark.parametrize("error", [errors.LedgerError("unsafe"), OSError("gone"), KeyError("the caller's own")])
def test_no_failure_ends_the_signs_of_life(error):
    renewals = []
    beats = Beats(0.03, renew=lambda _: renewals.append(1) or fail(error), settle=lambda *_: None, close=lambda: None)
    beats.add(Held(Claim("key", "nonce", 0, None, is_doubtful=False, must_look=False)))
    wait_for(lambda: len(renewals) > 2)
    beats.close()


def fail(error: Exception) -> None:
    raise error
