/* What Slurm's controller says of a job. Asked in a child process with a limit: a controller that is away, or a lock that some thread of
 * slurmstepd held when the task was forked, must not keep the task.
 */
#define _GNU_SOURCE
#define SLURM_BACKWARD_COMPAT /* from 25.11 on, a job's number is no argument without it */
#include "shim.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <slurm/slurm.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define LONGEST_MS 20000 /* a controller of many jobs may be busy for some seconds; one that is away refuses sooner */

static void copy(char *into, size_t room, const char *from)
{
	snprintf(into, room, "%s", from ? from : "");
}

/* A text that does not fit is left out whole: half a comment may say something else. */
static void copy_whole(char *into, size_t room, const char *from)
{
	copy(into, room, from && strlen(from) < room ? from : "");
}

static void ask(uint32_t job, int into)
{
	job_info_msg_t *answer = NULL;
	struct record record;
	const slurm_job_info_t *found;

	if (slurm_load_job(&answer, job, 0) || !answer || !answer->record_count)
		_exit(1);
	/* The number of an array's last task is that of the array, whose other tasks are told of too. */
	found = &answer->job_array[0];
	for (uint32_t each = 0; each < answer->record_count; each++)
		if (answer->job_array[each].job_id == job)
			found = &answer->job_array[each];
	memset(&record, 0, sizeof record);
	copy_whole(record.partition, sizeof record.partition, found->partition);
	copy_whole(record.qos, sizeof record.qos, found->qos);
	copy_whole(record.account, sizeof record.account, found->account);
	copy_whole(record.comment, sizeof record.comment, found->comment);
	record.nodes = found->num_nodes;
	record.het_job_id = found->het_job_id;
	record.in_container = found->container && *found->container;
	_exit(write(into, &record, sizeof record) != sizeof record);
}

bool record_load(uint32_t job, struct record *record)
{
	struct pollfd waited;
	ssize_t got = -1;
	int ends[2];
	pid_t child;

	if (pipe(ends))
		return false;
	child = fork();
	if (child == 0)
		ask(job, ends[1]);
	close(ends[1]);
	if (child > 0) {
		waited = (struct pollfd){.fd = ends[0], .events = POLLIN};
		if (poll(&waited, 1, LONGEST_MS) == 1)
			got = read(ends[0], record, sizeof *record); /* less than PIPE_BUF: whole or not at all */
		kill(child, SIGKILL);
		while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
			;
	}
	close(ends[0]);
	return got == sizeof *record;
}
