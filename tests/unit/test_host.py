"""What a machine's facts mean to a person. Pure: the facts are given."""

from __future__ import annotations

import msgspec
import pytest

from perdure.base import privileges
from perdure.checkpoint.host import facts, rules
from perdure.model.finding import Severity

FIT = facts.Machine(
    root=True,
    missing_capabilities=(),
    kernel="6.12.1",
    architecture="x86_64",
    checkpoint_restore=True,
    namespaces=("ipc", "mnt", "net", "pid", "user", "uts"),
    isolates=True,
    isolates_network=True,
    own_proc="yes",
    missing_programs=(),
    soft_dirty=True,
    userfaultfd=True,
    io_uring="no",
    ptrace_scope=1,
    seccomp=0,
    apparmor="",
    container="",
    memory_available=64 << 30,
    memory_limit=None,
    shm_free=32 << 30,
    state="/var/lib/perdure",
    state_writable=True,
    state_free=100 << 30,
    locks=(),
)


def test_a_fit_machine_has_nothing_but_facts():
    assert {finding.severity for finding in rules.judge(FIT)} == {Severity.INFO}


@pytest.mark.parametrize(
    ("change", "code", "severity"),
    [
        ({"root": False, "isolates": None, "isolates_network": None, "own_proc": ""}, "host-privileges", Severity.PROBLEM),
        ({"missing_capabilities": ("CAP_SYS_ADMIN",)}, "host-privileges", Severity.PROBLEM),
        ({"missing_capabilities": ("CAP_NET_ADMIN",)}, "host-no-net-admin", Severity.WARNING),
        ({"missing_capabilities": ("CAP_SYS_RESOURCE",)}, "host-no-sys-resource", Severity.INFO),
        ({"checkpoint_restore": False}, "host-no-checkpoint-restore", Severity.PROBLEM),
        ({"missing_programs": ("unshare",)}, "host-no-util-linux", Severity.PROBLEM),
        ({"soft_dirty": False}, "host-no-soft-dirty", Severity.INFO),
        ({"userfaultfd": False}, "host-no-userfaultfd", Severity.INFO),
        ({"io_uring": "yes"}, "host-io-uring", Severity.INFO),
        ({"namespaces": ("ipc", "mnt", "net")}, "host-no-namespace", Severity.PROBLEM),
        ({"namespaces": ("ipc", "mnt", "pid")}, "host-no-namespace", Severity.WARNING),
        ({"isolates": False, "isolates_network": False}, "host-no-isolation", Severity.PROBLEM),
        ({"isolates_network": False}, "host-no-network-isolation", Severity.WARNING),
        ({"own_proc": "forbidden"}, "host-no-own-proc", Severity.WARNING),
        ({"own_proc": "failed"}, "host-no-isolation", Severity.PROBLEM),
        ({"ptrace_scope": 3}, "host-ptrace-forbidden", Severity.PROBLEM),
        ({"container": "Docker"}, "host-container", Severity.INFO),
        ({"seccomp": 2}, "host-seccomp", Severity.WARNING),
        ({"apparmor": "docker-default (enforce)"}, "host-apparmor", Severity.WARNING),
        ({"shm_free": None}, "memory-no-shm", Severity.WARNING),
        ({"shm_free": 64 << 20}, "memory-shm-small", Severity.WARNING),
        ({"state_writable": False}, "host-state-unwritable", Severity.PROBLEM),
        ({"state_free": 10 << 20}, "host-state-small", Severity.WARNING),
        ({"locks": ("CRIU-1234",)}, "network-held", Severity.WARNING),
    ],
)
def test_each_lack_is_named_with_what_helps(change, code, severity):
    findings = rules.judge(msgspec.structs.replace(FIT, **change))
    found = [finding for finding in findings if finding.code == code]
    assert [finding.severity for finding in found] == [severity]
    if severity is not Severity.INFO:
        assert found[0].remedy
    others = [finding for finding in findings if finding.code != code and finding.severity is not Severity.INFO]
    assert others == []


def test_this_machine_can_be_looked_at(tmp_path):
    found = facts.look(tmp_path / "not" / "yet")
    assert found.state_writable
    assert found.root == privileges.is_root()
    assert rules.judge(found)


def test_capabilities_are_read_from_a_status():
    assert privileges.effective("Name:\tx\nCapEff:\t0000000001200000\nSeccomp:\t0\n") == {"CAP_SYS_ADMIN", "CAP_SYS_RESOURCE"}
    assert privileges.effective("Name:\tx\n") == frozenset()
