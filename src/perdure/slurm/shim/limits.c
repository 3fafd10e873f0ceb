/* The user's resource limits, which the task is to have when the seat looks at it. */
#define _GNU_SOURCE
#include "shim.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

/* Slurm lays the user's limits on a task only after this: they come in the environment until then. The seat reads them off this process,
 * which stands where the command would. Returns the environment without them.
 */
struct words limits_take(struct words environment)
{
	static const struct {
		const char *name;
		int resource;
	} limits[] = {
		{"CPU", RLIMIT_CPU},
		{"FSIZE", RLIMIT_FSIZE},
		{"DATA", RLIMIT_DATA},
		{"STACK", RLIMIT_STACK},
		{"CORE", RLIMIT_CORE},
		{"NPROC", RLIMIT_NPROC},
		{"RSS", RLIMIT_RSS},
		{"NOFILE", RLIMIT_NOFILE},
		{"MEMLOCK", RLIMIT_MEMLOCK},
		{"AS", RLIMIT_AS},
	};
	static const char prefix[] = "SLURM_RLIMIT_";
	char **kept = malloc((environment.count + 1) * sizeof *kept);
	size_t count = 0;

	if (!kept)
		return environment;
	for (size_t each = 0; each < environment.count; each++) {
		const char *item = environment.items[each], *name = item + sizeof prefix - 1, *equals = strchr(item, '=');
		struct rlimit limit;
		const char *value;
		char *end;

		if (!equals || strncmp(item, prefix, sizeof prefix - 1)) {
			kept[count++] = environment.items[each];
			continue;
		}
		for (size_t which = 0; which < sizeof limits / sizeof *limits; which++) {
			size_t length = strlen(limits[which].name);

			if (length != (size_t)(equals - name) || strncmp(name, limits[which].name, length))
				continue;
			if (getrlimit(limits[which].resource, &limit))
				continue;
			value = equals + 1 + (equals[1] == 'U'); /* asked for with --propagate */
			limit.rlim_cur = strtoull(value, &end, 10);
			if (end == value || *end)
				continue;
			if (limit.rlim_cur > limit.rlim_max)
				limit.rlim_cur = limit.rlim_max;
			setrlimit(limits[which].resource, &limit);
		}
	}
	return (struct words){kept, count};
}
