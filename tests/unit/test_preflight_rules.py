"""The rules of preflight on scenes that this machine does not have: GPUs, RDMA, network file systems, other kernels."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import msgspec
import pytest

from perdure.base.proc import network, process
from perdure.base.proc.descriptors import Descriptor, Info
from perdure.base.proc.mappings import Mapping, parse_usage
from perdure.base.proc.mounts import Mount
from perdure.checkpoint.criu.patterns import KNOWN
from perdure.checkpoint.preflight import codes, devices, files, memory, opened, processes, save, sockets
from perdure.checkpoint.preflight.links import Holder
from perdure.checkpoint.preflight.plan import Plan
from perdure.checkpoint.preflight.scene import Deleted, Member, Scene
from perdure.checkpoint.preflight.watches import Watch
from perdure.model.checkpoint import Owner
from perdure.model.finding import Severity

ROOT = Path(__file__).resolve().parents[2]
STAT = process.parse_stat(b"7 (train) S 1 7 7 0 0 0 0 0 0 0 1 1 0 0 20 0 1 0 5 0 0")
STATUS = process.parse_status(
    b"Pid:\t7\nNSpid:\t7\t1\nTracerPid:\t0\nUid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\nCapEff:\tffffffffffffffff\n"
    b"SigCgt:\t0\nSigIgn:\t0\nSigBlk:\t0\nvoluntary_ctxt_switches:\t1\nnonvoluntary_ctxt_switches:\t1\n"
)
HERE = {"pid": 1, "mnt": 1, "net": 1, "user": 1, "ipc": 1}
INSIDE = {**HERE, "pid": 2, "ipc": 2}
DISK = Mount(id=30, parent=1, device=1, root="/", point="/", options=(), propagation=(), kind="ext4", source="/dev/sda", super_options=())


def descriptor(
    number: int, target: str, mode: int = stat.S_IFREG | 0o644, *, flags: int = os.O_RDWR, mount: int = 30, **other
) -> Descriptor:
    """An open descriptor."""
    values = {"deleted": False, "device": 1, "inode": 100 + number, "links": 1, "size_bytes": 0, **other}
    return Descriptor(number=number, target=target, mode=mode, info=Info(0, flags, mount, values.pop("rest", "")), **values)


def mapping(path: str, *, start: int = 0x1000, inode: int = 5, permissions: str = "rw-s") -> Mapping:
    """A mapping of one page."""
    return Mapping(start=start, end=start + 4096, permissions=permissions, offset=0, device=1, inode=inode, path=path, deleted=False)


def member(*descriptors: Descriptor, **other) -> Member:
    """A process with `descriptors`."""
    values = {"stat": STAT, "status": STATUS, "namespaces": INSIDE, "usage": parse_usage(b""), **other}
    return Member(pid=7, descriptors=descriptors, **values)


def scene(one: Member, **other) -> Scene:
    """A tree of one process."""
    return Scene(root=7, members=(one,), own_namespaces=HERE, **{"mounts": (DISK,), **other})


def names(findings) -> list[str]:
    """The codes of findings."""
    return [finding.code for finding in findings]


def test_nothing_is_found_in_a_plain_process():
    assert names(save.rules(scene(member(descriptor(0, "/dev/null", stat.S_IFCHR), device_numbers={0: os.makedev(1, 3)})), Plan())) == []


@pytest.mark.parametrize(
    ("path", "number", "expected"),
    [
        ("/dev/nvidia0", (195, 0), None),  # judged with the rest of the GPU's state
        ("/dev/nvidia-uvm", (511, 0), None),
        ("/dev/dri/renderD128", (226, 128), "file-gpu-device"),
        ("/dev/kfd", (234, 0), "file-gpu-device"),
        ("/dev/infiniband/uverbs0", (231, 192), "file-rdma-device"),
        ("/dev/kvm", (10, 232), "file-device"),
        ("/dev/net/tun", (10, 200), "file-tun-device"),
        ("/dev/random", (1, 8), None),
        ("/dev/ttyS0", (4, 64), None),
        ("/dev/autofs", (10, 235), None),
    ],
)
def test_devices_are_told_apart(path, number, expected):
    found = list(opened.check(scene(member(descriptor(9, path, stat.S_IFCHR), device_numbers={9: os.makedev(*number)}))))
    assert names(found) == ([expected] if expected else [])
    for finding in found:
        assert (finding.pid, finding.fd, finding.path) == (7, 9, path)
        assert f"{number[0]}:{number[1]}" in finding.message


def test_a_mapped_gpu_is_found_once():
    pages = tuple(mapping("/dev/dri/renderD128", start=0x1000 * number) for number in range(1, 4))
    seen = scene(member(mappings=pages, mapped_devices=frozenset(page.start for page in pages)))
    assert names(memory.check(seen)) == ["file-gpu-device"]


def test_a_session_that_began_outside_the_namespace_is_named():
    # Entered from outside: the leader has no number here. CRIU refuses it, also where it would bring another session along.
    entered = member(stat=msgspec.structs.replace(STAT, session=0))
    for own_session in (True, False):
        assert names(save.rules(scene(entered), Plan(own_session=own_session))) == ["process-session-outside"]


def test_terminals_are_numbered_beyond_256():
    assert devices.terminal_index(os.makedev(136, 5)) == 5
    assert devices.terminal_index(os.makedev(137, 5)) == 261
    assert devices.terminal_index(os.makedev(5, 2)) is None


def test_a_network_file_system_is_named_once():
    home = Mount(
        id=31, parent=30, device=2, root="/", point="/home", options=(), propagation=(), kind="nfs4", source="s:/h", super_options=()
    )
    one = member(
        descriptor(3, "/home/a", mount=31, flags=os.O_RDONLY),
        descriptor(4, "/home/b", mount=31, flags=os.O_RDONLY),
        mappings=(mapping("/home/lib"),),
    )
    (finding,) = files.check(scene(one, mounts=(DISK, home)), Plan())
    assert (finding.code, finding.subject) == ("file-remote", "/home")
    assert "s:/h" in finding.message


@pytest.mark.parametrize(
    ("rows", "hidden"),
    [
        ([(1, 0, "/"), (2, 1, "/a")], False),
        ([(1, 0, "/"), (2, 1, "/a"), (3, 2, "/a")], True),
        ([(1, 0, "/"), (2, 1, "/a/b"), (3, 1, "/a")], True),
        ([(1, 0, "/"), (2, 1, "/a"), (3, 2, "/a/b")], False),
        ([(1, 0, "/"), (4, 1, "/a"), (2, 4, "/a/b"), (5, 4, "/a")], True),
        ([(1, 0, "/"), (4, 1, "/a"), (2, 4, "/a"), (5, 1, "/ab")], False),
    ],
)
def test_hidden_mounts(rows, hidden):
    mounts = tuple(
        Mount(
            id=number, parent=parent, device=1, root="/", point=point, options=(), propagation=(), kind="tmpfs", source="", super_options=()
        )
        for number, parent, point in rows
    )
    assert files.is_hidden(next(mount for mount in mounts if mount.id == 2), mounts) is hidden


def test_a_circle_of_mounts_ends():
    one, two = (
        Mount(id=a, parent=b, device=1, root="/", point=f"/{a}", options=(), propagation=(), kind="tmpfs", source="", super_options=())
        for a, b in ((1, 2), (2, 1))
    )
    assert files.is_hidden(one, (one, two)) is False


def test_large_files_that_are_written_in_place_are_named_unless_they_go_along():
    one = member(
        descriptor(3, "/data/base", size_bytes=1 << 30),
        descriptor(4, "/data/small", size_bytes=1 << 20),
        descriptor(5, "/data/log", size_bytes=1 << 30, flags=os.O_WRONLY | os.O_APPEND),
    )
    (finding,) = files.check(scene(one), Plan())
    assert (finding.code, finding.path) == ("file-overwrite-unsaved", "/data/base")
    assert names(files.check(scene(one), Plan(outputs=("/data",)))) == []


def test_a_large_file_that_is_only_mapped_is_named_too_and_what_it_takes_on_the_disk_counts():
    large = 1 << 30
    one = member(
        descriptor(3, "/data/sparse", size_bytes=large),
        descriptor(4, "/data/both", size_bytes=large, inode=7),
        descriptor(5, "/dev/shm/segment", size_bytes=large),
        mappings=(
            mapping("/data/array", start=0x1000, inode=6),
            mapping("/data/both", start=0x2000, inode=8),  # as btrfs and overlay number it
            mapping("/data/read", start=0x3000, inode=9, permissions="r--s"),
            mapping("/data/private", start=0x4000, inode=10, permissions="rw-p"),
            mapping("/dev/nvidia0", start=0x5000, inode=11),
            mapping("/tmp/carried", start=0x6000, inode=12),
        ),
        mapped_devices=frozenset({0x5000}),
    )
    weights = {(1, 103): 4096, **dict.fromkeys([(1, inode) for inode in range(6, 13)], large)}
    found = tuple(files.check(scene(one, allocated=weights), Plan()))
    assert [(each.code, each.path, each.fd) for each in found] == [
        ("file-overwrite-unsaved", "/data/both", 4),
        ("file-overwrite-unsaved", "/data/array", None),
    ]
    assert names(files.check(scene(one, allocated=weights), Plan(outputs=("/data",)))) == []


def test_a_file_that_kept_another_name_is_named_on_a_disk_alone():
    shared = Mount(
        id=31, parent=30, device=2, root="/", point="/dev/shm", options=(), propagation=(), kind="tmpfs", source="", super_options=()
    )
    one = member(
        descriptor(3, "/data/old", deleted=True, inode=5),
        mappings=(msgspec.structs.replace(mapping("/dev/shm/sem.x", inode=6), deleted=True, device=2),),
    )
    found = {(1, 5): Deleted(4096, 2), (2, 6): Deleted(4096, 1)}
    (finding,) = files.check(scene(one, mounts=(DISK, shared), deleted=found), Plan())
    assert (finding.code, finding.fd) == ("file-deleted-linked", 3)
    assert "2 other names" in finding.message


def test_a_unix_peer_is_named_with_path_and_holder():
    inet = {5: network.Unix(5, "stream", False, True, None), 9: network.Unix(9, "stream", False, True, "/run/bus")}
    one = member(descriptor(3, "socket:[5]", stat.S_IFSOCK, inode=5), protocols={3: "UNIX-STREAM"})
    there = scene(one, unix=inet, unix_peers={5: 9}, outside={"socket:[9]": (Holder(42, 8, True, True),)})
    (finding,) = sockets.check(there, Plan())
    assert (finding.code, finding.flag) == ("network-unix-outside", "/run/bus")
    assert "process 42" in finding.message
    assert names(sockets.check(there, Plan(external=frozenset({"unix[5]"})))) == []


def test_a_connection_to_accept_is_named():
    table = (
        network.Inet("tcp", ("0.0.0.0", 80), ("0.0.0.0", 0), "listen", 0, 5),
        network.Inet("tcp", ("10.0.0.1", 80), ("10.0.0.2", 999), "established", 0, 0),
        network.Inet("tcp", ("10.0.0.1", 81), ("10.0.0.2", 999), "established", 0, 0),
    )
    one = member(descriptor(3, "socket:[5]", stat.S_IFSOCK, inode=5), protocols={3: "TCP"})
    (finding,) = sockets.check(scene(one, inet=table), Plan())
    assert finding.code == "network-tcp-waiting"
    assert "10.0.0.2:999" in finding.message


OWNER = Owner(uid=1000, gid=1001, groups=(1001, 1002))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, None),
        ({"groups": (1002,)}, None),
        ({"uids": (1000, 1000, 0, 1000)}, "user 0"),
        ({"uids": (1000, 1000, 1000, 1003)}, "user 1003"),
        ({"gids": (1001, 0, 1001, 1001)}, "group 0"),
        ({"groups": (1001, 4)}, "group 4"),
        ({"capabilities": 1 << 13}, "capabilities"),
    ],
)
def test_a_process_with_other_rights_than_the_owner_is_named(changes, told):
    status = msgspec.structs.replace(STATUS, uids=(1000,) * 4, gids=(1001,) * 4, groups=(1001, 1002), capabilities=0)
    one = msgspec.structs.replace(member(), pid=8, status=msgspec.structs.replace(status, **changes))
    tree = msgspec.structs.replace(scene(member()), members=(member(), one))
    found = [each for each in processes.check(tree, Plan(owner=OWNER)) if each.code == "process-other-user"]
    assert [each.pid for each in found] == ([8] if told else [])
    assert all(told in each.message for each in found)
    assert "process-other-user" not in names(processes.check(tree, Plan()))


def test_a_watch_says_where_its_file_lies():
    one = member(descriptor(3, "anon_inode:inotify", 0o600))
    (finding,) = files.check(scene(one, unreachable_watches=((7, 3, Watch(77, "overlay", "/")),)), Plan())
    assert (finding.code, finding.fd) == ("file-watch", 3)
    assert "overlay" in finding.message


def test_names_that_are_no_text_become_json():
    finding = codes.finding("file-device", "pid 7 (\udcff)", "x", path="/tmp/\udcfe")
    assert "\\xff" in finding.subject
    assert msgspec.json.decode(msgspec.json.encode(finding))["path"] == "/tmp/\0fe"


@pytest.mark.parametrize(
    ("command", "expected"), [("srun", ["process-scheduler-client"]), ("salloc", ["process-scheduler-client"]), ("srunner", [])]
)
def test_slurms_commands_that_wait_for_a_step_are_no_part_of_a_workload(command, expected):
    one = member(stat=msgspec.structs.replace(STAT, command=command))
    assert [name for name in names(processes.check(scene(one), Plan())) if name.startswith("process-scheduler")] == expected


class TestCodes:
    """The one list of codes."""

    def test_each_belongs_to_a_family_and_says_what_to_do(self):
        for code in codes.CODES.values():
            assert re.fullmatch(r"(host|criu|process|file|network|memory|gpu|restore|store)(-[a-z0-9]+)+", code.name)
            assert code.remedy or code.severity is not Severity.PROBLEM, code.name
            assert not code.meaning.endswith(".")
        assert sum(len(group.codes) for group in codes.GROUPS) == len(codes.CODES)

    def test_each_is_used(self):
        rooms = [ROOT / "src/perdure" / room for room in ("checkpoint", "checkpoint/preflight", "supervisor")]
        text = "".join(path.read_text() for room in rooms for path in room.glob("*.py"))
        assert [name for name in codes.CODES if f'"{name}"' not in text] == []

    def test_those_that_criu_is_explained_by_too_mean_a_problem(self):
        for pattern in KNOWN:
            if pattern.code in codes.CODES and not pattern.code.startswith("restore-"):
                assert codes.CODES[pattern.code].severity is Severity.PROBLEM or pattern.code == "file-deleted-linked", pattern.code

    def test_those_that_pass_are_known(self):
        assert codes.CODES.keys() >= save.PASSING
