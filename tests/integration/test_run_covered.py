"""A machine that has parts of /proc covered, or made read-only, as containers have: they are so for a workload, in each of its lives."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from supervised import LIMIT_S, Site, wait_for

pytestmark = pytest.mark.criu

COVERED = """
mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys
mount --bind /proc/sys/vm /proc/sys/vm && mount -o remount,bind,rw /proc/sys/vm
mount --bind /proc/irq /proc/irq && mount -o remount,bind,ro /proc/irq
mount --bind /proc/version /proc/devices
mount --bind /dev/null /proc/timer_list
mount --bind /dev/null /proc/sys/kernel/core_pattern
mount -t tmpfs -o ro nothing /proc/fs
exec "$@"
"""
"""As Docker has it, but for what lies over a part of what is read-only, or is to be written to in it, and one file over another."""

LOOK = """
import errno, os, stat, time

def refused(path):
    try:
        os.close(os.open(path, os.O_WRONLY))
    except OSError as error:
        return errno.errorcode[error.errno]

def look():
    text = open("/proc/devices").read()
    return (
        refused("/proc/sys/kernel/msgmax"), refused("/proc/sys/kernel/ns_last_pid"), refused("/proc/irq/default_smp_affinity"),
        stat.S_ISCHR(os.stat("/proc/timer_list").st_mode), stat.S_ISCHR(os.stat("/proc/sys/kernel/core_pattern").st_mode),
        os.listdir("/proc/fs"), text.startswith("Linux version"), refused("/proc/self/comm"), refused("/proc/sys/vm/swappiness"),
        os.readlink("/proc/self") == str(os.getpid()),
    )

held = open("/proc/sys/kernel/msgmax")
print(look(), flush=True)
for life in range(2, 5):
    while not os.path.exists(str(life)):
        time.sleep(0.02)
    held.seek(0)
    print(look(), int(held.read()) > 0, flush=True)
"""
LOOKS = "('EROFS', 'EROFS', 'EROFS', True, True, [], True, None, None, True)"
RUN = ("run", "--name", "a", "--every", "never", "--", "python3", "look.py")


@pytest.fixture
def site(tmp_path: Path):
    made = Site(tmp_path)
    (made.work / "look.py").write_text(LOOK)
    yield made
    made.close()


def test_what_is_covered_outside_is_covered_for_a_workload_in_each_life(site: Site):
    covered = {"wrapped_in": ("unshare", "--mount", "sh", "-ec", COVERED, "sh")}
    told = LOOKS + "\n"
    for life in range(2, 5):
        process = site.start(*RUN, **covered)
        wait_for(lambda process=process, lines=told.count("\n"): site.log("a").count(b"\n") == lines or process.poll() is not None)
        assert site.log("a").decode() == told
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 75, err.decode()
        (site.work / str(life)).touch()
        told += f"{LOOKS} True\n"
    done = site.run(*RUN, **covered)
    assert done.returncode == 0, done.stderr.decode()
    assert site.log("a").decode() == told


def test_where_nothing_is_covered_a_workload_sees_all_of_proc(site: Site):
    for life in range(2, 5):
        (site.work / str(life)).touch()
    done = site.run(*RUN)
    assert done.returncode == 0, done.stderr.decode()
    assert "EROFS" not in done.stdout.decode()
