"""What a cluster looks like, in Slurm's own configuration files. Called by `cluster.slurm`.

Times are short where a test would otherwise wait for them (SlurmdTimeout, KillWait, cred_expire); all else is as a site has it.
"""

from __future__ import annotations

import dataclasses

NAME = "lab"
NETWORK = "10.79.0"
HEAD = "head"
USERS = {"alice": 2001, "bob": 2002, "carol": 2003}
"""alice and bob have an account, carol has nothing but a login."""
DEFAULT_VERSION = "24.11"
"""Of Slurm; `make test-slurm-matrix` chooses others."""


@dataclasses.dataclass(frozen=True)
class Shape:
    """What a test may choose."""

    version: str = dataclasses.field(default_factory=lambda: DEFAULT_VERSION)
    nodes: tuple[str, ...] = ("n1", "n2", "n3")
    appends_on: tuple[str, ...] = ()
    """Nodes on which Slurm appends to a job's output when it runs again; elsewhere it empties it first (its default)."""
    grace_s: int = 8
    """Seconds that a preempted job is given."""
    proctrack: str = "linuxproc"
    prolog_flags: str = "Alloc"
    slurmd_timeout_s: int = 30
    """How long a node may be silent. The controller counts those that live only when it has given up on asking those that do not
    (MessageTimeout), and asks each third of this: with 10 s it takes them all for lost where the machine has much else to do."""
    kill_wait_s: int = 2

    def address(self, name: str) -> str:
        """Return the address of a node, or of the head."""
        return f"{NETWORK}.1" if name == HEAD else f"{NETWORK}.{11 + self.nodes.index(name)}"


def files(shape: Shape, name: str = HEAD) -> dict[str, str]:
    """Return the files to lay under /etc of the node `name`, by path: the same for all, but for what a test chose for some."""
    return {
        "hosts": "127.0.0.1 localhost\n" + "".join(f"{shape.address(name)} {name}\n" for name in (HEAD, *shape.nodes)),
        "nsswitch.conf": "hosts: files\npasswd: files\ngroup: files\n",
        "slurm/slurm.conf": _slurm_conf(shape, appends=name in shape.appends_on),
        "slurm/gres.conf": "Name=gpu Type=a100 Count=2 File=/dev/null,/dev/zero\n",
        "slurm/cgroup.conf": _cgroup_conf(shape),
        "slurm/slurmdbd.conf": _SLURMDBD_CONF,
        "slurm/plugstack.conf": "include /etc/slurm/plugstack.conf.d/*\n",
        "slurm/plugstack.conf.d/00-site.conf": "# The site's own plugins go here.\n",
        "slurm/accounts": _ACCOUNTS,
    }


def _cgroup_conf(shape: Shape) -> str:
    if shape.proctrack == "cgroup":
        return "CgroupPlugin=cgroup/v1\nConstrainCores=no\n"
    # 22.05 has no such word, and asks for no control groups that nothing uses.
    return "CgroupPlugin=cgroup/v1\n" if shape.version == "22.05" else "CgroupPlugin=disabled\n"


def _slurm_conf(shape: Shape, *, appends: bool) -> str:
    nodes = "".join(f"NodeName={name} CPUs=4 RealMemory=2000 Gres=gpu:a100:2 Feature={name}\n" for name in shape.nodes)
    return f"""\
ClusterName={NAME}
FirstJobId=770001
SlurmctldHost={HEAD}
SlurmUser=root
AuthType=auth/munge
AuthInfo=cred_expire=5
CredType=cred/munge
ProctrackType=proctrack/{shape.proctrack}
TaskPlugin=task/none
PrologFlags={shape.prolog_flags}
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
ReturnToService=2
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
SlurmdPidFile=/run/slurmd.pid
SlurmctldPidFile=/run/slurmctld.pid
SlurmdLogFile=/var/log/slurm/slurmd.log
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdDebug=verbose
SlurmctldDebug=verbose
SlurmdParameters=config_overrides
SlurmctldParameters=preempt_send_user_signal
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost={HEAD}
AccountingStorageTRES=gres/gpu
AccountingStorageEnforce=associations
AccountingStoreFlags=job_comment
JobAcctGatherType=jobacct_gather/linux
MpiDefault=none
JobRequeue=1
JobFileAppend={int(appends)}
KillWait={shape.kill_wait_s}
SlurmdTimeout={shape.slurmd_timeout_s}
MessageTimeout=10
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerParameters=sched_interval=1,bf_interval=1,requeue_delay=1
{nodes}\
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime={shape.grace_s}
PartitionName=managed Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=1 GraceTime={shape.grace_s}
PartitionName=high Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""


_SLURMDBD_CONF = f"""\
AuthType=auth/munge
DbdHost={HEAD}
SlurmUser=root
StorageType=accounting_storage/mysql
StorageUser=slurm
StoragePass=pw
StorageHost=localhost
LogFile=/var/log/slurm/slurmdbd.log
PidFile=/run/slurmdbd.pid
"""
# Sourced by the head when slurmdbd answers.
_ACCOUNTS = f"""\
sacctmgr -i add cluster {NAME}
sacctmgr -i add qos managed
sacctmgr -i add account physics
sacctmgr -i add user root,alice,bob account=physics qos=normal,managed
"""
