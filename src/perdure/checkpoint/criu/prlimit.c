/* prlimit() for processes without CAP_SYS_RESOURCE: a question about another user's task is answered from /proc/PID/limits.
 *
 * Preloaded into `criu dump` by perdure where that capability is missing, as in many containers: the kernel then refuses even to tell
 * the limits of another user's task, though it shows them in /proc. Everything else is passed to the kernel as it was asked.
 * Uses only the oldest functions of the C library, so that one compiled against the system's fits the CRIU of a prefix.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

struct limits {
	unsigned long long soft, hard;
};

/* Labels of /proc/PID/limits by the number of the resource, as in fs/proc/base.c; alike on x86-64 and arm64. */
static const char *const labels[] = {
	"Max cpu time", "Max file size", "Max data size", "Max stack size", "Max core file size", "Max resident set",
	"Max processes", "Max open files", "Max locked memory", "Max address space", "Max file locks", "Max pending signals",
	"Max msgqueue size", "Max nice priority", "Max realtime priority", "Max realtime timeout",
};

static int starts_with(const char *text, const char *end, const char *prefix)
{
	while (*prefix)
		if (text == end || *text++ != *prefix++)
			return 0;
	return 1;
}

/* Read one number, or `unlimited`; moves *at behind it. Returns 0 when there is none. */
static int read_limit(const char **at, const char *end, unsigned long long *value)
{
	const char *p = *at;

	while (p < end && *p == ' ')
		p++;
	if (starts_with(p, end, "unlimited")) {
		*value = ~0ULL;
		*at = p + 9;
		return 1;
	}
	if (p == end || *p < '0' || *p > '9')
		return 0;
	for (*value = 0; p < end && *p >= '0' && *p <= '9'; p++)
		*value = *value * 10 + (unsigned long long)(*p - '0');
	*at = p;
	return 1;
}

static int read_proc(pid_t pid, int resource, struct limits *out)
{
	char path[40] = "/proc/", digits[12], text[4096];
	size_t length = 0, at = 6, count = 0;
	ssize_t got;
	int fd;

	for (unsigned int number = (unsigned int)pid; number || !count; number /= 10)
		digits[count++] = (char)('0' + number % 10);
	while (count)
		path[at++] = digits[--count];
	for (const char *p = "/limits"; *p; p++)
		path[at++] = *p;
	path[at] = 0;
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	while (length < sizeof(text) && (got = read(fd, text + length, sizeof(text) - length)) > 0)
		length += (size_t)got;
	close(fd);
	for (const char *line = text, *end = text + length; line < end;) {
		const char *stop = line;

		while (stop < end && *stop != '\n')
			stop++;
		if (starts_with(line, stop, labels[resource])) {
			const char *p = line;

			for (const char *label = labels[resource]; *label; label++)
				p++;
			if (read_limit(&p, stop, &out->soft) && read_limit(&p, stop, &out->hard))
				return 0;
			break;
		}
		line = stop + 1;
	}
	errno = EPERM;
	return -1;
}

typedef long (*syscall_function)(long, long, long, long, long, long, long);

static long kernel(long number, long a, long b, long c, long d, long e, long f)
{
	static syscall_function original;

	if (!original)
		original = (syscall_function)dlsym(RTLD_NEXT, "syscall");
	return original(number, a, b, c, d, e, f);
}

static long ask(long pid, long resource, long wanted, long old)
{
	long result = kernel(SYS_prlimit64, pid, resource, wanted, old, 0, 0);

	if (result == 0 || errno != EPERM || wanted || !old || pid <= 0)
		return result;
	if (resource < 0 || (size_t)resource >= sizeof(labels) / sizeof(labels[0]))
		return result;
	return read_proc((pid_t)pid, (int)resource, (struct limits *)old);
}

int prlimit64(pid_t pid, int resource, const void *wanted, void *old)
{
	return (int)ask(pid, resource, (long)wanted, (long)old);
}

int prlimit(pid_t pid, int resource, const void *wanted, void *old)
{
	return (int)ask(pid, resource, (long)wanted, (long)old);
}

/* CRIU asks through syscall(), whose arguments are all passed on as they came. */
long syscall(long number, ...)
{
	long a[6];
	va_list list;

	va_start(list, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(list, long);
	va_end(list);
	if (number == SYS_prlimit64)
		return ask((pid_t)a[0], (int)a[1], a[2], a[3]);
	return kernel(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
