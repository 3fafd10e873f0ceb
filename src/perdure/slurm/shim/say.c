/* What the plugin and the program that stands for the task both do. */
#define _GNU_SOURCE
#include "shim.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#define LAST_MS 2000

void say(const char *text)
{
	char line[4096];
	int size = snprintf(line, sizeof line, "perdure: %s\n", text);

	if (size >= (int)sizeof line) {
		size = sizeof line - 1;
		line[size - 1] = '\n';
	}
	for (ssize_t at = 0, sent; at < size; at += sent) {
		sent = write(2, line + at, (size_t)(size - at));
		if (sent < 0 && errno == EINTR)
			sent = 0;
		else if (sent <= 0)
			return;
	}
}

/* The seat has said its last word, or is gone: it must not be found by the command as a child of its own. */
static void see_off(pid_t seat)
{
	for (int waited_ms = 0; waited_ms < LAST_MS; waited_ms += 10) {
		if (waitpid(seat, NULL, WNOHANG) != 0)
			return;
		poll(NULL, 0, 10);
	}
}

void task_keep(const struct seat *seat)
{
	close(seat->channel);
	see_off(seat->pid);
}
