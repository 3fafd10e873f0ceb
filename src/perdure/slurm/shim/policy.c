/* The admin's policy: /etc/perdure/slurm.shim, which `perdure slurm policy apply` writes. docs/howto/slurm-install.md has its format.
 *
 * A file that is not whole, or that others than root could change, counts as absent, and slurmd's log says why.
 */
#define _GNU_SOURCE
#include "shim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC "perdure-shim 1"
#define MOST_BYTES (256 * 1024)

static const char *const kinds[] = {"partition", "qos", "account", "user"};
#define KINDS (sizeof kinds / sizeof *kinds)

/* The value behind `word` and a space; NULL when the line begins otherwise. */
static const char *value_of(const char *line, const char *prefix, const char *word)
{
	size_t a = strlen(prefix), b = strlen(word);

	if (strncmp(line, prefix, a) || strncmp(line + a, word, b) || line[a + b] != ' ' || !line[a + b + 1])
		return NULL;
	return line + a + b + 1;
}

static const char *next_line(const struct policy *policy, const char *line)
{
	line += strlen(line) + 1;
	return line < policy->text + policy->size ? line : NULL;
}

static bool is_number(const char *name)
{
	return strspn(name, "0123456789") == strlen(name);
}

static bool read_line(struct policy *policy, const char *line)
{
	const char *option = value_of(line, "", "option");

	if (option) {
		if (policy->option_count == MOST_OPTIONS || strlen(option) >= MOST_NAME || !strchr(option, '='))
			return false;
		strcpy(policy->options[policy->option_count++], option);
		return true;
	}
	for (size_t kind = 0; kind < KINDS; kind++) {
		const char *never = value_of(line, "never-", kinds[kind]), *name = never ? never : value_of(line, "", kinds[kind]);

		if (name) {
			bool of_record = strcmp(kinds[kind], "user") != 0;

			policy->needs_record |= of_record;
			policy->forbids_by_record |= of_record && never;
			policy->names_users |= !of_record && !is_number(name);
			return true;
		}
	}
	return false;
}

static bool take_apart(struct policy *policy)
{
	long lines = -1, told;
	char *end;

	for (const char *line = policy->text; line; line = next_line(policy, line), lines++) {
		if (lines < 0) {
			if (strcmp(line, MAGIC))
				return false;
		} else if (!next_line(policy, line)) {
			const char *count = value_of(line, "", "end");

			if (!count)
				return false;
			told = strtol(count, &end, 10);
			return !*end && told == lines;
		} else if (!read_line(policy, line)) {
			return false;
		}
	}
	return false;
}

bool policy_read(const char *path, struct policy *policy, char *problem, size_t room)
{
	struct stat found;
	ssize_t got = -1;
	int descriptor;

	memset(policy, 0, sizeof *policy);
	descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (descriptor < 0) {
		if (errno != ENOENT)
			snprintf(problem, room, "%s: %s", path, strerror(errno));
		return errno == ENOENT;
	}
	if (fstat(descriptor, &found) || !S_ISREG(found.st_mode) || found.st_uid != geteuid() || found.st_mode & 022) {
		snprintf(problem, room, "%s can be changed by others than root", path);
	} else if (found.st_size < 1 || found.st_size > MOST_BYTES || !(policy->text = malloc((size_t)found.st_size + 1))) {
		snprintf(problem, room, "%s is empty or too large", path);
	} else {
		got = read(descriptor, policy->text, (size_t)found.st_size);
		if (got != found.st_size || policy->text[got - 1] != '\n' || memchr(policy->text, '\0', (size_t)got)) {
			snprintf(problem, room, "%s is not a whole file", path);
			got = -1;
		}
	}
	close(descriptor);
	if (got < 0) {
		policy_free(policy);
		return false;
	}
	policy->size = (size_t)got;
	for (ssize_t at = 0; at < got; at++)
		if (policy->text[at] == '\n')
			policy->text[at] = '\0';
	policy->text[got] = '\0';
	policy->is_there = take_apart(policy);
	if (policy->is_there)
		return true;
	snprintf(problem, room, "%s is not a policy of this format: perdure slurm policy apply writes it anew", path);
	policy_free(policy);
	return false;
}

void policy_free(struct policy *policy)
{
	free(policy->text);
	memset(policy, 0, sizeof *policy);
}

static bool is_user(const char *name, const struct task *task)
{
	char number[16];

	if (is_number(name)) {
		snprintf(number, sizeof number, "%lu", (unsigned long)task->uid);
		return !strcmp(name, number);
	}
	return task->user[0] && !strcmp(name, task->user);
}

bool policy_names(const struct policy *policy, const char *prefix, const struct task *task, const struct record *record)
{
	if (!policy->is_there)
		return false;
	for (const char *line = policy->text; line; line = next_line(policy, line)) {
		const char *name;

		if ((name = value_of(line, prefix, "user")) && is_user(name, task))
			return true;
		if (!record)
			continue;
		/* Slurm keeps the names of QOS and accounts in small letters. */
		if (((name = value_of(line, prefix, "partition")) && !strcmp(name, record->partition)) ||
		    ((name = value_of(line, prefix, "qos")) && !strcasecmp(name, record->qos)) ||
		    ((name = value_of(line, prefix, "account")) && !strcasecmp(name, record->account)))
			return true;
	}
	return false;
}
