/* The world of the stand-in: read anew at every call, so that a test may change it at any time. */
#define _GNU_SOURCE
#include "world.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

const char *world(void)
{
	const char *found = getenv("STANDIN_CUDA");
	return found ? found : "/nonexistent";
}

static FILE *of_world(const char *name)
{
	char path[4096];
	snprintf(path, sizeof path, "%s/%s", world(), name);
	return fopen(path, "re");
}

int world_gpus(struct gpu *gpus)
{
	int count = 0;
	FILE *file = of_world("gpus");
	if (!file)
		return 0;
	while (count < MOST_GPUS && fscanf(file, "%47s %lu %d.%d %d %63[^\n]", gpus[count].uuid, &gpus[count].memory_bytes, &gpus[count].major,
					   &gpus[count].minor, &gpus[count].mig, gpus[count].model) == 6)
		count++;
	fclose(file);
	return count;
}

int world_driver(char *version, size_t room, int *cuda)
{
	char key[32], value[128];
	FILE *file = of_world("driver");
	if (!file)
		return -1;
	while (fscanf(file, "%31s %127[^\n]", key, value) == 2) {
		if (version && !strcmp(key, "version"))
			snprintf(version, room, "%s", value);
		if (cuda && !strcmp(key, "cuda"))
			*cuda = atoi(value);
	}
	fclose(file);
	return 0;
}

int world_has(const char *feature)
{
	char line[256];
	int found = 0;
	FILE *file = of_world("driver");
	if (!file)
		return 0;
	while (fgets(line, sizeof line, file)) {
		if (strncmp(line, "features ", 9))
			continue;
		for (char *word = strtok(line + 9, " \n"); word; word = strtok(NULL, " \n"))
			found |= !strcmp(word, feature);
	}
	fclose(file);
	return found;
}

int world_hides(const char *uuid)
{
	const char *hidden = getenv("NVIDIA_STANDIN_HIDDEN");
	return hidden && strstr(hidden, uuid);
}

int world_refuses(const char *uuid, const char *at)
{
	char name[48], where[16];
	int number, found = 0;
	FILE *file = of_world("refused");
	while (file && fscanf(file, "%47s %d %15s", name, &number, where) == 3)
		if (!strcmp(name, uuid) && !strcmp(where, at))
			found = number;
	if (file)
		fclose(file);
	return found;
}

uint64_t start_ticks(int pid)
{
	char path[64], text[1024];
	snprintf(path, sizeof path, "/proc/%d/stat", pid);
	FILE *file = fopen(path, "re");
	if (!file)
		return 0;
	size_t got = fread(text, 1, sizeof text - 1, file);
	fclose(file);
	text[got] = 0;
	char *rest = strrchr(text, ')');
	unsigned long long ticks = 0;
	char state = 'Z';
	if (rest)
		sscanf(rest + 2, "%c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu", &state, &ticks);
	return state == 'Z' || state == 'X' ? 0 : ticks;
}

/* Whether a living process has the file mapped. Its start time would not do: one that was restored sees another than we do. */
static int has_mapped(int pid, const char *name)
{
	char path[64], line[8192];
	size_t length = strlen(name);
	int found = 0;
	snprintf(path, sizeof path, "/proc/%d/maps", pid);
	FILE *maps = fopen(path, "re");
	while (maps && !found && fgets(line, sizeof line, maps)) {
		size_t end = strcspn(line, "\n");
		found = end > length && line[end - length - 1] == '/' && !strncmp(line + end - length, name, length);
	}
	if (maps)
		fclose(maps);
	return found;
}

/* The number that a process has in its own PID namespace, the last one of the line. */
static int own_number(int pid)
{
	char path[64], line[4096];
	int found = 0;
	snprintf(path, sizeof path, "/proc/%d/status", pid);
	FILE *status = fopen(path, "re");
	while (status && fgets(line, sizeof line, status))
		if (!strncmp(line, "NSpid:", 6))
			found = atoi(strrchr(line, '\t'));
	if (status)
		fclose(status);
	return found;
}

/* Who has the file mapped, of those that know themselves by that number; 0: nobody any more. */
static int owner_of(int number, const char *name)
{
	int found = 0;
	DIR *folder = opendir("/proc");
	if (!folder)
		return 0;
	for (struct dirent *entry; !found && (entry = readdir(folder));) {
		int pid = atoi(entry->d_name);
		if (pid > 0 && own_number(pid) == number && has_mapped(pid, name))
			found = pid;
	}
	closedir(folder);
	return found;
}

uint64_t world_used(const char *uuid, void (*each)(void *, int, uint64_t), void *context)
{
	char path[4096], file[8192];
	uint64_t sum = 0;
	snprintf(path, sizeof path, "%s/memory/%s", world(), uuid);
	DIR *folder = opendir(path);
	if (!folder)
		return 0;
	for (struct dirent *entry; (entry = readdir(folder));) {
		int pid;
		unsigned long long ticks;
		struct stat there;
		if (sscanf(entry->d_name, "%d-%llu-", &pid, &ticks) != 2)
			continue;
		snprintf(file, sizeof file, "%s/%s", path, entry->d_name);
		pid = owner_of(pid, entry->d_name);
		if (!pid || stat(file, &there))
			continue; /* a driver frees what a process had that has ended */
		sum += there.st_size;
		if (each)
			each(context, pid, there.st_size);
	}
	closedir(folder);
	return sum;
}

void uuid_bytes(const char *text, unsigned char bytes[16])
{
	const char *at = text + 4;
	for (int index = 0; index < 16; index++) {
		unsigned value = 0;
		if (*at == '-')
			at++;
		sscanf(at, "%2x", &value);
		bytes[index] = value;
		at += 2;
	}
}
