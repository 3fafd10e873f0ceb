"""CRIU's logs are explained. Every excerpt was written by a real CRIU when the failure was provoked; only paths are shortened."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.checkpoint.criu import log, patterns

NOFILE = "(00.024966) Error (criu/util.c:1534): rlimit: Can't setup RLIMIT_NOFILE for self: Operation not permitted\n"

CASES: dict[str, tuple[str, str, dict[str, object]]] = {
    # criu 3.17.1
    "vdso": (
        """(00.003020) Error (criu/util.c:642): exited, status=1
(00.003824) Error (criu/util.c:642): exited, status=1
(00.021918) Error (criu/vdso.c:381): vdso: Unexpected rt vDSO area bounds
(00.021921) Error (criu/vdso.c:613): vdso: Failed to fill self vdso symtable
(00.021923) Error (criu/kerndat.c:1615): kerndat_vdso_fill_symtable failed when initializing kerndat.
(00.021975) Error (criu/crtools.c:260): Could not initialize kernel features detection.
""",
        "criu-vdso-bounds",
        {},
    ),
    # criu 4.1.1
    "passcred": (
        """(00.058125) Error (criu/sockets.c:628): sockets: Can't get 1:16 opt: Operation not supported
(00.058127) Error (criu/sockets.c:628): sockets: Can't get 1:34 opt: Operation not supported
(00.058149) Error (criu/cr-dump.c:1681): Dump files (pid: 19807) failed with -1
(00.058480) Error (criu/cr-dump.c:2111): Dumping FAILED.
""",
        "criu-socket-passcred",
        {"pid": 19807},
    ),
    # The rest: criu 4.2.1
    "io_uring": (
        """pie: 2: Error (criu/pie/parasite.c:588): send_fds failed (-22)
(00.059702) Error (criu/parasite-syscall.c:280): Can't retrieve FDs from socket
(00.059707) Error (compel/src/lib/infect-rpc.c:44): Message reply from daemon is trimmed (12/0)
(00.059712) Error (criu/cr-dump.c:1545): Dump files (pid: 9827) failed with -1
(00.070259) Error (criu/cr-dump.c:1975): Dumping FAILED.
""",
        "file-io-uring",
        {"pid": 9827},
    ),
    "unix to outside": (
        """(00.069535) Error (criu/sk-unix.c:874): unix: External socket is used. Consider using --ext-unix-sk option.
(00.075427) Error (criu/cr-dump.c:1975): Dumping FAILED.
""",
        "network-unix-outside",
        {},
    ),
    "half of a stream": (
        """(00.469740) Error (criu/sk-unix.c:881): unix: Can't dump half of stream unix connection. name: (null); peer name: (null)
(00.518708) Error (criu/cr-dump.c:1975): Dumping FAILED.
""",
        "network-unix-outside",
        {},
    ),
    "ghost": (
        """(00.042662) Error (criu/files-reg.c:1031): Can't dump ghost file /tmp/job/g of 3145728 size, increase limit
(00.042676) Error (criu/cr-dump.c:1545): Dump files (pid: 9895) failed with -1
(00.057182) Error (criu/cr-dump.c:1975): Dumping FAILED.
""",
        "file-deleted-large",
        {"path": "/tmp/job/g", "pid": 9895, "flag": "--ghost-limit"},
    ),
    "link remap": (
        """(00.043803) Error (criu/files-reg.c:1122): Can't create link remap for /tmp/job/g. Use link-remap option.
(00.043823) Error (criu/cr-dump.c:1545): Dump files (pid: 9926) failed with -1
(00.055484) Error (criu/cr-dump.c:1975): Dumping FAILED.
""",
        "file-deleted-linked",
        {"path": "/tmp/job/g", "flag": "--link-remap"},
    ),
    "System V": (
        """(00.081551) Error (criu/cr-dump.c:478): Task 10008 with SysVIPC shmem map @7f8991531000 doesn't live in IPC ns
(00.081553) Error (criu/cr-dump.c:1621): Dump mappings (pid: 10008) failed with -1
(00.092957) Error (criu/cr-dump.c:1975): Dumping FAILED.
""",
        "process-system-v",
        {"pid": 10008},
    ),
    "locks": (
        """(00.053323) Error (criu/file-lock.c:110): Some file locks are hold by dumping tasks! You can try --file-locks to dump them.
(00.058602) Error (criu/cr-dump.c:1975): Dumping FAILED.
""",
        "file-locks",
        {"flag": "--file-locks"},
    ),
    "connected": (
        """(00.048932) Error (criu/sk-inet.c:200): inet: Connected TCP socket, consider using --tcp-established option.
(00.048945) Error (criu/cr-dump.c:1545): Dump files (pid: 10106) failed with -1
(00.064318) Error (criu/cr-dump.c:1975): Dumping FAILED.
""",
        "network-tcp-established",
        {"pid": 10106},
    ),
    "device": (
        """(00.042293) Error (criu/files-ext.c:94): Can't dump file 3 of that type [20600] (chr 10:229)
(00.042308) Error (criu/cr-dump.c:1545): Dump files (pid: 10132) failed with -1
(00.049065) Error (criu/cr-dump.c:1975): Dumping FAILED.
""",
        "file-device",
        {"pid": 10132, "fd": 3},
    ),
    "anonymous": (
        """(00.047644) Error (criu/files-ext.c:94): Can't dump file 3 of that type [600] (anon anon_inode:[userfaultfd])
(00.047657) Error (criu/cr-dump.c:1545): Dump files (pid: 10391) failed with -1
(00.065103) Error (criu/cr-dump.c:1975): Dumping FAILED.
""",
        "file-kernel-object",
        {"pid": 10391, "fd": 3},
    ),
    "tun": (
        """(00.045628) Error (criu/tun.c:306): tun: Net namespace is required to dump tun link
(00.045642) Error (criu/cr-dump.c:1545): Dump files (pid: 10170) failed with -1
(00.075701) Error (criu/cr-dump.c:1975): Dumping FAILED.
""",
        "file-tun-device",
        {"pid": 10170},
    ),
    "vsock": (
        """(00.046205) Error (criu/sockets.c:767): sockets: BUG! Unknown socket collected (family 40)
(00.046219) Error (criu/cr-dump.c:1545): Dump files (pid: 10365) failed with -1
(00.059564) Error (criu/cr-dump.c:1975): Dumping FAILED.
""",
        "network-family",
        {"pid": 10365},
    ),
    "session": (
        """(00.061429) Error (criu/cr-dump.c:1528): A session leader of 10470(1) is outside of its pid namespace
(00.068244) Error (criu/cr-dump.c:1975): Dumping FAILED.
""",
        "process-session-outside",
        {"pid": 10470},
    ),
    "not a leader": (
        """(00.300219) Error (criu/pstree.c:304): The root process 2 is not a session leader. Consider using --shell-job option
(00.329473) Error (criu/cr-dump.c:1975): Dumping FAILED.
""",
        "process-session-outside",
        {"pid": 2, "flag": "--shell-job"},
    ),
    "terminal": (
        """(00.273414) Error (criu/tty.c:410): tty: Found slave peer index 0 without correspond master peer
(00.306190) Error (criu/cr-dump.c:1975): Dumping FAILED.
""",
        "file-tty-outside",
        {},
    ),
    "gone": (
        """(00.065029) Warn  (criu/seize.c:63): Failed to open /proc/999999/comm: No such file or directory
(00.065472) Warn  (compel/src/lib/infect.c:132): Unable to interrupt task: 999999 (No such process)
Error: Could not process rule: No such file or directory
(00.088505) Error (compel/src/lib/infect.c:417): Unable to detach from 999999: No such process
(00.088515) Error (criu/cr-dump.c:1975): Dumping FAILED.
""",
        "process-gone",
        {"pid": 999999},
    ),
    "traced": (
        """(00.047530) Warn  (compel/src/lib/infect.c:132): Unable to interrupt task: 15117 (Operation not permitted)
(00.047555) Error (compel/src/lib/infect.c:262): Unseizable non-zombie 15117 found, state S, err -1/10
(00.047564) Warn  (compel/src/lib/infect.c:132): Unable to interrupt task: 15117 (Operation not permitted)
(00.047578) Error (compel/src/lib/infect.c:262): Unseizable non-zombie 15117 found, state S, err -1/10
Error: Could not process rule: No such file or directory
(00.084530) Error (criu/cr-dump.c:1975): Dumping FAILED.
""",
        "process-traced",
        {"pid": 15117},
    ),
    "stopped in its own code": (
        """Error (criu/parasite-syscall.c:87): si_code=4 si_pid=27021 si_status=19
Error (criu/parasite-syscall.c:94): 27021 was stopped by 19 unexpectedly
pie: 13343: Trimmed message received (12/0)
""",
        "process-stopped-meanwhile",
        {"pid": 27021},
    ),
    "stopped while it was prepared": (
        """Error (compel/src/lib/infect.c:608): Unexpected 21361 task interruption, aborting
Error (compel/src/lib/infect.c:972): remote_mprotect failed
Error (criu/cr-dump.c:1480): Can't infect (pid: 21361) with parasite
Error (criu/cr-dump.c:1975): Dumping FAILED.
""",
        "process-stopped-meanwhile",
        {"pid": 21361},
    ),
    "stopped and told late": (
        """Error (criu/parasite-syscall.c:87): si_code=5 si_pid=5951 si_status=0
pie: 20000: Sent only -32 bytes while 12 expected
""",
        "process-stopped-meanwhile",
        {"pid": 5951},
    ),
    "let go on in its own code": (
        """Error (criu/util.c:1534): rlimit: Can't setup RLIMIT_NOFILE for self: Operation not permitted
Error (criu/parasite-syscall.c:87): si_code=6 si_pid=3165 si_status=18
Error (criu/parasite-syscall.c:94): 3165 was stopped by 5 unexpectedly
pie: 20000: Error (criu/pie/parasite.c:92): Can't splice pages to pipe (-32/4/7)
pie: 20000: Sent only -32 bytes while 12 expected
""",
        "process-stopped-meanwhile",
        {"pid": 3165},
    ),
    "frozen": (
        """(02.040947) Error (criu/cr-dump.c:1655): Timeout reached. Try to interrupt: 0
(02.041159) Error (compel/src/lib/infect.c:262): Unseizable non-zombie 27509 found, state D, err -1/4
Error: Could not process rule: No such file or directory
(02.108676) Error (criu/cr-dump.c:1975): Dumping FAILED.
""",
        "process-uninterruptible",
        {"pid": 27509},
    ),
    "out of time": (
        """(02.040947) Error (criu/cr-dump.c:1655): Timeout reached. Try to interrupt: 0
(02.108676) Error (criu/cr-dump.c:1975): Dumping FAILED.
""",
        "criu-timeout",
        {},
    ),
    "mount": (
        """(00.521969) Error (criu/files-reg.c:1790): Can't lookup mount=15 for fd=3 path=/secretmem (deleted)
(00.521978) Error (criu/cr-dump.c:1545): Dump files (pid: 28158) failed with -1
(00.571159) Error (criu/cr-dump.c:1975): Dumping FAILED.
""",
        "file-mount-unknown",
        {"fd": 3, "pid": 28158},
    ),
    "disk full": (
        """(00.301668) Error (criu/page-xfer.c:263): page-xfer: Unable to spice data: No space left on device
(00.301680) Error (criu/bfd.c:131): bfd: Error flushing image: No space left on device
(00.301731) Error (criu/mem.c:718): Can't dump page with parasite
(00.333059) Error (criu/cr-dump.c:1975): Dumping FAILED.
""",
        "host-disk-full",
        {},
    ),
    "network lock": (
        """(00.046504) Error (criu/util.c:657): exited, status=127
(00.046519) Error (criu/netfilter.c:105): Iptables configuration failed
(00.046521) Error (criu/sk-tcp.c:81): tcp: Failed to lock TCP connection 6b57e
(00.046551) Error (criu/cr-dump.c:1545): Dump files (pid: 2597) failed with -1
(00.046908) Error (criu/cr-dump.c:1975): Dumping FAILED.
""",
        "network-no-lock",
        {"pid": 2597},
    ),
    "prlimit": (
        """(00.187497) Error (criu/cr-dump.c:389): Can't get rlimit 0: Operation not permitted
(00.187500) Error (criu/cr-dump.c:1584): Dump core (pid: 20036) failed with -1
(00.212251) Error (criu/cr-dump.c:1975): Dumping FAILED.
""",
        "host-prlimit",
        {"pid": 20036},
    ),
    "script": (
        """(00.034791) Error (criu/util.c:657): exited, status=3
(00.034812) Error (criu/action-scripts.c:94): Script /run/job/act.sh exited with -1
(00.034843) Error (criu/action-scripts.c:156): One of more action scripts failed
(00.034845) Error (criu/cr-dump.c:2011): Pre dump script failed with -1!
Error: Could not process rule: No such file or directory
(00.097376) Error (compel/src/lib/infect.c:417): Unable to detach from 28078: No such process
(00.097397) Error (criu/cr-dump.c:1975): Dumping FAILED.
""",
        "criu-script",
        {"path": "/run/job/act.sh"},
    ),
    "option": (
        "/usr/sbin/criu: unrecognized option '--nonsense'\n\nUsage:\n  criu dump|pre-dump -t PID [<options>]\n",
        "criu-option",
        {},
    ),
}

RESTORES: dict[str, tuple[str, str, dict[str, object]]] = {
    "port": (
        """(00.031408)      2: Error (criu/sk-inet.c:1059): inet: Can't bind inet socket (id 16): Address already in use
(00.031417)      2: Error (criu/files.c:1221): Unable to open fd=3 id=0x10
(00.032304) Error (criu/cr-restore.c:2331): Restoring FAILED.
""",
        "restore-port-taken",
        {"pid": 2},
    ),
    "missing": (
        """(00.031477)      2: Error (criu/files-reg.c:2353): Can't open file tmp/job/f on restore: No such file or directory
(00.031480)      2: Error (criu/files-reg.c:2267): Can't open file tmp/job/f: No such file or directory
(00.031482)      2: Error (criu/files.c:1221): Unable to open fd=3 id=0x10
(00.032397) Error (criu/cr-restore.c:2331): Restoring FAILED.
""",
        "restore-file-missing",
        {"path": "/tmp/job/f"},
    ),
    "working directory": (
        """(00.028825)      2: Error (criu/files-reg.c:2353): Can't open file tmp/job/cw on restore: No such file or directory
(00.028828)      2: Error (criu/files-reg.c:2267): Can't open file tmp/job/cw: No such file or directory
(00.028829)      2: Error (criu/files.c:1399): Can't open cwd
(00.029767)      1: Error (criu/cr-restore.c:1265): 2 exited, status=1
(00.030092) Error (criu/cr-restore.c:2331): Restoring FAILED.
""",
        "restore-file-missing",
        {"path": "/tmp/job/cw"},
    ),
    "a folder": (
        """(00.031200)      2: Error (criu/files-reg.c:2353): Can't open file tmp/job/f on restore: Is a directory
(00.031202)      2: Error (criu/files-reg.c:2267): Can't open file tmp/job/f: Is a directory
(00.032090) Error (criu/cr-restore.c:2331): Restoring FAILED.
""",
        "restore-file-unusable",
        {"path": "/tmp/job/f"},
    ),
    "size, with the loudest line of another task after it": (
        """(00.031028)      2: Error (criu/files-reg.c:2175): File tmp/job/f has bad size 6 (expect 3)
(00.031034)      2: Error (criu/files.c:1221): Unable to open fd=3 id=0x10
(00.031992) Error (criu/cr-restore.c:2331): Restoring FAILED.
""",
        "restore-file-changed",
        {"path": "/tmp/job/f", "pid": 2},
    ),
    "mode": (
        """(00.027480)      2: Error (criu/files-reg.c:2294): File tmp/job/f has bad mode 0100400 (expect 0100644)
(00.027484)      2: Error (criu/files.c:1221): Unable to open fd=3 id=0x10
(00.028397) Error (criu/cr-restore.c:2331): Restoring FAILED.
""",
        "restore-file-changed",
        {"path": "/tmp/job/f"},
    ),
    "library of another size": (
        """(00.033281)      2: Error (criu/files-reg.c:2175): File opt/lib/lz.so has bad size 126280 (expect 121280)
(00.033285)      2: Error (criu/mem.c:1467): `- Can't open vma
(00.034260)      1: Error (criu/cr-restore.c:1265): 2 exited, status=1
(00.034604) Error (criu/cr-restore.c:2331): Restoring FAILED.
""",
        "restore-file-changed",
        {"path": "/opt/lib/lz.so"},
    ),
    "another build": (
        """(00.025204)      2: Error (criu/files-reg.c:2153): File opt/lib/lz2.so has bad build-ID
(00.025208)      2: Error (criu/mem.c:1467): `- Can't open vma
(00.026126)      1: Error (criu/cr-restore.c:1265): 2 exited, status=1
(00.026668) Error (criu/cr-restore.c:2331): Restoring FAILED.
""",
        "restore-file-changed",
        {"path": "/opt/lib/lz2.so"},
    ),
    "image missing": (
        """(00.025024) Error (criu/cr-restore.c:1281): 12770 stopped by signal 11: Segmentation fault
(00.025780) Error (criu/cr-restore.c:2331): Restoring FAILED.
""",
        "restore-crashed",
        {"pid": 12770},
    ),
    "image of another kind": (
        """(00.024325)      1: Error (criu/image.c:554): Head magic doesn't match for mm-1.img
(00.024724) Error (criu/cr-restore.c:2331): Restoring FAILED.
""",
        "restore-image-damaged",
        {},
    ),
    "image cut off": (
        "(00.027299) Error (criu/protobuf.c:93): Read 12 bytes while 78 expected from /run/images/inventory.img: Operation not permitted\n",
        "restore-image-damaged",
        {},
    ),
    "image flipped": (
        """(00.022596)      1: Error (criu/protobuf.c:101): Failed unpacking object 0x7ffcebc7ef60 from /run/images/core-2.img
(00.023085) Error (criu/cr-restore.c:2331): Restoring FAILED.
""",
        "restore-image-damaged",
        {},
    ),
    "inventory missing": (
        "(00.037953) Error (criu/protobuf.c:72): Unexpected EOF on (empty-image)\n",
        "restore-image-damaged",
        {},
    ),
    "socket's place": (
        """(00.058048)      2: Error (criu/sk-unix.c:1651): unix: Can't bind id 0xf ino 582959 addr /run/job/sk: Address already in use
(00.058057)      2: Error (criu/files.c:1221): Unable to open fd=3 id=0xf
(00.059066)      1: Error (criu/cr-restore.c:1265): 2 exited, status=1
(00.059921) Error (criu/cr-restore.c:2331): Restoring FAILED.
""",
        "restore-socket-taken",
        {"path": "/run/job/sk"},
    ),
    "PID": (
        """(00.057502) Error (criu/cr-restore.c:1237): Can't fork for 14834: File exists
(00.057527) Error (criu/cr-restore.c:2331): Restoring FAILED.
""",
        "restore-pid-taken",
        {"pid": 14834},
    ),
    "images folder": (
        """Error (criu/image.c:726): Can't open dir /nonexistent: No such file or directory
Error (criu/crtools.c:259): Couldn't open image dir /nonexistent
""",
        "restore-image-missing",
        {"path": "/nonexistent"},
    ),
}


@pytest.mark.parametrize(
    ("action", "text", "code", "fields"),
    [("dump", *case) for case in CASES.values()] + [("restore", *case) for case in RESTORES.values()],
    ids=[*CASES, *RESTORES],
)
def test_the_causal_line_is_found_behind_a_harmless_one(action, text, code, fields):
    found = log.explain(NOFILE + text, action=action, returncode=1)
    assert found.code == code
    assert {name: getattr(found, name) for name in fields} == fields
    assert found.remedy
    assert found.message
    assert "?" not in found.message
    assert found.line in NOFILE + text
    assert "RLIMIT_NOFILE" not in found.line


def test_an_unknown_failure_shows_the_first_line_that_is_no_consequence():
    text = NOFILE + (
        "(00.10) Error (criu/new.c:1): flux: The capacitor is empty\n"
        "(00.11) Error (criu/cr-dump.c:1545): Dump files (pid: 77) failed with -1\n"
        "(00.12) Error (criu/cr-dump.c:1975): Dumping FAILED.\n"
    )
    found = log.explain(text, action="dump", returncode=1)
    assert (found.code, found.line, found.pid) == ("criu-unexplained", "flux: The capacitor is empty", 77)


def test_harmless_lines_alone_are_no_reason():
    text = NOFILE + 'Error (criu/util.c:642): execvp("iptables-save", ...) failed: No such file or directory\n'
    found = log.explain(text, action="dump", returncode=1)
    assert found.code == "criu-unexplained"
    assert found.line == ""


@pytest.mark.parametrize(
    ("options", "code"),
    [({"cancelled": True}, "criu-cancelled"), ({"timed_out": True}, "criu-timeout"), ({}, "criu-killed")],
)
def test_an_end_by_a_signal_says_whose_it_was(options, code):
    assert log.explain(NOFILE, action="restore", returncode=-9, **options).code == code


def test_text_of_the_workload_is_made_safe():
    text = "(00.1)  2: Error (criu/files-reg.c:2175): File tmp/\x1b[31m\u202ered has bad size 6 (expect 3)\n"
    found = log.explain(text, action="restore", returncode=1)
    assert (found.message + found.line + str(found.path)).isprintable()


@given(st.text(), st.sampled_from(["dump", "restore", "check"]), st.integers(-64, 255))
def test_any_text_has_an_explanation(text, action, returncode):
    found = log.explain(text, action=action, returncode=returncode)
    assert found.code
    assert found.message


@given(st.lists(st.sampled_from([line for text, _, _ in [*CASES.values(), *RESTORES.values()] for line in text.splitlines()])))
def test_lines_in_any_order_have_an_explanation(lines):
    assert log.explain("\n".join(lines), action="restore", returncode=1).message


def test_codes_are_stable_words():
    families = ("criu-", "process-", "file-", "network-", "host-", "memory-", "restore-")
    assert all(pattern.code.startswith(families) and pattern.code == pattern.code.lower() for pattern in patterns.KNOWN)
