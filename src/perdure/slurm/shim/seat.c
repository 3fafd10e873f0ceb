/* Start the seat: the root process that will keep this task. It is forked by the task, so that it belongs to the job from the start; it
 * learns by its command line what root knows of the job, and gets the user's part over the socket at descriptor 3.
 */
#define _GNU_SOURCE
#include "shim.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <slurm/slurm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MOST_ARGUMENTS 64
#define LONGEST_NUMBER 24

/* Arguments are put together before the fork: after it, nothing of slurmstepd's may be trusted to work. */
struct arguments {
	char *items[MOST_ARGUMENTS + 1];
	size_t count;
};

static bool add(struct arguments *to, const char *item)
{
	char *copied = to->count < MOST_ARGUMENTS ? strdup(item) : NULL;

	if (!copied)
		return false;
	to->items[to->count++] = copied;
	return true;
}

static bool add_number(struct arguments *to, const char *flag, unsigned long number)
{
	char text[LONGEST_NUMBER];

	snprintf(text, sizeof text, "%lu", number);
	return add(to, flag) && add(to, text);
}

static bool add_groups(struct arguments *to, const gid_t *groups, int count)
{
	size_t room = (size_t)(count > 0 ? count : 0) * LONGEST_NUMBER + 1, used = 0;
	char *text = malloc(room);
	bool done;

	if (!text)
		return false;
	*text = '\0';
	for (int each = 0; each < count; each++)
		used += (size_t)snprintf(text + used, room - used, "%s%lu", each ? "," : "", (unsigned long)groups[each]);
	done = add(to, "--groups") && add(to, text);
	free(text);
	return done;
}

static bool put_together(struct arguments *to, const struct task *task, const struct policy *policy, const struct decision *decision)
{
	char step[LONGEST_NUMBER] = "batch";
	bool done;

	if (task->step != SLURM_BATCH_SCRIPT)
		snprintf(step, sizeof step, "%lu", (unsigned long)task->step);
	done = add(to, PERDURE_PROGRAM) && add(to, "slurm") && add(to, "seat") && add_number(to, "--uid", task->uid) &&
	       add_number(to, "--gid", task->gid) && add_groups(to, task->groups, task->group_count) && add_number(to, "--job", task->job) &&
	       add(to, "--step") && add(to, step) && add_number(to, "--task-pid", (unsigned long)getpid());
	if (done && decision->options[0])
		done = add(to, "--options") && add(to, decision->options);
	for (int each = 0; done && each < policy->option_count; each++)
		done = add(to, "--default") && add(to, policy->options[each]);
	return done;
}

static void close_from(int first)
{
#ifdef SYS_close_range
	if (!syscall(SYS_close_range, (unsigned)first, ~0u, 0u))
		return;
#endif
	for (int each = first; each < (int)sysconf(_SC_OPEN_MAX); each++)
		close(each);
}

static void become(int channel, char **arguments, char **environment)
{
	struct sigaction as_ever = {.sa_handler = SIG_DFL};
	sigset_t wait;
	int null;

	setsid();
	for (int number = 1; number < NSIG; number++)
		sigaction(number, &as_ever, NULL);
	/* The seat heeds it once it can ask what it means; until then it would die of it. */
	sigemptyset(&wait);
	sigaddset(&wait, SIGTERM);
	sigprocmask(SIG_SETMASK, &wait, NULL);
	/* Away from 0 to 3 first, where they go. */
	channel = fcntl(channel, F_DUPFD, 10);
	null = open("/dev/null", O_RDWR);
	null = null < 0 ? -1 : fcntl(null, F_DUPFD, 10);
	if (channel < 0 || null < 0 || dup2(null, 0) < 0 || dup2(null, 1) < 0 || dup2(null, 2) < 0 || dup2(channel, 3) < 0)
		_exit(126);
	close_from(4);
	umask(022);
	if (chdir("/"))
		_exit(126);
	execve(arguments[0], arguments, environment);
	_exit(127);
}

bool seat_start(const struct task *task, const struct policy *policy, const struct decision *decision, struct seat *seat)
{
	static char configuration[4096];
	char *environment[] = {"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8", NULL, NULL};
	const char *told = getenv("SLURM_CONF"); /* slurmd's own, not the job's */
	struct arguments arguments = {.count = 0};
	bool done = false;
	int ends[2];

	seat->channel = -1;
	if (told && *told == '/' && (size_t)snprintf(configuration, sizeof configuration, "SLURM_CONF=%s", told) < sizeof configuration)
		environment[2] = configuration;
	if (put_together(&arguments, task, policy, decision) && !socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends)) {
		seat->pid = fork();
		if (seat->pid == 0)
			become(ends[1], arguments.items, environment);
		close(ends[1]);
		done = seat->pid > 0;
		if (done)
			seat->channel = ends[0];
		else
			close(ends[0]);
	}
	for (size_t each = 0; each < arguments.count; each++)
		free(arguments.items[each]);
	return done;
}
