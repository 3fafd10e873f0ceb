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
	char ignored;

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
	task->in_container = spank_getenv(spank, "SLURM_CONTAINER", &ignored, 1) != ESPANK_ENV_NOEXIST ||
			     spank_getenv(spank, "SLURM_CONTAINER_ID", &ignored, 1) != ESPANK_ENV_NOEXIST;
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

/* The first word of what Slurm is about to run; NULL where nothing of the kind can be told. */
static char **first_word(spank_t spank)
{
	char **argv = NULL;
	int argc = 0;

	return spank_get_item(spank, S_JOB_ARGV, &argc, &argv) == ESPANK_SUCCESS && argc > 0 && argv && argv[0] && *argv[0] ? argv : NULL;
}

/* Let Slurm run our program instead of the command, once it has done all that comes before. The program is named by an open file: what
 * follows may lead the task to where its path means something else, or nothing. Returns why that cannot be; NULL: it will be.
 */
static const char *put_in_place(spank_t spank)
{
	static const char unfit[] = "this Slurm does not let the command be replaced; the job runs unmanaged";
	static char path[sizeof "/proc/self/fd/" + 3 * sizeof(int)];
	char **word = first_word(spank), **again, *command = word ? *word : NULL, *told;
	int program = open(PERDURE_STAND, O_PATH | O_CLOEXEC), length;

	snprintf(path, sizeof path, "/proc/self/fd/%d", program);
	if (program < 0 || access(path, X_OK))
		return "Perdure's program for tasks (" PERDURE_STAND ") cannot be run here; the job runs unmanaged";
	if (!command)
		return unfit;
	if (command[strlen(command) - 1] == '/') /* Slurm completes it, after this */
		return "a program that srun copies into a folder (--bcast) cannot be saved; it runs unmanaged";
	length = asprintf(&told, "%d %d %d %s", now.seat.channel, (int)now.seat.pid, now.is_batch, command);
	if (length < 0 || spank_setenv(spank, PERDURE_TASK, told, 1) != ESPANK_SUCCESS || fcntl(now.seat.channel, F_SETFD, 0))
		return unfit;
	*word = path;
	again = first_word(spank);
	if (again && *again == path)
		return NULL;
	*word = command;
	return unfit;
}

/* As the user, in the task, before Slurm runs the programs that prepare it and then the command. */
int slurm_spank_task_init(spank_t spank, int count, char **arguments)
{
	const char *why;

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
	why = put_in_place(spank);
	if (why) {
		spank_unsetenv(spank, PERDURE_TASK);
		task_keep(&now.seat);
		if (now.by_itself)
			refuse(spank, why);
	}
	return ESPANK_SUCCESS;
}
