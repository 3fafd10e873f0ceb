/* The one message by which the user's process asks for its command to be run; src/perdure/agent/request.py has its format. */
#define _GNU_SOURCE
#include "shim.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define MOST_BYTES (4u << 20)
#define HEADER_BYTES 8

struct buffer {
	char *bytes;
	size_t size, room;
	bool is_full;
};

static void put(struct buffer *into, const void *bytes, size_t size)
{
	if (into->is_full || size > HEADER_BYTES + MOST_BYTES - into->size) {
		into->is_full = true;
		return;
	}
	if (into->size + size > into->room) {
		size_t room = (into->size + size) * 2;
		char *grown = realloc(into->bytes, room);

		if (!grown) {
			into->is_full = true;
			return;
		}
		into->bytes = grown;
		into->room = room;
	}
	memcpy(into->bytes + into->size, bytes, size);
	into->size += size;
}

static void put_text(struct buffer *into, const char *text)
{
	put(into, text, strlen(text) + 1);
}

static void put_words(struct buffer *into, struct words words)
{
	char count[24];

	snprintf(count, sizeof count, "%zu", words.count);
	put_text(into, count);
	for (size_t each = 0; each < words.count; each++)
		put_text(into, words.items[each]);
}

/* The descriptors 0, 1 and 2 go with the first bytes. */
static ssize_t send_first(int channel, const char *bytes, size_t size)
{
	union {
		char bytes[CMSG_SPACE(3 * sizeof(int))];
		struct cmsghdr aligned;
	} control = {.bytes = {0}};
	const int streams[3] = {0, 1, 2};
	struct iovec part = {.iov_base = (void *)bytes, .iov_len = size};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);

	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof streams);
	memcpy(CMSG_DATA(header), streams, sizeof streams);
	return sendmsg(channel, &message, MSG_NOSIGNAL);
}

static bool send_all(int channel, const char *bytes, size_t size)
{
	for (size_t sent = 0; sent < size;) {
		ssize_t more = sent ? send(channel, bytes + sent, size - sent, MSG_NOSIGNAL) : send_first(channel, bytes, size);

		if (more < 0 && errno == EINTR)
			continue;
		if (more <= 0)
			return false;
		sent += (size_t)more;
	}
	return true;
}

bool request_send(int channel, const char *cwd, mode_t mask, struct words argv, struct words environment)
{
	struct buffer message = {.bytes = NULL};
	char octal[8];
	bool done = false;

	put(&message, "PSR1\0\0\0\0", HEADER_BYTES);
	snprintf(octal, sizeof octal, "%03o", (unsigned)(mask & 0777));
	put_text(&message, octal);
	put_text(&message, cwd);
	put_words(&message, argv);
	put_words(&message, environment);
	put_words(&message, (struct words){NULL, 0}); /* options come by root's way alone */
	if (!message.is_full) {
		uint32_t size = (uint32_t)(message.size - HEADER_BYTES);

		for (int each = 0; each < 4; each++)
			message.bytes[4 + each] = (char)(size >> (8 * each) & 0xff);
		done = send_all(channel, message.bytes, message.size);
	}
	free(message.bytes);
	return done;
}
