/* The shim between Slurm and Perdure: what its parts know of each other.
 *
 * A plugin is loaded by slurmstepd, as root, in the task that is about to become a batch script or a step. It decides whether that task is
 * opted in (decide.c, policy.c, record.c), starts the root process that will keep it (seat.c), and puts a program of ours in the place of
 * the command; spank.c holds what Slurm calls. Slurm prepares the task as ever and starts that program, which hands the task over (main.c,
 * task.c, request.c, reply.c). Whatever fails on the way ends in the task being run as if Perdure did not exist. say.c is in both.
 */
#ifndef PERDURE_SHIM_H
#define PERDURE_SHIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifndef PERDURE_PREFIX
#define PERDURE_PREFIX "/opt/perdure"
#endif
#define PERDURE_PROGRAM PERDURE_PREFIX "/bin/perdure"
#define PERDURE_STAND PERDURE_PREFIX "/lib/slurm/perdure-task"
#define PERDURE_POLICY "/etc/perdure/slurm.shim"
#define PERDURE_CONFIG "/etc/perdure/config.toml"
/* In a task that opted in and runs unmanaged: why. A step that its script starts with the same reason does not say it again. */
#define PERDURE_UNMANAGED "PERDURE_UNMANAGED"
/* What the plugin tells the program; never seen by the command. */
#define PERDURE_TASK "PERDURE_TASK"

#define MOST_WORDS 1024    /* bytes of options that a job may give */
#define MOST_NAME 256      /* bytes of a partition's name and its like */
#define MOST_WHY 3072      /* bytes of a reason */
#define MOST_OPTIONS 16    /* options that the admin's policy may set */

/* What Slurm's controller says of the job. */
struct record {
	char partition[MOST_NAME];
	char qos[MOST_NAME];
	char account[MOST_NAME];
	char comment[MOST_WORDS];
	uint32_t nodes;
	uint32_t het_job_id;
	bool in_container; /* of Slurm's own: --container */
};

/* What the shim knows of the task. */
struct task {
	uint32_t job;
	uint32_t step;
	uint32_t nodes;
	uint32_t tasks;
	bool is_first; /* of the step's tasks: it speaks for all of them */
	bool is_part; /* of a heterogeneous job, as its environment says */
	bool in_container; /* of Slurm's own, as its environment says */
	uid_t uid;
	gid_t gid;
	const gid_t *groups;
	int group_count;
	char user[MOST_NAME];
	char wish[MOST_WORDS]; /* the variable PERDURE; empty: not set */
};

/* The admin's policy as far as it concerns one job. */
struct policy {
	bool is_there;
	bool needs_record; /* it names partitions, QOS or accounts */
	bool forbids_by_record;
	bool names_users; /* by name, rather than by number */
	char *text; /* the file, each line ended by NUL */
	size_t size;
	char options[MOST_OPTIONS][MOST_NAME];
	int option_count;
};

enum verdict { NOT_MEANT, MEANT };

struct decision {
	enum verdict verdict;
	bool by_itself; /* the job asked for it, rather than the admin */
	char options[MOST_WORDS]; /* the job's own, as it wrote them */
	char refusal[MOST_NAME]; /* why it cannot be; said once, and the task runs as ever */
	bool is_unknown; /* the controller did not tell whether the job asked for it */
};

/* policy.c */
bool policy_read(const char *path, struct policy *policy, char *problem, size_t room);
void policy_free(struct policy *policy);
/* Whether a line `prefix``kind` NAME matches; record may be NULL. */
bool policy_names(const struct policy *policy, const char *prefix, const struct task *task, const struct record *record);

/* record.c */
bool record_load(uint32_t job, struct record *record);

/* decide.c */
enum wish { SAYS_NOTHING, SAYS_NO, SAYS_YES };
enum wish wish_read(const char *text);
enum wish comment_read(const char *comment, char *options, size_t room);
/* `load` is asked for the record only where the decision needs it. */
void decide(const struct task *task, const struct policy *policy, bool (*load)(uint32_t, struct record *), struct decision *decision);

/* seat.c */
struct seat {
	int channel; /* our end of the socket; -1: there is no seat */
	pid_t pid;
};
bool seat_start(const struct task *task, const struct policy *policy, const struct decision *decision, struct seat *seat);

/* request.c */
struct words {
	char *const *items;
	size_t count;
};
bool request_send(int channel, const char *cwd, mode_t mask, struct words argv, struct words environment);

/* task.c: hand the task over and wait for its end. Returns only when the task is to be run as ever, and why: nothing of it was started then. */
const char *task_hand_over(const struct seat *seat, struct words argv, struct words environment, bool is_batch);

/* say.c */
void say(const char *text);
/* Send the seat away: the task is run as ever. */
void task_keep(const struct seat *seat);

#endif
