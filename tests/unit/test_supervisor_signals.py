import signal
import subprocess
import sys

import pytest
from supervised import LIMIT_S

ENDING = """
import os, signal, sys
from perdure.supervisor import signals
from perdure.supervisor.reactor import Reactor

number, passed_over = int(sys.argv[1]), frozenset(map(int, sys.argv[2:]))
signal.signal(number, signal.SIG_DFL)  # whoever runs the tests may ignore it
with signals.delivered(Reactor(), passed_over=passed_over):
    pass
os.kill(os.getpid(), number)
sys.modules["late"] = type("Late", (), {"__del__": lambda self, kill=os.kill, pid=os.getpid(): kill(pid, number)})()
sys.exit(75)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2])
def test_what_comes_when_all_is_over_does_not_change_the_status(number):
    assert ends_with(number) == 75


def test_nor_does_a_signal_of_the_job():
    assert ends_with(signal.SIGRTMIN, signal.SIGRTMIN) == 75


def test_a_person_at_a_terminal_can_still_end_what_hangs():
    assert ends_with(signal.SIGQUIT) == -signal.SIGQUIT


def test_the_wish_for_a_checkpoint_may_come_before_there_is_anything_to_save():
    program = (
        "import os, perdure.__main__ as way_in, perdure.cli.app as app; app.run = lambda _: os.kill(os.getpid(), 10); way_in.main(['run'])"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=LIMIT_S, check=False).returncode == 0


def ends_with(number: int, *passed_over: int) -> int:
    """Return the status of a process to which signal `number` comes after the block."""
    argv = [sys.executable, "-c", ENDING, str(int(number)), *(str(int(one)) for one in passed_over)]
    return subprocess.run(argv, timeout=LIMIT_S, check=False).returncode
