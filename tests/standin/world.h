/* What both libraries of the stand-in share: the world's folder and its devices. See __init__.py for the files in it. */
#ifndef WORLD_H
#define WORLD_H

#include <stddef.h>
#include <stdint.h>

#define MOST_GPUS 16

struct gpu {
	char uuid[48]; /* GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx */
	uint64_t memory_bytes;
	int major, minor, mig;
	char model[64];
};

const char *world(void);
int world_gpus(struct gpu *gpus);
int world_driver(char *version, size_t room, int *cuda);
int world_has(const char *feature);
/* Whether a control group would keep the device from this process. */
int world_hides(const char *uuid);
/* The error of NVML that a device answers with when its `handle` or its `memory` is asked for; 0: none. */
int world_refuses(const char *uuid, const char *at);
/* Bytes that living processes have on a device; `each`, if given, is told of every allocation. */
uint64_t world_used(const char *uuid, void (*each)(void *context, int pid, uint64_t bytes), void *context);
uint64_t start_ticks(int pid);
void uuid_bytes(const char *text, unsigned char bytes[16]);

#endif
