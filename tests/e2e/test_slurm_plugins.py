"""What else a site has in the way of a task: plugins that put it into a container, a program that prepares it, jobs of several components.

What is in a container, or has several components, runs as without Perdure and says why it is not kept; root's process touches no file of
a container's. What prepares tasks prepares those that are kept, too.
"""

from __future__ import annotations

import re

import pytest
from cluster import installed, work
from cluster.machine import wait_until
from cluster.slurm import Cluster, Shape

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

NODES = ("n1", "n2")
LONG_S = 300
ALICE = 2001
APART = "perdure: it has mounts of its own (a container, or private folders) and cannot be saved; it runs unmanaged\n"
SEES_OTHERS = (
    "perdure: the process that asks sees other mounts: its workload would run outside that (ask from outside the container); "
    "it runs unmanaged\n"
)

# Both ways of plugins that run containers: as root before the task becomes the user's, or as the user just before it becomes the command.
_PLUGIN = r"""
#define _GNU_SOURCE
#include <sched.h>
#include <slurm/spank.h>
#include <sys/mount.h>

SPANK_PLUGIN(NAME, 1);

static int is_meant(spank_t spank, const char *variable)
{
	char value[8];

	return spank_remote(spank) == 1 && spank_getenv(spank, variable, value, sizeof value) == ESPANK_SUCCESS;
}

#ifdef EARLY
int slurm_spank_task_init_privileged(spank_t spank, int count, char **arguments)
{
	if (!is_meant(spank, "EARLY_CONTAINER"))
		return 0;
	if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL))
		return -1;
	if (mount("/home/alice/image/opt", "/opt", NULL, MS_BIND, NULL) || mount("/home/alice/image/etc", "/etc/perdure", NULL, MS_BIND, NULL))
		return -1;
	return spank_setenv(spank, "CONTAINER", "early", 1);
}
#else
int slurm_spank_task_init(spank_t spank, int count, char **arguments)
{
	if (!is_meant(spank, VARIABLE))
		return 0;
	if (is_meant(spank, "ENTERS") && unshare(CLONE_NEWUSER | CLONE_NEWNS))
		return -1;
	return spank_setenv(spank, "CONTAINER", WORD, 1);
}
#endif
"""
# What Slurm runs containers with: it is told of the command and its environment by a file.
_RUNTIME = """#!/usr/bin/python3
import json, os, sys
process = json.load(open(sys.argv[1] + "/config.json"))["process"]
environment = dict(word.split("=", 1) for word in process["env"])
os.execvpe(process["args"][0], process["args"], environment | {"CONTAINER": "slurms"})
"""
_SET_UP = f"""set -e
cd /run
cat >plugin.c <<'EOF'
{_PLUGIN}
EOF
cc -shared -fPIC -DEARLY -DNAME=early -o early.so plugin.c
cc -shared -fPIC -DNAME=late '-DVARIABLE="LATE"' '-DWORD="late"' -o late.so plugin.c
cc -shared -fPIC -DNAME=last '-DVARIABLE="LAST"' '-DWORD="last"' -o last.so plugin.c
echo required /run/early.so >>/etc/slurm/plugstack.conf.d/00-site.conf
echo required /run/late.so >/etc/slurm/plugstack.conf.d/pyxis.conf
echo required /run/last.so >/etc/slurm/plugstack.conf.d/zzzz-last.conf
cat >/etc/slurm/runtime <<'EOF'
{_RUNTIME}
EOF
chmod 755 /etc/slurm/runtime
printf 'RunTime%s\n' 'Run="/etc/slurm/runtime %b"' Query=true Kill=true Delete=true >/etc/slurm/oci.conf
"""
_PROLOG = """set -e
cat >/etc/slurm/prepare <<'END'
#!/bin/sh
[ -z "$FORBIDDEN" ] || exit 7
echo export PREPARED="$(id -un) of ${PERDURE_WORKLOAD-Slurm}"
echo unset UNWANTED
echo print the site prepares this
END
chmod 755 /etc/slurm/prepare
echo TaskProlog=/etc/slurm/prepare >>/etc/slurm/slurm.conf
"""
# What a user puts into an image, for root to run it.
_IMAGE = """set -e
mkdir -p image/opt/perdure/bin image/etc
touch image/etc/config.toml
echo '{"root": {"path": "."}, "process": {"args": [], "env": []}, "mounts": []}' >image/config.json
printf '#!/bin/sh\\nid >/home/alice/proof\\n' >image/opt/perdure/bin/perdure
chmod 755 image/opt/perdure/bin/perdure
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with installed.running(tmp_path_factory.mktemp("cluster"), Shape(nodes=NODES)) as found:
        for node in NODES:
            found.run(node, "sh", "-c", _SET_UP)
        found.head("sh", "-c", _IMAGE, user="alice")
        yield found


def run(cluster: Cluster, name: str, script: str, *options: str, **env: str) -> tuple[str, str]:
    """Run a job to its end; return what it wrote to its streams."""
    job = cluster.submit("alice", script, *work.files(name), *options, env=env)
    assert cluster.wait_state(job, "COMPLETED", "FAILED", timeout_s=LONG_S) == "COMPLETED"
    return work.written(cluster, "alice", name), work.written(cluster, "alice", name, "err")


def test_one_that_is_in_no_container_is_kept(cluster):
    out, said = run(cluster, "kept", 'echo "in ${CONTAINER-none}, kept as ${PERDURE_WORKLOAD-nothing}"\n', PERDURE="1")
    assert out.startswith("in none, kept as slurm-")
    assert "starts anew" in said


@pytest.mark.parametrize(("kind", "why"), [("early", APART), ("late", APART), ("last", SEES_OTHERS)])
def test_a_container_of_another_plugin_is_entered_and_not_kept(cluster, kind, why):
    script = 'echo "in ${CONTAINER-none}, kept as ${PERDURE_WORKLOAD-nothing}"\n'
    variable = "EARLY_CONTAINER" if kind == "early" else kind.upper()
    out, said = run(cluster, kind, script, **{"PERDURE": "1", variable: "1", "ENTERS": "1"})
    assert (out, said) == (f"in {kind}, kept as nothing\n", why)
    assert not (cluster.home / "alice/proof").exists(), "root has run what lies in the user's image"


def test_a_container_of_slurms_own_is_entered_and_not_kept(cluster):
    script = """srun -n 1 --container=/home/alice/image sh -c 'echo "in $CONTAINER, kept as ${PERDURE_WORKLOAD-nothing}"'\n"""
    out, said = run(cluster, "slurms", f"export PERDURE=1\n{script}")
    assert out == "in slurms, kept as nothing\n"
    assert "what runs in a container (--container) cannot be saved; it runs unmanaged" in said


def test_a_step_of_several_programs_runs_as_ever(cluster):
    (cluster.home / "alice/several").write_text("0 sh -c 'echo ran $0 kept as ${PERDURE_WORKLOAD-nothing}' %t\n")
    out, _ = run(cluster, "several", "export PERDURE=1\nsrun -n 1 --multi-prog $HOME/several\necho ended with $?\n")
    assert out == "ran 0 kept as nothing\nended with 0\n"


def test_a_plugin_that_comes_after_is_asked_about_a_task_that_is_kept(cluster):
    out, _ = run(cluster, "asked", 'echo "${CONTAINER-none}, kept as ${PERDURE_WORKLOAD-nothing}"\n', PERDURE="1", LAST="1")
    assert out.startswith("last, kept as slurm-")


def test_a_heterogeneous_job_runs_as_ever_and_says_why(cluster):
    script = 'echo "one of $SLURM_HET_SIZE, kept as ${PERDURE_WORKLOAD-nothing}"\n'
    out, said = run(cluster, "het", script, "-n1", ":", "-n1", PERDURE="1")
    assert (out, said) == ("one of 2, kept as nothing\n", "perdure: heterogeneous jobs cannot be saved; this one runs unmanaged\n")
    # The variable that told the shim is the user's to take away; Slurm's own number is not.
    out, said = run(cluster, "het-hidden", script, "--export=PERDURE=1,SLURM_HET_SIZE=0", "-n1", ":", "-n1")
    assert "kept as nothing" in out
    assert "heterogeneous jobs cannot be saved" in said


@pytest.fixture(scope="module")
def prepared(cluster):
    """A cluster on which a program of the site's prepares tasks."""
    for node in (*NODES, "head"):
        cluster.run(node, "sh", "-c", _PROLOG)
    cluster.head("scontrol", "reconfigure")
    return cluster


def test_what_prepares_tasks_prepares_those_that_are_kept_and_they_go_on(prepared):
    work.lay(prepared)
    script = 'echo "prepared: ${PREPARED-no}, ${UNWANTED-nothing} else, kept as ${PERDURE_WORKLOAD-nothing}"\n'
    counts = work.count(40, 0.1, name="prepared", waits=True)
    job = prepared.submit("alice", script + counts, *work.files("prepared"), env={"PERDURE": "every=2s", "UNWANTED": "much"})
    wait_until(lambda: work.checkpoints(prepared, ALICE, job), timeout_s=LONG_S, what="a checkpoint")
    prepared.head("scontrol", "requeue", str(job), user="alice")
    wait_until(lambda: "goes on from" in work.written(prepared, "alice", "prepared", "err"), timeout_s=LONG_S, what="a second life")
    (prepared.home / "alice/prepared.go").touch()
    assert prepared.wait_state(job, "COMPLETED", "FAILED", timeout_s=LONG_S) == "COMPLETED"
    said = f"the site prepares this\nprepared: alice of Slurm, nothing else, kept as slurm-lab-{job}\n"
    assert work.written(prepared, "alice", "prepared").removeprefix(said) == work.lines(40)
    assert (prepared.home / "alice/prepared.starts").read_text() == "started\n"


def test_a_program_of_the_users_that_prepares_a_step_is_run_and_the_step_is_kept(prepared):
    own = prepared.home / "alice/own"
    own.write_text("#!/bin/sh\necho export OWN=too\n")
    own.chmod(0o755)
    script = """srun -n 1 --task-prolog=$HOME/own sh -c 'echo "prepared: $PREPARED, own: $OWN, kept as $PERDURE_WORKLOAD"'\n"""
    out, _ = run(prepared, "own", script, PERDURE="1")
    assert re.search(r"(?m)^prepared: alice of \S+, own: too, kept as slurm-lab-\d+\.0$", out)


def test_what_the_program_that_prepares_tasks_forbids_is_not_run(prepared):
    job = prepared.submit("alice", "echo ran\n", *work.files("forbidden"), env={"PERDURE": "1", "FORBIDDEN": "yes"})
    assert prepared.wait_state(job, "COMPLETED", "FAILED", timeout_s=LONG_S) == "FAILED"
    assert "ran" not in work.written(prepared, "alice", "forbidden").splitlines()
    assert "ExitCode=7:0" in prepared.head("scontrol", "show", "job", str(job)).stdout
