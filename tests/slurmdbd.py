"""A real Slurm cluster for tests: MariaDB, munge, slurmdbd, slurmctld and two slurmd, in namespaces of their own.

Everything lives in one folder and one PID namespace: killing its first process ends all daemons at once, whatever state
they are in. The machine's own Slurm, MariaDB, munge, /etc and /run are neither used nor touched.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

LONG_S = 120.0
"""For what takes Slurm seconds, and longer on a machine that has much else to do."""
CONFIGURATION = "/run/slurm/slurm.conf"
"""Inside; a folder of its own there, not the machine's /run."""

_SLURM_CONF = """\
ClusterName=lab
SlurmctldHost=head
SlurmUser=root
AuthType=auth/munge
AuthInfo=cred_expire=5
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
ReturnToService=2
StateSaveLocation={folder}/state
SlurmdSpoolDir=/run/slurmd-%n
SlurmdPidFile=/run/slurmd-%n.pid
SlurmctldPidFile=/run/slurmctld.pid
SlurmdParameters=config_overrides
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=head
AccountingStorageTRES=gres/gpu
AccountingStoreFlags=job_comment
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
JobRequeue=1
KillWait=1
MinJobAge=2
SchedulerParameters=sched_interval=1,bf_interval=1,requeue_delay=1
NodeName=n1 NodeAddr=head Port=17001 CPUs=8 RealMemory=1000 Gres=gpu:a100:4
NodeName=n2 NodeAddr=head Port=17002 CPUs=8 RealMemory=1000 Gres=gpu:a100:4
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
_GRES_CONF = "Name=gpu Type=a100 Count=4 File=/dev/null,/dev/zero,/dev/full,/dev/random\n"
_SLURMDBD_CONF = """\
AuthType=auth/munge
DbdHost=head
SlurmUser=root
StorageType=accounting_storage/mysql
StorageUser=slurm
StoragePass=pw
StorageHost=localhost
LogFile={folder}/log/slurmdbd.log
PidFile=/run/slurmdbd.pid
MaxQueryTimeRange=12:00:00
PrivateData=jobs
"""
# Slurm resolves with AI_ADDRCONFIG: a loopback address alone is not enough, so the name space gets a veth pair.
_INIT = """\
set -e
cd {folder}
hostname head
mount -t proc proc /proc
mount -t tmpfs tmpfs /run
mount --bind hosts /etc/hosts
mount --bind nsswitch.conf /etc/nsswitch.conf
ip link set lo up
ip link add eth0 type veth peer name eth1
ip addr add 10.77.0.1/24 dev eth0
ip link set eth0 up
ip link set eth1 up
mkdir -p log state db /run/munge /run/mysqld /run/slurm
# The test's folder is private; ordinary users inside read the configuration too.
cp slurm.conf gres.conf slurmdbd.conf /run/slurm/
chmod 600 /run/slurm/slurmdbd.conf
dd if=/dev/urandom of=munge.key bs=128 count=1 status=none
chmod 600 munge.key
export SLURM_CONF=/run/slurm/slurm.conf
wait_for() {{ for _ in $(seq 1200); do if "$@" >/dev/null 2>&1; then return 0; fi; sleep 0.05; done; echo "gave up: $*"; exit 1; }}
munged --force --foreground --key-file=munge.key --seed-file={folder}/munge.seed --pid-file=/run/munge/pid \\
  --socket=/run/munge/munge.socket.2 --log-file={folder}/log/munged.log >log/munged.out 2>&1 &
mariadb-install-db --no-defaults --user=root --datadir={folder}/db --auth-root-authentication-method=socket --skip-test-db \\
  >log/install.out 2>&1
mariadbd --no-defaults --user=root --datadir={folder}/db --socket=/run/mysqld/mysqld.sock --skip-networking \\
  --innodb-flush-log-at-trx-commit=0 >log/mariadbd.out 2>&1 &
SQL="mysql --no-defaults --socket=/run/mysqld/mysqld.sock"
wait_for $SQL -e "select 1"
$SQL -e "create database slurm_acct_db; create user slurm@localhost identified by 'pw'; grant all on slurm_acct_db.* to slurm@localhost"
slurmdbd -D >log/slurmdbd.out 2>&1 &
wait_for sacctmgr -n show cluster
sacctmgr -i add cluster lab >log/sacctmgr.out
sacctmgr -i add account physics >>log/sacctmgr.out
sacctmgr -i add user root,nobody,daemon account=physics >>log/sacctmgr.out
slurmctld -D -c >log/slurmctld.out 2>&1 &
wait_for sh -c 'scontrol ping | grep -q UP'
slurmd -D -N n1 >log/slurmd1.out 2>&1 &
slurmd -D -N n2 >log/slurmd2.out 2>&1 &
wait_for sh -c 'test "$(sinfo -h -t idle -o %D)" = 2'
touch ready
while :; do sleep 1000 & wait $!; done
"""


class Unfit(Exception):
    """This machine does not allow such a cluster."""


class Cluster:
    """A running cluster; commands run inside its namespaces."""

    def __init__(self, folder: Path, init_pid: int) -> None:
        self.folder = folder
        self._inside = ["nsenter", f"--target={init_pid}", "--mount", "--net", "--uts", "--ipc", "--pid"]

    def run(self, *command: str, user: str | None = None, env: dict[str, str] | None = None, check: bool = True):
        """Run `command` inside, as `user` (default root), and return the finished process."""
        inside = [*self._inside, *(["setpriv", f"--reuid={user}", "--regid=nogroup", "--clear-groups"] if user else [])]
        environment = {"PATH": os.environ["PATH"], "SLURM_CONF": CONFIGURATION, "LC_ALL": "C.UTF-8", "HOME": "/"}
        process = subprocess.run([*inside, *command], capture_output=True, text=True, env=environment | (env or {}), timeout=120, cwd="/")
        if check and process.returncode:
            raise AssertionError(f"{command}: {process.returncode}: {process.stdout} {process.stderr}")
        return process

    def program(self, name: str, *, user: str | None = None) -> Path:
        """Make a program outside that runs Slurm's `name` inside, as `user`, with the caller's environment; return its path."""
        folder = self.folder / f"bin-{user or 'root'}"
        folder.mkdir(exist_ok=True)
        path = folder / name
        change = f"setpriv --reuid={user} --regid=nogroup --clear-groups" if user else ""
        path.write_text(f'#!/bin/sh\nexport SLURM_CONF={CONFIGURATION}\nexec {shlex.join(self._inside)} {change} {name} "$@"\n')
        path.chmod(0o755)
        return path

    def stop(self, daemon: str) -> None:
        """End a daemon inside, and wait until it has gone."""
        pids = self.run("pidof", daemon).stdout.split()
        self.run("kill", *pids)
        deadline = time.monotonic() + LONG_S
        while self.run("pidof", daemon, check=False).stdout.strip():
            assert time.monotonic() < deadline, f"{daemon} does not end"
            time.sleep(0.05)

    def start(self, daemon: str) -> None:
        """Start slurmdbd or mariadbd again after `stop`, and wait until accounting answers."""
        command = {
            "slurmdbd": ["slurmdbd"],
            "mariadbd": [
                *("mariadbd", "--no-defaults", "--user=root", f"--datadir={self.folder}/db", "--socket=/run/mysqld/mysqld.sock"),
                *("--skip-networking", "--innodb-flush-log-at-trx-commit=0"),
            ],
        }[daemon]
        environment = {"PATH": os.environ["PATH"], "SLURM_CONF": CONFIGURATION}
        with open(self.folder / "log" / f"{daemon}-again.out", "ab") as out:
            # What is started inside ends with the namespace; it is nobody's child out here once nsenter has gone.
            subprocess.Popen(
                ["setsid", "--fork", *self._inside, *command], stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment
            ).wait()
        deadline = time.monotonic() + LONG_S
        while (asked := self.run("sacct", "-a", "-X", "-n", check=False)).returncode or asked.stderr:
            assert time.monotonic() < deadline, f"{daemon} does not come back: {asked.stderr}"
            time.sleep(0.1)

    def sql(self, statement: str) -> str:
        """Run SQL on slurmdbd's own database."""
        return self.run("mysql", "--no-defaults", "--socket=/run/mysqld/mysqld.sock", "-N", "slurm_acct_db", "-e", statement).stdout

    def submit(self, script: str, *options: str, user: str = "nobody") -> int:
        """Submit a batch job as `user` and return its id."""
        out = self.run("sbatch", "--parsable", f"--uid={user}", "--chdir=/tmp", "--output=/dev/null", *options, f"--wrap={script}").stdout
        return int(out.strip())

    def records(self, job: int) -> list[str]:
        """States of all accounting records of a job, oldest first."""
        out = self.run("sacct", "-a", "-D", "-X", "-n", "-P", "-S", "2020-01-01", "-j", str(job), "-o", "State").stdout
        return out.split("\n")[:-1]

    def wait(self, job: int, *states: str, timeout_s: float = LONG_S) -> None:
        """Wait until the job's records have these states (first words)."""
        deadline = time.monotonic() + timeout_s
        while (found := [state.split()[0] for state in self.records(job)]) != list(states):
            if time.monotonic() > deadline:
                raise AssertionError(f"job {job}: {found}, not {states}")
            time.sleep(0.1)


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """Start a cluster in `folder` (empty, its path short and without blanks) and end all of it afterwards.

    Raises `Unfit` where namespaces are not allowed, AssertionError with the daemons' words when it does not come up.
    """
    (folder / "hosts").write_text("10.77.0.1 head\n127.0.0.1 localhost\n")
    (folder / "nsswitch.conf").write_text("hosts: files\npasswd: files\ngroup: files\n")
    for name, text in {"slurm.conf": _SLURM_CONF, "gres.conf": _GRES_CONF, "slurmdbd.conf": _SLURMDBD_CONF, "init": _INIT}.items():
        (folder / name).write_text(text.format(folder=folder) if name != "gres.conf" else text)
    unshare = ["unshare", "--mount", "--net", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--propagation=private"]
    if subprocess.run([*unshare, "true"], capture_output=True).returncode:
        raise Unfit("unshare of mount, network and PID namespaces is not allowed here")
    with open(folder / "init.out", "wb") as out:
        process = subprocess.Popen(
            [*unshare, "bash", str(folder / "init")], stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
    try:
        init_pid = _wait_until_ready(process, folder)
        yield Cluster(folder, init_pid)
    finally:
        # --kill-child: the end of unshare is the end of the namespace's first process, and so of everything in it.
        process.send_signal(signal.SIGKILL)
        process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], folder: Path) -> int:
    deadline = time.monotonic() + LONG_S
    while not (folder / "ready").exists():
        if process.poll() is not None or time.monotonic() > deadline:
            said = {path.name: path.read_text(errors="replace")[-600:] for path in [folder / "init.out", *folder.glob("log/*")]}
            raise AssertionError(f"the cluster did not come up: {said}")
        time.sleep(0.05)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return int(children[0])
