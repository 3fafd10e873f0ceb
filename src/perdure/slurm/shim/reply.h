/* What the seat says, read. */
#ifndef PERDURE_REPLY_H
#define PERDURE_REPLY_H

#include <stdbool.h>

enum reply_kind { REPLY_OTHER, REPLY_SAID, REPLY_UNMANAGED, REPLY_STARTED, REPLY_ENDED };

struct reply {
	enum reply_kind kind;
	const char *text; /* what to say; of an error, its message */
	const char *code; /* of an error */
	const char *hint;
	int status;
	bool is_error;
};

/* Read `line`, which has no line end and is changed by it: texts lie in it. */
struct reply reply_read(char *line);

#endif
