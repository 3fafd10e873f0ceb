/* The stand-in's libcuda.so.1: the driver's checkpoint interface over real processes.
 *
 * A process that calls cuInit keeps `standin_self` in its own memory, where whoever asks about it finds it: so that it is right again after
 * the process was restored from images. One thread of it carries out what others ask through a pipe, as the real driver's restore thread
 * does. "GPU memory" is a file below memory/UUID, mapped shared; a checkpoint moves it into anonymous memory at the same address and closes
 * the device files, a restore moves it back. Every other call of CUDA, and every step of a kernel, takes the lock that a lock holds. */
#define _GNU_SOURCE
#include "world.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <poll.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define PAGE 4096UL
#define MOST_ALLOCATIONS 32
#define MAGIC 0x5374616e64696e31ULL

enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_CONTEXT = 201, OPERATING_SYSTEM = 304,
       ILLEGAL_STATE = 401, NOT_FOUND = 500, NOT_READY = 600, NOT_SUPPORTED = 801, UNKNOWN = 999 };
enum { RUNNING, LOCKED, CHECKPOINTED, FAILED, CHECKPOINTING, RESTORING };
enum { OP_LOCK, OP_CHECKPOINT, OP_RESTORE, OP_UNLOCK, OP_COMPLETE, OP_FAIL };

struct allocation {
	int gpu;
	char *address;
	uint64_t bytes;
	char file[96];
};

struct self {
	uint64_t magic;
	int initialised, state, outside; /* outside: its GPU memory was copied away by somebody else */
	int request_read, request_write, reply_read, reply_write;
	int devices[1 + MOST_GPUS];
	int gpus, count;
	char old[MOST_GPUS][48], now[MOST_GPUS][48];
	int capability[MOST_GPUS];
	struct allocation allocations[MOST_ALLOCATIONS];
};

struct pair {
	unsigned char old[16], now[16];
};

struct command {
	uint32_t number;
	int operation, custom;
	uint32_t timeout_ms;
	int pairs;
	struct pair pair[MOST_GPUS];
};

struct reply {
	uint32_t number;
	int result;
};

EXPORT volatile struct self standin_self = {.devices = {[0 ... MOST_GPUS] = -1}};
static struct self *const me = (struct self *)&standin_self;
static pthread_mutex_t api = PTHREAD_MUTEX_INITIALIZER;
static int ready; /* cuInit was called here */

/* ---- the process that is saved ---- */

/* As the driver: whoever begins with CUDA holds all devices that he may use, whichever he has memory on. */
static void open_devices(void)
{
	char path[4096];
	struct gpu gpus[MOST_GPUS];
	int count = world_gpus(gpus);
	for (int index = 0; index <= count; index++) {
		if (index)
			snprintf(path, sizeof path, "%s/dev/nvidia%d", world(), index - 1);
		else
			snprintf(path, sizeof path, "%s/dev/nvidiactl", world());
		me->devices[index] = index && world_hides(gpus[index - 1].uuid) ? -1 : open(path, O_RDWR | O_CLOEXEC);
	}
}

static void close_devices(void)
{
	for (int index = 0; index <= MOST_GPUS; index++) {
		if (me->devices[index] >= 0)
			close(me->devices[index]);
		me->devices[index] = -1;
	}
}

/* Give an allocation its file on the GPU it belongs to. Returns the descriptor. */
static int make_file(struct allocation *one)
{
	static int number;
	int pid = getpid();
	char path[8192];
	snprintf(one->file, sizeof one->file, "%d-%lu-%d", pid, start_ticks(pid), ++number);
	snprintf(path, sizeof path, "%s/memory/%s/%s", world(), me->now[one->gpu], one->file);
	int file = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (file >= 0 && ftruncate(file, one->bytes)) {
		close(file);
		return -1;
	}
	return file;
}

static void remove_file(const struct allocation *one)
{
	char path[8192];
	snprintf(path, sizeof path, "%s/memory/%s/%s", world(), me->now[one->gpu], one->file);
	unlink(path);
}

static int room_on(const char *uuid, uint64_t bytes)
{
	struct gpu gpus[MOST_GPUS];
	int count = world_gpus(gpus);
	for (int index = 0; index < count; index++)
		if (!strcmp(gpus[index].uuid, uuid))
			return world_used(uuid, NULL, NULL) + bytes <= gpus[index].memory_bytes;
	return 0;
}

static int move_to_host(void)
{
	for (int index = 0; index < me->count; index++) {
		struct allocation *one = &me->allocations[index];
		char *copy = mmap(NULL, one->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (copy == MAP_FAILED)
			return OUT_OF_MEMORY;
		memcpy(copy, one->address, one->bytes);
		mremap(copy, one->bytes, one->bytes, MREMAP_MAYMOVE | MREMAP_FIXED, one->address);
		remove_file(one);
	}
	close_devices();
	return OK;
}

static void let_go(void)
{
	for (int index = 0; index < me->count; index++) {
		struct allocation *one = &me->allocations[index];
		mmap(one->address, one->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
		remove_file(one);
	}
	close_devices();
}

static int move_to_gpu(int with_content)
{
	open_devices();
	for (int index = 0; index < me->count; index++) {
		struct allocation *one = &me->allocations[index];
		int file = make_file(one);
		if (file < 0)
			return OPERATING_SYSTEM;
		char *target = mmap(NULL, one->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
		close(file);
		if (with_content)
			memcpy(target, one->address, one->bytes);
		mremap(target, one->bytes, one->bytes, MREMAP_MAYMOVE | MREMAP_FIXED, one->address);
	}
	return OK;
}

/* Find what each GPU of the process is to be from now on. The map has to name every GPU that the process saw, and no target twice. */
static int remap(const struct command *command, char target[MOST_GPUS][48])
{
	struct gpu gpus[MOST_GPUS];
	unsigned char bytes[16];
	uint64_t wanted[MOST_GPUS] = {0};
	int count = world_gpus(gpus), taken[MOST_GPUS] = {0};
	for (int old = 0; old < me->gpus; old++) {
		unsigned char target_bytes[16];
		int pair = 0, now;
		uuid_bytes(me->now[old], bytes);
		memcpy(target_bytes, bytes, 16);
		while (pair < command->pairs && memcmp(command->pair[pair].old, bytes, 16))
			pair++;
		if (command->pairs && pair == command->pairs)
			return INVALID_VALUE;
		if (command->pairs)
			memcpy(target_bytes, command->pair[pair].now, 16);
		for (now = 0; now < count; now++) {
			unsigned char other[16];
			uuid_bytes(gpus[now].uuid, other);
			if (!memcmp(other, target_bytes, 16))
				break;
		}
		if (now == count || taken[now]++ || gpus[now].major * 10 + gpus[now].minor != me->capability[old])
			return INVALID_VALUE;
		if (strcmp(gpus[now].uuid, me->now[old]) && !world_has("remap"))
			return NOT_SUPPORTED;
		strcpy(target[old], gpus[now].uuid);
		for (int index = 0; index < me->count; index++)
			wanted[old] += me->allocations[index].gpu == old ? me->allocations[index].bytes : 0;
		if (wanted[old] && !room_on(target[old], wanted[old]))
			return OUT_OF_MEMORY;
	}
	return OK;
}

static int restore(const struct command *command)
{
	char target[MOST_GPUS][48];
	if (me->state != CHECKPOINTED)
		return ILLEGAL_STATE;
	if (!command->custom != !me->outside)
		return INVALID_VALUE;
	int result = remap(command, target);
	if (result)
		return result;
	memcpy(me->now, target, sizeof target);
	result = move_to_gpu(!command->custom);
	me->state = result ? FAILED : command->custom ? RESTORING : LOCKED;
	return result;
}

static int carry_out(const struct command *command)
{
	struct timespec end;
	int result;
	switch (command->operation) {
	case OP_LOCK:
		if (me->state != RUNNING)
			return ILLEGAL_STATE;
		clock_gettime(CLOCK_REALTIME, &end);
		end.tv_sec += command->timeout_ms / 1000;
		end.tv_nsec += command->timeout_ms % 1000 * 1000000L;
		if (end.tv_nsec >= 1000000000L)
			end.tv_sec++, end.tv_nsec -= 1000000000L;
		if (command->timeout_ms ? pthread_mutex_timedlock(&api, &end) : pthread_mutex_lock(&api))
			return NOT_READY;
		me->state = LOCKED;
		return OK;
	case OP_CHECKPOINT:
		if (me->state != LOCKED)
			return ILLEGAL_STATE;
		me->outside = command->custom;
		if (command->custom) {
			me->state = CHECKPOINTING;
			return OK;
		}
		result = move_to_host();
		me->state = result ? FAILED : CHECKPOINTED;
		return result;
	case OP_RESTORE:
		return restore(command);
	case OP_COMPLETE:
		if (me->state == CHECKPOINTING) {
			let_go();
			me->state = CHECKPOINTED;
		} else if (me->state == RESTORING) {
			me->outside = 0;
			me->state = LOCKED;
		} else {
			return ILLEGAL_STATE;
		}
		return OK;
	case OP_UNLOCK:
		if (me->state != LOCKED)
			return ILLEGAL_STATE;
		me->state = RUNNING;
		pthread_mutex_unlock(&api);
		return OK;
	case OP_FAIL:
		me->state = FAILED;
		return OK;
	}
	return INVALID_VALUE;
}

static void *obey(void *unused)
{
	struct command command;
	prctl(PR_SET_NAME, "cuda-standin");
	for (;;) {
		ssize_t got = read(me->request_read, &command, sizeof command);
		if (got != sizeof command) {
			if (got < 0 && errno == EINTR)
				continue;
			return unused;
		}
		struct reply reply = {command.number, carry_out(&command)};
		if (write(me->reply_write, &reply, sizeof reply) < 0)
			return unused;
	}
}

/* The driver names its threads through /proc, from 570 on, and gives up where it cannot. */
static int start_thread(void *(*run)(void *), void *argument)
{
	pthread_t thread;
	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int failed = pthread_create(&thread, NULL, run, argument);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return failed ? failed : pthread_setname_np(thread, "cuda-standin");
}

static void forget_in_child(void)
{
	/* What a fork leaves behind has neither a context nor a thread that obeys, only descriptors. */
	me->initialised = ready = 0;
}

static void register_self(void)
{
	struct gpu gpus[MOST_GPUS];
	int pipes[4];
	me->gpus = world_gpus(gpus);
	for (int index = 0; index < me->gpus; index++) {
		strcpy(me->old[index], gpus[index].uuid);
		strcpy(me->now[index], gpus[index].uuid);
		me->capability[index] = gpus[index].major * 10 + gpus[index].minor;
	}
	if (pipe2(pipes, O_CLOEXEC) || pipe2(pipes + 2, O_CLOEXEC))
		return;
	me->request_read = pipes[0], me->request_write = pipes[1], me->reply_read = pipes[2], me->reply_write = pipes[3];
	me->count = 0;
	open_devices();
	pthread_atfork(NULL, NULL, forget_in_child);
	me->magic = MAGIC;
	me->state = RUNNING;
	if (!start_thread(obey, NULL))
		me->initialised = 1;
}

/* ---- faults ---- */

struct fault {
	char action[16];
	int number;
};

static const char *const names[] = {"lock", "checkpoint", "restore", "unlock", "complete"};

static int fault_of(const char *operation, struct fault *found)
{
	char path[4096], word[32], action[16];
	int nth, number, calls = 1, is_found = 0;
	snprintf(path, sizeof path, "%s/counts", world());
	FILE *counts = fopen(path, "a+e");
	if (!counts)
		return 0;
	flock(fileno(counts), LOCK_EX);
	rewind(counts);
	while (fscanf(counts, "%31s", word) == 1)
		calls += !strcmp(word, operation);
	fprintf(counts, "%s\n", operation);
	fclose(counts);
	snprintf(path, sizeof path, "%s/faults", world());
	FILE *faults = fopen(path, "re");
	while (faults && fscanf(faults, "%31s %d %15s %d", word, &nth, action, &number) == 4)
		if (!is_found && !strcmp(word, operation) && (nth == 0 || nth == calls)) {
			strcpy(found->action, action);
			found->number = number;
			is_found = 1;
		}
	if (faults)
		fclose(faults);
	return is_found;
}

static int told(const char *operation, int pid, int result)
{
	char path[4096], line[128];
	snprintf(path, sizeof path, "%s/calls", world());
	int file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
	int length = snprintf(line, sizeof line, "%s %d %d\n", operation, pid, result);
	if (file >= 0) {
		if (write(file, line, length) < 0)
			result = UNKNOWN;
		close(file);
	}
	return result;
}

static void hang(const char *operation, int pid)
{
	told(operation, pid, -1);
	for (;;)
		pause();
}

/* ---- whoever asks ---- */

static uintptr_t base_of(int pid)
{
	char path[64], line[4096];
	uintptr_t base = 0;
	snprintf(path, sizeof path, "/proc/%d/maps", pid);
	FILE *maps = fopen(path, "re");
	while (maps && !base && fgets(line, sizeof line, maps)) {
		unsigned long start, offset;
		char *name = strrchr(line, '/');
		if (name && !strcmp(name, "/libcuda.so.1\n") && sscanf(line, "%lx-%*x %*s %lx", &start, &offset) == 2 && offset == 0)
			base = start;
	}
	if (maps)
		fclose(maps);
	return base;
}

static int look(int pid, struct self *found)
{
	Dl_info info;
	uintptr_t base = base_of(pid);
	if (!base || !dladdr((void *)&standin_self, &info))
		return INVALID_VALUE;
	struct iovec here = {found, sizeof *found};
	struct iovec there = {(void *)(base + ((uintptr_t)&standin_self - (uintptr_t)info.dli_fbase)), sizeof *found};
	if (process_vm_readv(pid, &here, 1, &there, 1, 0) != (ssize_t)sizeof *found || found->magic != MAGIC || !found->initialised)
		return INVALID_VALUE;
	return OK;
}

static int open_theirs(int pid, int number, int flags)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, number);
	return open(path, flags | O_CLOEXEC);
}

static int ask(int pid, const struct self *theirs, struct command *command)
{
	struct reply reply = {0, UNKNOWN};
	int requests = open_theirs(pid, theirs->request_write, O_WRONLY), replies = open_theirs(pid, theirs->reply_read, O_RDONLY);
	int result = UNKNOWN;
	uint64_t ticks = start_ticks(pid);
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	command->number = (uint32_t)(now.tv_nsec ^ (uint32_t)gettid() << 12) | 1;
	if (requests >= 0 && replies >= 0 && write(requests, command, sizeof *command) == sizeof *command)
		while (start_ticks(pid) == ticks && ticks) {
			struct pollfd wait = {replies, POLLIN, 0};
			if (poll(&wait, 1, 50) == 1 && read(replies, &reply, sizeof reply) == sizeof reply && reply.number == command->number) {
				result = reply.result; /* another number answers somebody who is gone */
				break;
			}
		}
	if (requests >= 0)
		close(requests);
	if (replies >= 0)
		close(replies);
	return result;
}

static int operate(int pid, struct command *command)
{
	const char *name = names[command->operation];
	struct fault fault;
	struct self theirs;
	if (!world_has("checkpoint"))
		return NOT_SUPPORTED;
	if (!ready && command->operation == OP_RESTORE)
		return NOT_INITIALIZED;
	int is_faulty = fault_of(name, &fault), result = look(pid, &theirs);
	if (result)
		return told(name, pid, result);
	if (is_faulty && !strcmp(fault.action, "hang"))
		hang(name, pid);
	if (is_faulty && !strcmp(fault.action, "die")) {
		kill(pid, SIGKILL);
		return told(name, pid, UNKNOWN);
	}
	if (is_faulty && !strcmp(fault.action, "fail")) {
		struct command failing = {.operation = OP_FAIL};
		ask(pid, &theirs, &failing);
	}
	if (is_faulty && strcmp(fault.action, "late"))
		return told(name, pid, fault.number);
	result = ask(pid, &theirs, command);
	return told(name, pid, is_faulty ? fault.number : result);
}

struct per_device {
	uint64_t address;
	size_t bytes;
	void *stream;
};

struct storage {
	void *handle;
	struct per_device *devices;
	unsigned count;
};

struct operation {
	int pid;
	struct storage storage;
	struct per_device devices[MOST_GPUS];
};

static int retained[MOST_GPUS];
static __thread int current; /* the device, and 1, whose primary context is this thread's; 0: it has none */

static int in_context(void)
{
	return current && retained[current - 1] > 0 ? OK : INVALID_CONTEXT;
}

static int index_of(const char *uuid)
{
	struct gpu gpus[MOST_GPUS];
	int count = world_gpus(gpus);
	for (int index = 0; index < count; index++)
		if (!strcmp(gpus[index].uuid, uuid))
			return index;
	return -1;
}

/* Map what the process has on its GPUs here, one stretch for each. */
static int map_here(int pid, struct storage **out)
{
	struct self theirs;
	int result = look(pid, &theirs);
	if (result)
		return result;
	struct operation *made = calloc(1, sizeof *made);
	made->pid = pid;
	for (int gpu = 0; gpu < theirs.gpus; gpu++) {
		size_t bytes = 0, at = 0;
		for (int index = 0; index < theirs.count; index++)
			bytes += theirs.allocations[index].gpu == gpu ? theirs.allocations[index].bytes : 0;
		if (!bytes)
			continue;
		char *base = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		for (int index = 0; index < theirs.count; index++) {
			struct allocation *one = &theirs.allocations[index];
			char path[8192];
			if (one->gpu != gpu)
				continue;
			snprintf(path, sizeof path, "%s/memory/%s/%s", world(), theirs.now[gpu], one->file);
			int file = open(path, O_RDWR | O_CLOEXEC);
			mmap(base + at, one->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0);
			close(file);
			at += one->bytes;
		}
		made->devices[made->storage.count++] =
			(struct per_device){(uintptr_t)base, bytes, (void *)(0x1000UL + index_of(theirs.now[gpu]))};
	}
	made->storage.handle = made;
	made->storage.devices = made->devices;
	*out = &made->storage;
	return OK;
}

static int may_map(int pid, const struct command *command)
{
	struct self theirs;
	int result = look(pid, &theirs);
	if (result)
		return result;
	if (!ready)
		return NOT_INITIALIZED;
	if (!world_has("custom-storage"))
		return NOT_SUPPORTED;
	for (int index = 0; index < theirs.count; index++) {
		unsigned char bytes[16], other[16];
		char uuid[48];
		struct gpu gpus[MOST_GPUS];
		int count = world_gpus(gpus);
		strcpy(uuid, theirs.now[theirs.allocations[index].gpu]);
		uuid_bytes(uuid, bytes);
		for (int pair = 0; pair < command->pairs; pair++)
			if (!memcmp(command->pair[pair].old, bytes, 16))
				for (int gpu = 0; gpu < count; gpu++) {
					uuid_bytes(gpus[gpu].uuid, other);
					if (!memcmp(other, command->pair[pair].now, 16))
						strcpy(uuid, gpus[gpu].uuid);
				}
		int device = index_of(uuid);
		if (device < 0 || !retained[device])
			return INVALID_CONTEXT;
	}
	return OK;
}

EXPORT int cuCheckpointProcessGetState(int pid, int *state)
{
	struct fault fault;
	struct self theirs;
	if (!world_has("checkpoint"))
		return NOT_SUPPORTED;
	if (fault_of("state", &fault)) {
		if (!strcmp(fault.action, "hang"))
			hang("state", pid);
		return told("state", pid, fault.number);
	}
	int result = look(pid, &theirs);
	if (!result)
		*state = theirs.state;
	return told("state", pid, result);
}

EXPORT int cuCheckpointProcessGetRestoreThreadId(int pid, int *thread)
{
	struct self theirs;
	int result = look(pid, &theirs);
	*thread = pid;
	return result;
}

EXPORT int cuCheckpointProcessLock(int pid, const uint32_t *arguments)
{
	struct command command = {.operation = OP_LOCK, .timeout_ms = arguments ? arguments[0] : 0};
	return operate(pid, &command);
}

EXPORT int cuCheckpointProcessUnlock(int pid, const void *unused)
{
	struct command command = {.operation = OP_UNLOCK};
	(void)unused;
	return operate(pid, &command);
}

EXPORT int cuCheckpointProcessCheckpoint(int pid, struct storage ***arguments)
{
	struct storage **out = arguments ? arguments[0] : NULL;
	struct command command = {.operation = OP_CHECKPOINT, .custom = out != NULL};
	int result = out ? may_map(pid, &command) : OK;
	if (result)
		return told("checkpoint", pid, result);
	result = operate(pid, &command);
	return result || !out ? result : map_here(pid, out);
}

struct restore_arguments {
	const struct pair *pairs;
	uint32_t count, padding;
	struct storage **out;
};

EXPORT int cuCheckpointProcessRestore(int pid, const struct restore_arguments *arguments)
{
	struct storage **out = arguments ? arguments->out : NULL;
	struct command command = {.operation = OP_RESTORE, .custom = out != NULL};
	if (arguments && arguments->count > MOST_GPUS)
		return INVALID_VALUE;
	if (arguments && arguments->count) {
		command.pairs = arguments->count;
		memcpy(command.pair, arguments->pairs, sizeof *arguments->pairs * arguments->count);
	}
	int result = out ? may_map(pid, &command) : OK;
	if (result)
		return told("restore", pid, result);
	result = operate(pid, &command);
	return result || !out ? result : map_here(pid, out);
}

EXPORT int cuCheckpointOperationComplete(struct operation *operation)
{
	struct command command = {.operation = OP_COMPLETE};
	if (!operation)
		return INVALID_VALUE;
	int result = operate(operation->pid, &command);
	if (result)
		return result;
	for (unsigned index = 0; index < operation->storage.count; index++)
		munmap((void *)operation->devices[index].address, operation->devices[index].bytes);
	free(operation);
	return OK;
}

/* ---- the rest of CUDA, as much as the tests' programs and the bindings use ---- */

EXPORT int cuInit(unsigned flags)
{
	struct fault fault;
	struct gpu gpus[MOST_GPUS];
	(void)flags;
	if (fault_of("init", &fault)) {
		if (!strcmp(fault.action, "hang"))
			hang("init", getpid());
		return told("init", getpid(), fault.number);
	}
	if (!world_gpus(gpus))
		return NO_DEVICE;
	ready = 1;
	if (!me->initialised)
		register_self();
	return me->initialised ? OK : OPERATING_SYSTEM;
}

EXPORT int cuDriverGetVersion(int *version)
{
	*version = 0;
	return world_driver(NULL, 0, version) ? UNKNOWN : OK;
}

EXPORT int cuDeviceGetCount(int *count)
{
	struct gpu gpus[MOST_GPUS];
	*count = world_gpus(gpus);
	return ready ? OK : NOT_INITIALIZED;
}

EXPORT int cuDeviceGet(int *device, int ordinal)
{
	struct gpu gpus[MOST_GPUS];
	*device = ordinal;
	return ordinal < world_gpus(gpus) ? OK : 101;
}

EXPORT int cuDeviceGetUuid_v2(unsigned char *uuid, int device)
{
	struct gpu gpus[MOST_GPUS];
	if (device >= world_gpus(gpus))
		return 101;
	uuid_bytes(gpus[device].uuid, uuid);
	return OK;
}

EXPORT int cuDeviceGetName(char *name, int length, int device)
{
	struct gpu gpus[MOST_GPUS];
	if (device >= world_gpus(gpus))
		return 101;
	snprintf(name, length, "%s", gpus[device].model);
	return OK;
}

EXPORT int cuDevicePrimaryCtxRetain(void **context, int device)
{
	*context = (void *)(device + 1L);
	__atomic_add_fetch(&retained[device], 1, __ATOMIC_SEQ_CST);
	return OK;
}

EXPORT int cuDevicePrimaryCtxRelease_v2(int device)
{
	__atomic_sub_fetch(&retained[device], 1, __ATOMIC_SEQ_CST);
	return OK;
}

EXPORT int cuCtxSetCurrent(void *context)
{
	current = (int)(long)context;
	return context ? in_context() : OK;
}

EXPORT int cuStreamGetDevice(void *stream, int *device)
{
	*device = (int)((uintptr_t)stream - 0x1000UL);
	return in_context();
}

EXPORT int cuStreamSynchronize(void *stream)
{
	(void)stream;
	return in_context();
}

EXPORT int cuMemAlloc_v2(uint64_t *address, size_t bytes)
{
	if (in_context())
		return INVALID_CONTEXT;
	pthread_mutex_lock(&api);
	int result = OUT_OF_MEMORY;
	if (me->count < MOST_ALLOCATIONS) {
		struct allocation *one = &me->allocations[me->count];
		*one = (struct allocation){.gpu = current - 1, .bytes = (bytes + PAGE - 1) / PAGE * PAGE};
		int file = room_on(me->now[one->gpu], one->bytes) ? make_file(one) : -1;
		if (file >= 0) {
			one->address = mmap(NULL, one->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
			close(file);
			*address = (uint64_t)one->address;
			me->count++;
			result = OK;
		}
	}
	pthread_mutex_unlock(&api);
	return result;
}

#define MOST_LOCKED 256
static struct {
	void *memory;
	size_t bytes;
} locked[MOST_LOCKED];

static int copy(void *to, const void *from, size_t bytes)
{
	if (in_context())
		return INVALID_CONTEXT;
	pthread_mutex_lock(&api);
	memcpy(to, from, bytes);
	pthread_mutex_unlock(&api);
	return OK;
}

EXPORT int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes) { return copy((void *)to, from, bytes); }
EXPORT int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes) { return copy(to, (const void *)from, bytes); }

/* What whoever copies for somebody else uses: the only copies that can fail. */
static int copy_for_another(void *to, const void *from, size_t bytes)
{
	struct fault fault;
	if (fault_of("copy", &fault)) {
		if (!strcmp(fault.action, "hang"))
			hang("copy", 0);
		if (strcmp(fault.action, "slow"))
			return told("copy", 0, fault.number);
		usleep(fault.number * 1000);
	}
	return told("copy", 0, copy(to, from, bytes));
}

EXPORT int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream)
{
	(void)stream;
	return copy_for_another((void *)to, from, bytes);
}

EXPORT int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream)
{
	(void)stream;
	return copy_for_another(to, (const void *)from, bytes);
}

/* Page-locked memory, unless the world has no "page-locking". */
EXPORT int cuMemHostAlloc(void **memory, size_t bytes, unsigned flags)
{
	int result = in_context() ? INVALID_CONTEXT : flags != 1 ? INVALID_VALUE : !world_has("page-locking") ? OUT_OF_MEMORY : OK;
	if (!result) {
		*memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		result = *memory == MAP_FAILED ? OUT_OF_MEMORY : OK;
	}
	if (!result) {
		pthread_mutex_lock(&api);
		for (int index = 0; index < MOST_LOCKED && result == OK; index++)
			if (!locked[index].memory) {
				locked[index].memory = *memory;
				locked[index].bytes = bytes;
				break;
			}
		pthread_mutex_unlock(&api);
	}
	return told("pin", (int)(bytes >> 10), result);
}

EXPORT int cuMemFreeHost(void *memory)
{
	int result = in_context() ? INVALID_CONTEXT : INVALID_VALUE;
	pthread_mutex_lock(&api);
	for (int index = 0; index < MOST_LOCKED && result == INVALID_VALUE; index++)
		if (memory && locked[index].memory == memory) {
			munmap(memory, locked[index].bytes);
			locked[index].memory = NULL;
			result = OK;
		}
	pthread_mutex_unlock(&api);
	return told("unpin", 0, result);
}

/* One kernel is known: it adds 1 to the 32-bit word that its only argument leads to. */
EXPORT int cuModuleLoadData(void **module, const void *image)
{
	*module = (void *)1L;
	if (in_context())
		return INVALID_CONTEXT;
	return strstr(image, ".entry count(") ? OK : INVALID_VALUE;
}

EXPORT int cuModuleGetFunction(void **function, void *module, const char *name)
{
	*function = module;
	return strcmp(name, "count") ? NOT_FOUND : OK;
}

EXPORT int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
			  void *stream, void **arguments, void **extra)
{
	if (in_context())
		return INVALID_CONTEXT;
	if (!function || gx * gy * gz != 1 || bx * by * bz != 1 || shared || stream || extra)
		return INVALID_VALUE;
	pthread_mutex_lock(&api);
	++*(uint32_t *)**(uint64_t **)arguments;
	pthread_mutex_unlock(&api);
	return OK;
}

EXPORT int cuCtxSynchronize(void) { return in_context(); }

struct kernel {
	volatile uint64_t *memory;
	unsigned pause_us, work_us;
};

static int has_file(const char *name, int flags)
{
	char path[4096];
	snprintf(path, sizeof path, "%s/%s", world(), name);
	int file = open(path, O_RDONLY | O_CLOEXEC | flags, 0600);
	if (file >= 0)
		close(file);
	return file >= 0;
}

static void *run_kernel(void *argument)
{
	struct kernel kernel = *(struct kernel *)argument;
	free(argument);
	prctl(PR_SET_NAME, "kernel");
	for (;;) {
		pthread_mutex_lock(&api);
		kernel.memory[0]++;
		kernel.memory[1] = kernel.memory[1] * 6364136223846793005ULL + 1442695040888963407ULL;
		if (kernel.work_us && has_file("long", 0)) {
			has_file("working", O_CREAT);
			usleep(kernel.work_us);
		}
		pthread_mutex_unlock(&api);
		usleep(kernel.pause_us);
	}
	return NULL;
}

/* Not CUDA: work that never ends on a "GPU". It counts in the first word of `memory`, and follows a sequence in the second, so that a
 * step too many, too few or done twice shows. While there is a file `long` in the world, each step takes
 * `work_us`, and makes a file `working` first. */
EXPORT int standinLaunch(uint64_t memory, unsigned pause_us, unsigned work_us)
{
	struct kernel *kernel = malloc(sizeof *kernel);
	*kernel = (struct kernel){(volatile uint64_t *)memory, pause_us, work_us};
	return start_thread(run_kernel, kernel) ? UNKNOWN : OK;
}

static const struct {
	int number;
	const char *name, *text;
} errors[] = {{OK, "CUDA_SUCCESS", "no error"},
	      {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
	      {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
	      {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
	      {NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
	      {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
	      {OPERATING_SYSTEM, "CUDA_ERROR_OPERATING_SYSTEM", "OS call failed or operation not supported on this OS"},
	      {ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state"},
	      {NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
	      {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
	      {UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"}};

static int told_of(int number, const char **text, int wants_name)
{
	for (size_t index = 0; index < sizeof errors / sizeof *errors; index++)
		if (errors[index].number == number) {
			*text = wants_name ? errors[index].name : errors[index].text;
			return OK;
		}
	*text = NULL;
	return INVALID_VALUE;
}

EXPORT int cuGetErrorName(int number, const char **text) { return told_of(number, text, 1); }
EXPORT int cuGetErrorString(int number, const char **text) { return told_of(number, text, 0); }

EXPORT int cuGetProcAddress_v2(const char *symbol, void **found, int version, uint64_t flags, int *status)
{
	char versioned[128];
	Dl_info info;
	(void)flags;
	*found = NULL;
	if (status)
		*status = 1;
	int cuda = 0;
	world_driver(NULL, 0, &cuda);
	if (!strcmp(symbol, "cuCheckpointOperationComplete") && (cuda < 13040 || !world_has("custom-storage")))
		return NOT_FOUND;
	if (!strncmp(symbol, "cuCheckpoint", 12) && (cuda < 12080 || !world_has("checkpoint") || version < 12080))
		return NOT_FOUND;
	if (!dladdr((void *)&standin_self, &info))
		return NOT_FOUND;
	void *self = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
	snprintf(versioned, sizeof versioned, "%s_v2", symbol);
	*found = dlsym(self, versioned);
	if (!*found)
		*found = dlsym(self, symbol);
	dlclose(self);
	if (*found && status)
		*status = 0;
	return *found ? OK : NOT_FOUND;
}
