"""What else a site has in the way of a task: plugins that put it into a container, a program that prepares it, jobs of several components.

Nothing of it is saved; all of it runs as without Perdure, and says why it is not kept. Root's process touches no file of a container's.
"""

from __future__ import annotations

import pytest
from cluster import installed, work
from cluster.slurm import Cluster, Shape

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

NODES = ("n1", "n2")
LONG_S = 300
APART = "perdure: it has mounts of its own (a container, or private folders) and cannot be saved; it runs unmanaged\n"

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
	if (!is_meant(spank, "LATE_CONTAINER"))
		return 0;
	return unshare(CLONE_NEWUSER | CLONE_NEWNS) ? -1 : spank_setenv(spank, "CONTAINER", "late", 1);
}
#endif
"""
_SET_UP = f"""set -e
cd /run
cat >plugin.c <<'EOF'
{_PLUGIN}
EOF
cc -shared -fPIC -DEARLY -DNAME=early -o early.so plugin.c
cc -shared -fPIC -DNAME=late -o late.so plugin.c
echo required /run/early.so >>/etc/slurm/plugstack.conf.d/00-site.conf
echo required /run/late.so >/etc/slurm/plugstack.conf.d/pyxis.conf
"""
_PROLOG = """set -e
printf '#!/bin/sh\\necho export PREPARED=yes\\necho print the site prepares this\\n' >/etc/slurm/prepare
chmod 755 /etc/slurm/prepare
echo TaskProlog=/etc/slurm/prepare >>/etc/slurm/slurm.conf
"""
# What a user puts into an image, for root to run it.
_IMAGE = """set -e
mkdir -p image/opt/perdure/bin image/etc
touch image/etc/config.toml
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


@pytest.mark.parametrize("kind", ["early", "late"])
def test_a_container_of_another_plugin_is_entered_and_not_kept(cluster, kind):
    script = 'echo "in ${CONTAINER-none}, kept as ${PERDURE_WORKLOAD-nothing}"\n'
    out, said = run(cluster, kind, script, **{"PERDURE": "1", f"{kind.upper()}_CONTAINER": "1"})
    assert (out, said) == (f"in {kind}, kept as nothing\n", APART)
    assert not (cluster.home / "alice/proof").exists(), "root has run what lies in the user's image"


def test_a_heterogeneous_job_runs_as_ever_and_says_why(cluster):
    script = 'echo "one of $SLURM_HET_SIZE, kept as ${PERDURE_WORKLOAD-nothing}"\n'
    out, said = run(cluster, "het", script, "-n1", ":", "-n1", PERDURE="1")
    assert (out, said) == ("one of 2, kept as nothing\n", "perdure: heterogeneous jobs cannot be saved; this one runs unmanaged\n")
    # The variable that told the shim is the user's to take away; Slurm's own number is not.
    out, said = run(cluster, "het-hidden", script, "--export=PERDURE=1,SLURM_HET_SIZE=0", "-n1", ":", "-n1")
    assert "kept as nothing" in out
    assert "heterogeneous jobs cannot be saved" in said


def test_what_prepares_tasks_is_run_and_they_are_not_kept(cluster):
    for node in (*NODES, "head"):
        cluster.run(node, "sh", "-c", _PROLOG)
    cluster.head("scontrol", "reconfigure")
    script = 'echo "prepared: ${PREPARED-no}, kept as ${PERDURE_WORKLOAD-nothing}"\n'
    out, said = run(cluster, "prepared", script, PERDURE="1")
    assert out == "the site prepares this\nprepared: yes, kept as nothing\n"
    assert "this site prepares tasks with a TaskProlog (/etc/slurm/prepare), which a saved job would miss; it runs unmanaged" in said
