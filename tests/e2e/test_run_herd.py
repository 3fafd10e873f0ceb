"""All workloads of a node are ended at once, as when it is drained, and started again at once, as when it is back."""

from __future__ import annotations

import signal
import subprocess

import pytest
from supervised import COUNT_FOR_ANOTHER, LIMIT_S, Site, wait_for

pytestmark = [pytest.mark.criu, pytest.mark.timeout(1800)]

MANY, ROUNDS = 6, 3
COUNT = """
if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[2])
    lock, queue = context.Lock(), context.Queue(8)
    context.Process(target=count, args=(lock, queue), daemon=True).start()
    with open(sys.argv[1], "w") as out:
        while not os.path.exists("enough"):
            with lock:
                pass
            out.write(f"{queue.get()}\\n")
            out.flush()
"""
"""Counts through a queue of multiprocessing into the file that is its first argument. With spawn there are semaphores with two names."""


def counted(site: Site, number: int) -> list[str]:
    """The whole lines of one of them."""
    out = site.work / f"out{number}"
    return [line for line in out.read_text().splitlines(keepends=True) if line.endswith("\n")] if out.exists() else []


def test_all_workloads_of_a_folder_are_saved_at_once_and_brought_back_at_once(site):
    (site.work / "herd.py").write_text(COUNT_FOR_ANOTHER + COUNT)
    for round_ in range(ROUNDS):
        before = [len(counted(site, number)) for number in range(MANY)]
        running = []
        for number in range(MANY):
            command = ("python3", "herd.py", f"out{number}", ("spawn", "fork")[number % 2])
            running.append(site.start("run", "--name", f"w{number}", "--every", "never", "--", *command, stdout=subprocess.DEVNULL))
        for number, process in enumerate(running):
            wait_for(
                lambda number=number, process=process, before=before: (
                    process.poll() is not None or len(counted(site, number)) > before[number] + 5
                ),
                LIMIT_S,
                f"for w{number} in round {round_}",
            )
        if round_ == ROUNDS - 1:
            (site.work / "enough").touch()
        else:
            for process in running:
                process.send_signal(signal.SIGTERM)
        for number, process in enumerate(running):
            _, told = process.communicate(timeout=LIMIT_S)
            assert process.returncode == (0 if round_ == ROUNDS - 1 else 75), told.decode()
            assert b"no checkpoint" not in told
            assert (f"goes on from w{number}@{round_}.1".encode() in told) == (round_ > 0), told.decode()
    for number in range(MANY):
        found = counted(site, number)
        assert found == [f"{line + 1}\n" for line in range(len(found))]
