/* Whether a task is opted in, from what it says itself and what the admin says. No call of Slurm here: the record is asked for through
 * `load`, and only where the decision hangs on it.
 *
 * In order: PERDURE in the environment, the job's comment, the admin's policy; a line of the policy that forbids beats them all.
 */
#define _GNU_SOURCE
#include "shim.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

static bool is_one_of(const char *text, size_t length, const char *const *words)
{
	for (; *words; words++)
		if (strlen(*words) == length && !strncasecmp(text, *words, length))
			return true;
	return false;
}

enum wish wish_read(const char *text)
{
	static const char *const no[] = {"0", "never", "no", "off", "false", NULL};

	if (!*text)
		return SAYS_NOTHING;
	return is_one_of(text, strlen(text), no) ? SAYS_NO : SAYS_YES;
}

/* Anywhere in the comment: the word `perdure`, alone or with `:` and options; words end at white space or a semicolon. */
enum wish comment_read(const char *comment, char *options, size_t room)
{
	static const char word[] = "perdure";
	const char *at = comment;

	*options = '\0';
	for (;;) {
		size_t length;

		at += strspn(at, " \t\r\n;");
		if (!*at)
			return SAYS_NOTHING;
		length = strcspn(at, " \t\r\n;");
		if (length >= sizeof word - 1 && !strncmp(at, word, sizeof word - 1)) {
			const char *rest = at + sizeof word - 1;
			size_t left = length - (sizeof word - 1);

			if (!left)
				return SAYS_YES;
			if (*rest == ':') {
				if (left > room)
					return SAYS_NO;
				snprintf(options, room, "%.*s", (int)(left - 1), rest + 1);
				return wish_read(options) == SAYS_NO ? SAYS_NO : SAYS_YES;
			}
		}
		at += length;
	}
}

static void refuse(struct decision *decision, const char *why)
{
	decision->verdict = NOT_MEANT;
	snprintf(decision->refusal, sizeof decision->refusal, "%s", why);
}

static void weigh(const struct task *task, const struct record *record, struct decision *decision)
{
	if (task->nodes > 1 || record->nodes > 1)
		refuse(decision, "jobs of more than one node cannot be saved; this one runs unmanaged");
	else if (record->het_job_id || task->is_part)
		refuse(decision, "heterogeneous jobs cannot be saved; this one runs unmanaged");
	else if (record->in_container || task->in_container)
		refuse(decision, "what runs in a container (--container) cannot be saved; it runs unmanaged");
	else if (task->tasks > 1)
		refuse(decision, "steps of more than one task cannot be saved; this one runs unmanaged");
	else
		decision->verdict = MEANT;
}

void decide(const struct task *task, const struct policy *policy, bool (*load)(uint32_t, struct record *), struct decision *decision)
{
	enum wish wish = wish_read(task->wish);
	struct record record;
	bool has_record = false;

	memset(decision, 0, sizeof *decision);
	memset(&record, 0, sizeof record);
	if (!task->is_first || wish == SAYS_NO)
		return;
	decision->by_itself = wish == SAYS_YES;
	if (wish == SAYS_NOTHING || policy->forbids_by_record) {
		has_record = load(task->job, &record);
		decision->is_unknown = !has_record && wish == SAYS_NOTHING;
		if (!has_record && wish == SAYS_YES)
			refuse(decision, "Slurm's controller does not say what this job is; it runs unmanaged");
		if (!has_record)
			return;
	}
	if (wish == SAYS_YES)
		snprintf(decision->options, sizeof decision->options, "%s", task->wish);
	else
		wish = comment_read(record.comment, decision->options, sizeof decision->options);
	if (wish == SAYS_NO)
		return;
	decision->by_itself = wish == SAYS_YES;
	if (policy_names(policy, "never-", task, has_record ? &record : NULL)) {
		if (decision->by_itself)
			refuse(decision, "the site's policy excludes this job; it runs unmanaged");
		return;
	}
	if (!decision->by_itself && !policy_names(policy, "", task, &record))
		return;
	weigh(task, &record, decision);
}
