/* The stand-in's libnvidia-ml.so.1: what the world's folder says of driver and devices. */
#include "world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9 };

static int find(void *device, struct gpu *found)
{
	struct gpu gpus[MOST_GPUS];
	long index = (long)device - 1;
	if (index < 0 || index >= world_gpus(gpus))
		return INVALID_ARGUMENT;
	*found = gpus[index];
	return SUCCESS;
}

/* What is answered of a device instead: by a control group that keeps it from this process, or as the world says. */
static int refusal(const struct gpu *gpu, const char *at)
{
	return world_hides(gpu->uuid) ? NO_PERMISSION : world_refuses(gpu->uuid, at);
}

EXPORT int nvmlInit_v2(void) { return world_driver(NULL, 0, NULL) ? DRIVER_NOT_LOADED : SUCCESS; }
EXPORT int nvmlInitWithFlags(unsigned flags) { return (void)flags, nvmlInit_v2(); }
EXPORT int nvmlShutdown(void) { return SUCCESS; }
EXPORT const char *nvmlErrorString(int number) { return number ? "stand-in error" : "success"; }
EXPORT int nvmlSystemGetDriverVersion(char *text, unsigned length) { return world_driver(text, length, NULL) ? DRIVER_NOT_LOADED : SUCCESS; }
EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *version) { return world_driver(NULL, 0, version) ? DRIVER_NOT_LOADED : SUCCESS; }

EXPORT int nvmlDeviceGetCount_v2(unsigned *count)
{
	struct gpu gpus[MOST_GPUS];
	*count = world_gpus(gpus);
	return SUCCESS;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
	struct gpu gpu;
	*device = (void *)(index + 1L);
	int result = find(*device, &gpu);
	return result ? result : refusal(&gpu, "handle");
}

EXPORT int nvmlDeviceGetUUID(void *device, char *text, unsigned length)
{
	struct gpu gpu;
	int result = find(device, &gpu);
	if (!result)
		snprintf(text, length, "%s", gpu.uuid);
	return result;
}

EXPORT int nvmlDeviceGetName(void *device, char *text, unsigned length)
{
	struct gpu gpu;
	int result = find(device, &gpu);
	if (!result)
		snprintf(text, length, "%s", gpu.model);
	return result;
}

EXPORT int nvmlDeviceGetMinorNumber(void *device, unsigned *minor)
{
	struct gpu gpu;
	*minor = (unsigned)((long)device - 1);
	return find(device, &gpu);
}

struct memory_v2 {
	unsigned version;
	unsigned long long total, reserved, free, used;
};

EXPORT int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory_v2 *memory)
{
	struct gpu gpu;
	int result = find(device, &gpu);
	if (!result)
		result = refusal(&gpu, "memory");
	if (result)
		return result;
	memory->total = gpu.memory_bytes;
	memory->used = world_used(gpu.uuid, NULL, NULL);
	memory->reserved = 0;
	memory->free = memory->total - memory->used;
	return SUCCESS;
}

struct memory {
	unsigned long long total, free, used;
};

EXPORT int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory)
{
	struct memory_v2 found;
	int result = nvmlDeviceGetMemoryInfo_v2(device, &found);
	if (!result)
		*memory = (struct memory){found.total, found.free, found.used};
	return result;
}

EXPORT int nvmlDeviceGetVirtualizationMode(void *device, unsigned *mode)
{
	struct gpu gpu;
	*mode = world_has("vgpu") ? 2 : 0;
	return find(device, &gpu);
}

EXPORT int nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending)
{
	struct gpu gpu;
	int result = find(device, &gpu);
	if (!result)
		*current = *pending = gpu.mig;
	return result;
}

EXPORT int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor)
{
	struct gpu gpu;
	int result = find(device, &gpu);
	if (!result)
		*major = gpu.major, *minor = gpu.minor;
	return result;
}

struct process {
	unsigned pid;
	unsigned long long bytes;
	unsigned instance, compute;
};

struct listing {
	unsigned room, count;
	struct process *found;
};

static void note(void *context, int pid, uint64_t bytes)
{
	struct listing *listing = context;
	for (unsigned index = 0; index < listing->count && index < listing->room; index++)
		if (listing->found[index].pid == (unsigned)pid) {
			listing->found[index].bytes += bytes;
			return;
		}
	if (listing->count < listing->room)
		listing->found[listing->count] = (struct process){pid, bytes, ~0U, ~0U};
	listing->count++;
}

static int list(void *device, unsigned *count, struct process *found, int is_mps)
{
	struct gpu gpu;
	int result = find(device, &gpu);
	struct listing listing = {found ? *count : 0, 0, found};
	if (result)
		return result;
	if (world_has("mps") == is_mps && !world_has("no-pids"))
		world_used(gpu.uuid, note, &listing);
	*count = listing.count;
	return listing.count > listing.room ? INSUFFICIENT_SIZE : SUCCESS;
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, struct process *found) { return list(device, count, found, 0); }
EXPORT int nvmlDeviceGetMPSComputeRunningProcesses_v3(void *device, unsigned *count, struct process *found) { return list(device, count, found, 1); }
