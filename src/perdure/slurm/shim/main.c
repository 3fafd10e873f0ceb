/* The program that stands for the command of a task that is kept: Slurm starts it in the command's place, as the user, when everything
 * that prepares the task is done. Where the task is not kept after all, it becomes the command.
 *
 * It is the user's process from its first instruction on, and nothing that root does hangs on what it says.
 */
#define _GNU_SOURCE
#include "shim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

extern char **environ;

static const char lost[] = "what is to be run was taken out of the environment (" PERDURE_TASK "); remove that from what prepares the task";

/* What the plugin wrote: the socket to the seat, the seat, whether it is a batch script, and the command's name, which may be any text. */
static char *take_apart(char *told, struct seat *seat, int *is_batch)
{
	int number, end = 0;

	if (!told || sscanf(told, "%d %d %d%n", &seat->channel, &number, is_batch, &end) != 3 || told[end] != ' ')
		return NULL;
	seat->pid = number;
	return strdup(told + end + 1);
}

static struct words words_of(char **items)
{
	struct words words = {items, 0};

	while (items[words.count])
		words.count++;
	return words;
}

/* As Slurm does: a path is run as it is, and another name is looked for. */
static int become(char **argv)
{
	char text[MOST_WHY];
	int number;

	if (strchr(argv[0], '/'))
		execve(argv[0], argv, environ);
	else
		execvpe(argv[0], argv, environ);
	number = errno;
	snprintf(text, sizeof text, "%s cannot be run: %s", argv[0], strerror(number));
	say(text);
	return number;
}

int main(int count, char **argv)
{
	struct seat seat;
	char *told, *name;
	const char *why;
	int is_batch;

	prctl(PR_SET_NAME, "perdure-task");
	name = take_apart(getenv(PERDURE_TASK), &seat, &is_batch);
	if (!name || count < 1) {
		say(lost);
		return 1;
	}
	argv[0] = name;
	unsetenv(PERDURE_TASK);
	fcntl(seat.channel, F_SETFD, FD_CLOEXEC);
	/* Of the script around this step. */
	told = getenv(PERDURE_UNMANAGED);
	told = told ? strdup(told) : NULL;
	unsetenv(PERDURE_UNMANAGED);
	why = task_hand_over(&seat, words_of(argv), words_of(environ), is_batch);
	if (*why) {
		if (!told || strcmp(why, told))
			say(why);
		setenv(PERDURE_UNMANAGED, why, 1);
	}
	return become(argv);
}
