/* What the seat says: a line of JSON each, always written the same way by src/perdure/agent/replies.py, so that it is read by its
 * beginning. A line that is not understood is passed over.
 */
#define _GNU_SOURCE
#include "reply.h"

#include <stdlib.h>
#include <string.h>

static const char *after(const char *line, const char *beginning)
{
	size_t length = strlen(beginning);

	return strncmp(line, beginning, length) ? NULL : line + length;
}

static unsigned hexadecimal(const char *digits)
{
	unsigned value = 0;

	for (int each = 0; each < 4; each++) {
		const char *found = digits[each] ? strchr("0123456789abcdefABCDEF", digits[each]) : NULL;
		unsigned digit = found ? (unsigned)(found - "0123456789abcdefABCDEF") : 99;

		if (digit == 99)
			return 0;
		value = value << 4 | (digit > 15 ? digit - 6 : digit);
	}
	return value;
}

static char *put_code(char *out, unsigned code)
{
	if (code < 0x20 || code == 0x7f || (code >= 0xd800 && code < 0xe000))
		*out++ = '?';
	else if (code < 0x80)
		*out++ = (char)code;
	else if (code < 0x800) {
		*out++ = (char)(0xc0 | code >> 6);
		*out++ = (char)(0x80 | (code & 0x3f));
	} else {
		*out++ = (char)(0xe0 | code >> 12);
		*out++ = (char)(0x80 | (code >> 6 & 0x3f));
		*out++ = (char)(0x80 | (code & 0x3f));
	}
	return out;
}

/* Turn the JSON text that begins behind a quote into plain text, in place; NULL when it has no end. A text only becomes shorter. */
static char *plain(char *text, char **behind)
{
	char *out = text;

	for (char *at = text; *at; at++) {
		if (*at == '"') {
			*behind = at + 1;
			*out = '\0';
			return text;
		}
		if (*at != '\\') {
			*out++ = *at;
			continue;
		}
		switch (*++at) {
		case 'u':
			if (strlen(at) < 5)
				return NULL;
			out = put_code(out, hexadecimal(at + 1));
			at += 4;
			break;
		case 'n':
		case 't':
		case 'r':
		case 'b':
		case 'f':
			*out++ = ' ';
			break;
		case '\0':
			return NULL;
		default:
			*out++ = *at;
		}
	}
	return NULL;
}

/* The text of the member `key` behind `from`; empty when there is none. */
static const char *member(char *from, const char *key)
{
	char *found = strstr(from, key), *behind;
	const char *text = found ? plain(found + strlen(key), &behind) : NULL;

	return text ? text : "";
}

struct reply reply_read(char *line)
{
	struct reply reply = {.kind = REPLY_OTHER, .text = "", .code = "", .hint = ""};
	char *rest, *end;

	if ((rest = (char *)after(line, "{\"said\":\""))) {
		reply.text = plain(rest, &end);
		reply.kind = reply.text ? REPLY_SAID : REPLY_OTHER;
	} else if ((rest = (char *)after(line, "{\"unmanaged\":\""))) {
		reply.text = plain(rest, &end);
		reply.kind = REPLY_UNMANAGED;
	} else if (after(line, "{\"started\":")) {
		reply.kind = REPLY_STARTED;
	} else if ((rest = (char *)after(line, "{\"ended\":{\"status\":"))) {
		reply.kind = REPLY_ENDED;
		reply.status = (int)strtol(rest, &end, 10);
		if ((rest = (char *)after(end, ",\"error\":{"))) {
			/* From the last member to the first: each ends the text behind it. */
			reply.is_error = true;
			reply.hint = member(rest, "\"hint\":\"");
			reply.text = member(rest, "\"message\":\"");
			reply.code = member(rest, "\"code\":\"");
		}
	}
	return reply;
}
