/* What Slurm calls. Nothing here returns anything but success: a job must never fail because of the shim. */
#define _GNU_SOURCE
#include "shim.h"

#include <fcntl.h>
#include <pwd.h>
#include <slurm/slurm.h>
#include <slurm/spank.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

SPANK_PLUGIN(perdure, 1);

/* One task's, from its root part to its user part: both run in the same process. */
static struct {
	struct seat seat;
	char refusal[MOST_NAME];
	char told[MOST_WHY]; /* what the script around this step has said already */
	bool is_batch;
	bool by_itself;
} now = {.seat = {.channel = -1}};

/* Where slurmstepd itself stands, before there is any task: /proc as it was then, the mounts and the root directory. */
static struct {
	int proc;
	struct stat mounts, root;
} home = {.proc = -1};

static const char apart[] = "it has mounts of its own (a container, or private folders) and cannot be saved; it runs unmanaged";

static bool stand(struct stat *mounts, struct stat *root)
{
	return home.proc >= 0 && !fstatat(home.proc, "self/ns/mnt", mounts, 0) && !fstatat(home.proc, "self/root", root, 0);
}

static bool is_same(const struct stat *one, const struct stat *other)
{
	return one->st_dev == other->st_dev && one->st_ino == other->st_ino;
}

/* Whether what lies at a path is the node's own. Slurm and plugins before this one may have put the task into a container: there, the paths
 * of our program, its configuration and /proc itself may be the user's files, and root must touch none of them.
 */
static bool is_at_home(void)
{
	struct stat mounts, root;

	return stand(&mounts, &root) && is_same(&mounts, &home.mounts) && is_same(&root, &home.root);
}

static uint32_t number_of(spank_t spank, spank_item_t item)
{
	uint32_t number = 0;

	return spank_get_item(spank, item, &number) == ESPANK_SUCCESS ? number : 0;
}

static uint32_t number_in(spank_t spank, const char *variable)
{
	char text[24];

	return spank_getenv(spank, variable, text, sizeof text) == ESPANK_SUCCESS ? (uint32_t)strtoul(text, NULL, 10) : 0;
}

/* The batch script, or a step that srun started: no container of Slurm's own, and nobody's interactive shell. */
static bool is_of_a_kind(uint32_t step)
{
	return step == SLURM_BATCH_SCRIPT || step < SLURM_INTERACTIVE_STEP;
}

static bool know(spank_t spank, struct task *task)
{
	gid_t *groups = NULL;
	int count = 0;

	memset(task, 0, sizeof *task);
	task->job = number_of(spank, S_JOB_ID);
	if (spank_get_item(spank, S_JOB_STEPID, &task->step) != ESPANK_SUCCESS || !task->job || !is_of_a_kind(task->step))
		return false;
	if (spank_get_item(spank, S_JOB_UID, &task->uid) != ESPANK_SUCCESS || spank_get_item(spank, S_JOB_GID, &task->gid) != ESPANK_SUCCESS)
		return false;
	if (spank_get_item(spank, S_JOB_SUPPLEMENTARY_GIDS, &groups, &count) == ESPANK_SUCCESS) {
		task->groups = groups;
		task->group_count = count;
	}
	task->tasks = task->step == SLURM_BATCH_SCRIPT ? 1 : number_of(spank, S_JOB_TOTAL_TASK_COUNT);
	task->nodes = number_in(spank, "SLURM_JOB_NUM_NODES");
	if (number_of(spank, S_JOB_NNODES) > task->nodes)
		task->nodes = number_of(spank, S_JOB_NNODES);
	task->is_first = number_of(spank, S_TASK_GLOBAL_ID) == 0;
	task->is_part = number_in(spank, "SLURM_HET_SIZE") > 0;
	if (spank_getenv(spank, "PERDURE", task->wish, sizeof task->wish) != ESPANK_SUCCESS)
		task->wish[0] = '\0';
	if (spank_getenv(spank, PERDURE_UNMANAGED, now.told, sizeof now.told) != ESPANK_SUCCESS)
		now.told[0] = '\0';
	return true;
}

static void name_user(struct task *task)
{
	struct passwd found, *there = NULL;
	char room[4096];

	if (!getpwuid_r(task->uid, &found, room, sizeof room, &there) && there)
		snprintf(task->user, sizeof task->user, "%s", there->pw_name);
}

static bool has_program(const struct decision *decision)
{
	char node[65] = "this node";

	/* The program may lie in a folder that all nodes share, the configuration does not. */
	if (!access(PERDURE_PROGRAM, X_OK) && !access(PERDURE_CONFIG, F_OK))
		return true;
	gethostname(node, sizeof node - 1);
	if (decision->by_itself)
		snprintf(now.refusal, sizeof now.refusal, "Perdure is not installed on %s; the job runs unmanaged", node);
	return false;
}

/* The task is run as ever: say why, once in a job. */
static void refuse(spank_t spank, const char *why)
{
	if (!*why)
		return;
	if (strcmp(why, now.told))
		say(why);
	spank_setenv(spank, PERDURE_UNMANAGED, why, 1);
}

/* As root, in slurmstepd, before it makes the first task. */
int slurm_spank_init(spank_t spank, int count, char **arguments)
{
	(void)count;
	(void)arguments;
	if (spank_remote(spank) != 1)
		return ESPANK_SUCCESS;
	home.proc = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (home.proc >= 0 && !stand(&home.mounts, &home.root)) {
		close(home.proc);
		home.proc = -1;
	}
	return ESPANK_SUCCESS;
}

/* As root, in the task, before it becomes the user's. */
int slurm_spank_task_init_privileged(spank_t spank, int count, char **arguments)
{
	char problem[512] = "";
	struct policy policy;
	struct decision decision;
	struct task task;

	(void)count;
	(void)arguments;
	if (!spank_remote(spank) || !know(spank, &task))
		return ESPANK_SUCCESS;
	now.is_batch = task.step == SLURM_BATCH_SCRIPT;
	if (!is_at_home()) {
		if (task.is_first && wish_read(task.wish) == SAYS_YES)
			snprintf(now.refusal, sizeof now.refusal, "%s", apart);
		return ESPANK_SUCCESS;
	}
	if (!policy_read(PERDURE_POLICY, &policy, problem, sizeof problem))
		slurm_error("perdure: %s: nobody is opted in by the policy", problem);
	if (policy.names_users)
		name_user(&task);
	decide(&task, &policy, record_load, &decision);
	/* Most jobs ask for nothing: this is not for their output. */
	if (decision.is_unknown)
		slurm_error("perdure: Slurm's controller does not say what job %lu asks for; it runs unmanaged", (unsigned long)task.job);
	now.by_itself = decision.by_itself;
	snprintf(now.refusal, sizeof now.refusal, "%s", decision.refusal);
	if (decision.verdict == MEANT && has_program(&decision) && !seat_start(&task, &policy, &decision, &now.seat))
		snprintf(now.refusal, sizeof now.refusal, "no process can be started to keep this job; it runs unmanaged");
	policy_free(&policy);
	return ESPANK_SUCCESS;
}

static size_t length_of(char *const *words)
{
	size_t count = 0;

	while (words && words[count])
		count++;
	return count;
}

/* As the user, in the task, just before it becomes the command. */
int slurm_spank_task_init(spank_t spank, int count, char **arguments)
{
	char **argv = NULL, **environment = NULL;
	int argc = 0;

	(void)count;
	(void)arguments;
	if (!spank_remote(spank))
		return ESPANK_SUCCESS;
	if (now.seat.channel < 0) {
		refuse(spank, now.refusal);
		return ESPANK_SUCCESS;
	}
	if (!is_at_home()) {
		task_keep(&now.seat);
		if (now.by_itself)
			refuse(spank, apart);
		return ESPANK_SUCCESS;
	}
	if (isatty(0)) {
		/* srun --pty: a person at a terminal, whose other end is slurmstepd's and cannot be saved. */
		task_keep(&now.seat);
		if (now.by_itself)
			refuse(spank, "a step with a terminal (--pty) cannot be saved; it runs unmanaged");
		return ESPANK_SUCCESS;
	}
	if (now.told[0])
		spank_unsetenv(spank, PERDURE_UNMANAGED); /* of the script, not of this step */
	if (spank_get_item(spank, S_JOB_ARGV, &argc, &argv) == ESPANK_SUCCESS && argc > 0 &&
	    spank_get_item(spank, S_JOB_ENV, &environment) == ESPANK_SUCCESS) {
		struct words words = {argv, (size_t)argc}, variables = {environment, length_of(environment)};

		refuse(spank, task_hand_over(&now.seat, words, variables, now.is_batch));
	} else {
		task_keep(&now.seat);
	}
	return ESPANK_SUCCESS;
}
