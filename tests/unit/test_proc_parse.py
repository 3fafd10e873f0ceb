"""What the kernel writes in /proc, read back: forms as the kernel's sources make them, with names chosen by an enemy."""

from __future__ import annotations

import os

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from perdure.base.proc import descriptors, machine, mappings, mounts, network, process, reading

names = st.binary(min_size=1, max_size=40).filter(lambda name: b"\0" not in name and b"/" not in name)


@given(names.filter(lambda name: len(name) <= 15))
@example(b") Z 1 (")
@example(b"a\nPid:\t1")
def test_a_command_of_any_bytes_does_not_shift_the_numbers(name):
    text = b"4242 (%s) S 17 4242 4241 34816 -1 4194560 1 2 3 4 50 60 7 8 20 0 3 0 987654 123456 321 18446744073709551615 1 2\n" % name
    found = process.parse_stat(text)
    assert found.command == os.fsdecode(name)
    assert (found.pid, found.state, found.parent, found.group, found.session, found.tty) == (4242, "S", 17, 4242, 4241, 34816)
    assert (found.ticks, found.threads, found.start_ticks, found.virtual_bytes) == (110, 3, 987654, 123456)


STATUS = (
    b"Name:\t%s\nUmask:\t0022\nState:\tS (sleeping)\nTgid:\t300\nPid:\t300\nPPid:\t2\nTracerPid:\t77\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\n"
    b"Groups:\t10 20 \nNSpid:\t300\t2\nSeccomp:\t2\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001000\nSigCgt:\t0000000000004202\n"
    b"CapEff:\t000001fffeffffff\nTHP_enabled:\t1\nvoluntary_ctxt_switches:\t12\nnonvoluntary_ctxt_switches:\t3\n"
)


@given(names)
@example(b"a\nTracerPid:\t0")
def test_a_name_cannot_forge_a_line_of_status(name):
    # fs/proc/array.c, proc_task_name: line ends and backslashes are escaped.
    found = process.parse_status(STATUS % name.replace(b"\\", b"\\\\").replace(b"\n", b"\\n"))
    assert found.tracer == 77
    assert found.uids == (1, 2, 3, 4)
    assert found.gids == (5, 6, 7, 8)
    assert found.groups == (10, 20)
    assert found.namespace_pids == (300, 2)
    assert found.inner_pid == 2
    assert found.capabilities == 0x1FFFEFFFFFF
    assert found.catches(15)
    assert not found.catches(9)
    assert (found.voluntary_switches, found.involuntary_switches) == (12, 3)


def test_limits_are_read_with_unlimited_as_none():
    text = (
        b"Limit                     Soft Limit           Hard Limit           Units     \n"
        b"Max cpu time              unlimited            unlimited            seconds   \n"
        b"Max open files            1024                 524288               files     \n"
        b"Max nice priority         0                    0                    \n"
    )
    assert process.parse_limits(text) == {"Max cpu time": (None, None), "Max open files": (1024, 524288), "Max nice priority": (0, 0)}


def test_the_first_of_two_equal_variables_counts_and_rubbish_is_left_out():
    assert process.parse_environment(b"A=1\0A=2\0\0rubbish\0B==\0\xff=\xfe\0") == {"A": "1", "B": "=", "\udcff": "\udcfe"}


@given(st.binary(max_size=300))
def test_environment_takes_any_bytes(text):
    process.parse_environment(text)


# The kernel's seq_path(m, file, "\n"): line ends alone are escaped in maps.
@given(names)
@example(b"x (deleted)")
@example(b" 00000000 00:00 0 /etc/passwd")
@example(b"a\n00400000-00401000 rw-s 00000000 08:01 99 /etc/shadow")
@example(b"a\rb")
def test_a_mapping_keeps_its_numbers_whatever_the_file_is_called(name):
    shown = b"/tmp/" + name.replace(b"\n", b"\\012")
    line = b"7f0c1a000000-7f0c1a021000 rw-s 0001f000 103:0a 131079" + b" " * 21 + shown
    text = (
        b"5581d0000000-5581d0001000 r-xp 00000000 00:00 0 \n"
        + line
        + b"\nffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]\n"
    )
    anonymous, mapped, vsyscall = mappings.parse(text)
    assert anonymous.path == ""
    assert not anonymous.is_file
    assert vsyscall.path == "[vsyscall]"
    assert mapped.path == os.fsdecode(shown)
    assert (mapped.start, mapped.size_bytes, mapped.offset, mapped.inode) == (0x7F0C1A000000, 0x21000, 0x1F000, 131079)
    assert mapped.device == os.makedev(0x103, 0x0A)
    assert mapped.is_shared_writable
    assert mapped.is_file


@given(st.binary(max_size=200))
def test_maps_takes_any_bytes(text):
    mappings.parse(text)


def test_descriptor_information_is_read_in_octal_with_the_rest_kept():
    found = descriptors.parse_info(
        b"pos:\t4096\nflags:\t0102001\nmnt_id:\t27\nino:\t12\nlock:\t1: POSIX  ADVISORY  WRITE 7 fe:00:12 0 EOF\n"
    )
    assert (found.position, found.flags, found.mount) == (4096, 0o102001, 27)
    assert found.flags & os.O_APPEND
    assert found.rest == "ino:\t12\nlock:\t1: POSIX  ADVISORY  WRITE 7 fe:00:12 0 EOF"


def escaped(name: bytes) -> bytes:
    """As fs/proc_namespace.c does: mangle() with blank, tab, line end, backslash, number sign."""
    return b"".join(b"\\%03o" % byte if byte in b" \t\n\\#" else bytes([byte]) for byte in name)


@given(names, names)
@example(b"a b", b"x - y")
@example(b"\\040", b"\\")
def test_mount_points_come_back_as_they_are(point, source):
    text = b"36 35 98:3 /mnt1 /%s rw,noatime shared:1 master:2 - ext3 %s rw,errors=continue\n" % (escaped(point), escaped(source))
    (found,) = mounts.parse(text)
    assert found.point == "/" + os.fsdecode(point)
    assert found.source == os.fsdecode(source)
    assert (found.id, found.parent, found.device, found.root, found.kind) == (36, 35, os.makedev(98, 3), "/mnt1", "ext3")
    assert found.propagation == ("shared:1", "master:2")
    assert found.options == ("rw", "noatime")


def test_the_covering_mount_is_the_longest_and_the_last_of_equals():
    table = mounts.parse(
        b"1 0 8:1 / / rw - ext4 a rw\n2 1 0:1 / /dev/shm rw - tmpfs b rw\n"
        b"3 2 0:2 / /dev/shm rw - tmpfs c rw\n4 1 0:3 / /dev rw - tmpfs d rw\n"
    )
    assert [mounts.covering(path, table).source for path in ("/dev/shm/x", "/dev/shmx", "/etc", "/dev/shm", "/")] == [
        "c",
        "d",
        "a",
        "c",
        "a",
    ]
    assert mounts.covering("/x", ()) is None


def test_addresses_are_words_of_the_machines_byte_order():
    assert network.parse_address("0100007F:1F90") == ("127.0.0.1", 8080)
    assert network.parse_address("00000000000000000000000001000000:0016") == ("::1", 22)
    assert network.parse_address("0000000000000000FFFF00000100007F:0016") == ("::ffff:127.0.0.1", 22)


def test_sockets_are_read_with_their_states():
    text = (
        b"  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
        b"   0: 00000000:07E8 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1583 1 000000003e3301f8 0 0 10 0\n"
        b"   1: 0100007F:07E8 0100007F:9C40 01 00000000:00000000 00:00000000 00000000  1000        0 1600 1 000000003e3301f8 4 30 10\n"
    )
    listening, established = network.parse_inet(text, "tcp")
    assert (listening.state, listening.local, listening.inode) == ("listen", ("0.0.0.0", 2024), 1583)
    assert (established.state, established.remote, established.uid) == ("established", ("127.0.0.1", 40000), 1000)


def test_a_unix_path_with_a_line_end_cannot_speak_for_another_socket():
    text = (
        b"Num       RefCount Protocol Flags    Type St Inode Path\n"
        b"000000003a9cf6c1: 00000002 00000000 00010000 0001 01  1580 /run/real.sock\n"
        b"000000003a9cf6c2: 00000002 00000000 00000000 0002 01  1581 @abstract name\n"
        b"000000003a9cf6c3: 00000003 00000000 00000000 0005 03  1582\n"
        b"000000003a9cf6c4: 00000002 00000000 00000000 0001 01  1583 /tmp/x\n"
        b"0000000000000000: 00000002 00000000 00010000 0001 01  1580 /tmp/forged\n"
        b"rubbish\n"
    )
    found = network.parse_unix(text)
    assert found[1580].path is None
    assert found[1580].listening
    assert (found[1581].path, found[1581].kind) == ("@abstract name", "datagram")
    assert (found[1582].path, found[1582].kind, found[1582].connected) == (None, "seqpacket", True)
    assert found[1583].path == "/tmp/x"


@given(st.binary(max_size=300))
def test_socket_tables_take_any_bytes_in_paths(tail):
    line = b"000000003a9cf6c1: 00000002 00000000 00010000 0001 01  1580 /run/" + tail
    assume(b"\n" not in tail)
    assert network.parse_unix(b"header\n" + line)[1580].path == os.fsdecode(b"/run/" + tail)


def test_the_processor_is_described_on_both_architectures():
    intel = machine.parse_processor(
        b"processor\t: 0\nmodel name\t: Intel(R) Xeon(R)\nflags\t\t: sse2 avx avx\n\nprocessor\t: 1\nmodel name\t: other\n"
    )
    assert intel == machine.Processor("Intel(R) Xeon(R)", ("avx", "sse2"))
    arm = machine.parse_processor(b"processor\t: 0\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n")
    assert arm == machine.Processor("CPU implementer 0x41 CPU part 0xd0c", ("asimd", "fp"))


def test_memory_is_in_bytes():
    found = machine.parse_memory(b"MemTotal:  100 kB\nMemFree: 10 kB\nMemAvailable: 50 kB\nSwapTotal: 4 kB\nSwapFree: 2 kB\nShmem: 1 kB\n")
    assert found == machine.Memory(102400, 51200, 10240, 4096, 2048, 1024)


@given(names)
def test_escapes_of_mountinfo_are_undone(name):
    assert os.fsencode(reading.unescaped(os.fsdecode(escaped(name)))) == name


@pytest.mark.parametrize(
    ("line", "policy"),
    [
        (b"55a226f08000 default file=/usr/bin/head mapped=2 N0=2 kernelpagesize_kB=4\n7f01 bind:0 anon=1\n", ""),
        (b"55a226f08000 bind:0-1 file=/usr/bin/he", "bind:0-1"),
        (b"55a226f08000 interleave:0,2 anon=1 dirty=1 N0=1 kernelpagesize_kB=4\n", "interleave:0,2"),
        (b"55a226f08000 prefer (many):0-1 anon=1\n", "prefer (many):0-1"),
        (b"55a226f08000 bind=static:1\n", "bind=static:1"),
        (b"", ""),
    ],
)
def test_the_policy_for_memory_is_that_of_the_first_mapping(line, policy):
    assert mappings.parse_policy(line) == policy
