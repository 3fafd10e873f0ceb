/* The user's side, in the program that stands for the command: send the command to the seat, pass signals on, write what the seat says,
 * end as the workload ended. When nothing of it was started, the program may still become the command.
 */
#define _GNU_SOURCE
#include "reply.h"
#include "shim.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MOST_LINE (1u << 20)
#define LAST_MS 2000
#define MEANT_TOO_MS 1000
#define NO_PROGRAM 126 /* what the seat ends with when it cannot become one */

static const char not_handed_over[] = "the job cannot be handed over; it runs unmanaged";

/* What a job may be sent and live on; those of SIGRTMIN to SIGRTMAX, too. */
static const int passed_on[] = {
	SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCONT, SIGTSTP, SIGWINCH,
	SIGALRM, SIGVTALRM, SIGPROF, SIGIO, SIGPWR, SIGURG, SIGXCPU,
};

/* Codes of errors that say that the workload runs already: a second copy must not. */
static const char *const elsewhere[] = {"workload-busy", "stale-life", NULL};

enum end { RUN_AS_EVER, ENDED };

struct talk {
	char *line;
	size_t size, room;
	bool skips; /* the rest of a line that is too long */
	bool is_started;
	bool ran_before; /* an attempt before this one; what it did may be saved */
	pid_t seat;
	int ended_by; /* a signal that would have ended the command, had it run already */
	bool is_over;
	enum end end;
	int status;
	char why[MOST_WHY]; /* the task is run as ever */
};

static void put_error(const struct reply *reply, char *text, size_t room, const char *and_then)
{
	snprintf(text, room, "%s%s%s%s%s", reply->text, *reply->hint ? " (" : "", reply->hint, *reply->hint ? ")" : "", and_then);
}

static void is_over(struct talk *talk, enum end end, int status)
{
	talk->is_over = true;
	talk->end = end;
	talk->status = status;
}

static void hear(struct talk *talk)
{
	struct reply reply = reply_read(talk->line);
	bool runs_elsewhere = false;
	char text[MOST_WHY];

	switch (reply.kind) {
	case REPLY_SAID:
		say(reply.text);
		break;
	case REPLY_STARTED:
		talk->is_started = true;
		break;
	case REPLY_UNMANAGED:
		if (talk->is_started)
			break;
		snprintf(talk->why, sizeof talk->why, "%s", reply.text ? reply.text : "");
		is_over(talk, RUN_AS_EVER, 0);
		break;
	case REPLY_ENDED:
		for (const char *const *code = elsewhere; *code; code++)
			runs_elsewhere |= !strcmp(reply.code, *code);
		if (reply.is_error && !talk->is_started && !runs_elsewhere) {
			put_error(&reply, talk->why, sizeof talk->why, "; it runs unmanaged");
			is_over(talk, RUN_AS_EVER, 0);
		} else {
			if (reply.is_error) {
				put_error(&reply, text, sizeof text, "");
				say(text);
			}
			is_over(talk, ENDED, reply.status);
		}
		break;
	case REPLY_OTHER:
		break;
	}
}

static void take_apart(struct talk *talk, const char *bytes, size_t size)
{
	for (size_t at = 0; at < size && !talk->is_over; at++) {
		if (bytes[at] == '\n') {
			talk->line[talk->size] = '\0';
			if (!talk->skips)
				hear(talk);
			talk->size = 0;
			talk->skips = false;
		} else if (talk->size + 1 < talk->room) {
			talk->line[talk->size++] = bytes[at];
		} else {
			talk->skips = true;
		}
	}
}

static void pass_on(struct talk *talk, int signals, int channel)
{
	struct signalfd_siginfo came;
	char number;

	while (read(signals, &came, sizeof came) == sizeof came) {
		number = (char)came.ssi_signo;
		if (number == SIGTERM || number == SIGINT || number == SIGHUP || number == SIGQUIT)
			talk->ended_by = number;
		/* Nobody who does not listen may keep the task: then the seat is gone, which is seen otherwise. */
		(void)!send(channel, &number, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
	}
}

/* Without a word, and before it began. Whoever ends a job may signal the seat alone, or one process of it after the other; and what was
 * run before may be saved, so that it must not start over.
 */
static void lost_seat(struct talk *talk, int signals, int channel)
{
	static const char gone[] = "the process that was to keep this workload is gone before it began";
	struct pollfd waited = {.fd = signals, .events = POLLIN};
	int status = 0, waited_ms = 0;
	pid_t reaped;

	while (!(reaped = waitpid(talk->seat, &status, WNOHANG)) && waited_ms < LAST_MS) {
		poll(NULL, 0, 10);
		waited_ms += 10;
	}
	if (!reaped && !talk->ran_before) {
		snprintf(talk->why, sizeof talk->why, "%s", not_handed_over);
		is_over(talk, RUN_AS_EVER, 0);
		return;
	}
	if (reaped == talk->seat && WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM)
		talk->ended_by = SIGTERM;
	pass_on(talk, signals, channel);
	for (waited_ms = 0; !talk->ended_by && waited_ms < MEANT_TOO_MS; waited_ms += 10) {
		poll(&waited, 1, 10);
		pass_on(talk, signals, channel);
	}
	if (talk->ended_by) {
		is_over(talk, ENDED, 128 + talk->ended_by);
	} else if (talk->ran_before && !(reaped == talk->seat && WIFEXITED(status) && WEXITSTATUS(status) >= NO_PROGRAM)) {
		snprintf(talk->why, sizeof talk->why, "%s; what may be saved of the job is not started over (scontrol requeue runs it again)", gone);
		say(talk->why);
		is_over(talk, ENDED, 1);
	} else {
		snprintf(talk->why, sizeof talk->why, "%s; it runs unmanaged", gone);
		is_over(talk, RUN_AS_EVER, 0);
	}
}

static void listen_to(struct talk *talk, int signals, int channel)
{
	char bytes[4096];
	ssize_t got = recv(channel, bytes, sizeof bytes, MSG_DONTWAIT);

	if (got > 0) {
		take_apart(talk, bytes, (size_t)got);
	} else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
		if (talk->is_started) {
			say("the process that kept this workload is gone, and the workload with it");
			is_over(talk, ENDED, 1);
		} else {
			lost_seat(talk, signals, channel);
		}
	}
}

static void converse(struct talk *talk, int signals, int channel)
{
	struct pollfd waited[2] = {{.fd = signals, .events = POLLIN}, {.fd = channel, .events = POLLIN}};

	while (!talk->is_over) {
		/* With a limit of less than two descriptors the kernel refuses to wait; then it is asked now and then. */
		if (poll(waited, 2, -1) < 0 && errno != EINTR)
			nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
		pass_on(talk, signals, channel);
		listen_to(talk, signals, channel);
	}
}

static void end_with(int status, bool is_batch)
{
	struct rlimit none = {0, 0};
	int number = status - 128;

	/* A step is one program: Slurm is shown the signal that ended it. A batch script's status is its shell's. */
	if (!is_batch && number > 0 && number < SIGRTMIN) {
		sigset_t only;

		setrlimit(RLIMIT_CORE, &none); /* it would be of this program, not of the command */
		signal(number, SIG_DFL);
		sigemptyset(&only);
		sigaddset(&only, number);
		sigprocmask(SIG_UNBLOCK, &only, NULL);
		kill(getpid(), number);
	}
	_exit(status & 0xff);
}

static bool ran_before(struct words environment)
{
	static const char name[] = "SLURM_RESTART_COUNT=";

	for (size_t each = 0; each < environment.count; each++)
		if (!strncmp(environment.items[each], name, sizeof name - 1))
			return atoi(environment.items[each] + sizeof name - 1) > 0;
	return false;
}

const char *task_hand_over(const struct seat *seat, struct words argv, struct words environment, bool is_batch)
{
	static struct talk talk;
	char cwd[PATH_MAX];
	sigset_t ours, before;
	mode_t mask = umask(0);
	int signals;

	umask(mask);
	talk = (struct talk){.room = MOST_LINE, .line = malloc(MOST_LINE), .seat = seat->pid, .ran_before = ran_before(environment)};
	sigemptyset(&ours);
	for (size_t each = 0; each < sizeof passed_on / sizeof *passed_on; each++)
		sigaddset(&ours, passed_on[each]);
	for (int number = SIGRTMIN; number <= SIGRTMAX; number++)
		sigaddset(&ours, number);
	sigprocmask(SIG_BLOCK, &ours, &before);
	signals = signalfd(-1, &ours, SFD_NONBLOCK | SFD_CLOEXEC);
	if (talk.line && signals >= 0 && getcwd(cwd, sizeof cwd) && request_send(seat->channel, cwd, mask, argv, environment)) {
		converse(&talk, signals, seat->channel);
	} else if (talk.line && signals >= 0) {
		listen_to(&talk, signals, seat->channel); /* a seat that does not want the task says why, and may be gone */
		if (!talk.is_over)
			lost_seat(&talk, signals, seat->channel);
	} else {
		snprintf(talk.why, sizeof talk.why, "%s", not_handed_over);
	}
	task_keep(seat);
	if (talk.end == ENDED)
		end_with(talk.status, is_batch);
	if (talk.ended_by)
		end_with(128 + talk.ended_by, is_batch);
	if (signals >= 0)
		close(signals);
	sigprocmask(SIG_SETMASK, &before, NULL);
	free(talk.line);
	return talk.why;
}
