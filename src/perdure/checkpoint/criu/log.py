"""What CRIU's log means: the line that caused a failure, the thing it is about, a stable code and a remedy. Pure: text in, record out.

Called by `run` after a failure. A log holds harmless errors before the cause, and consequences after it that are louder: the cause is
the first line that `patterns` knows, else the first that is neither harmless nor a known consequence.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator

import msgspec

from perdure.base.text import printable
from perdure.checkpoint.criu.patterns import KNOWN, Pattern

_MAX_LINE = 400


class Explanation(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why CRIU failed.

    `code` is stable, of the families of `perdure.model.finding`. `line` is the causal line of the log, without CRIU's times and source
    positions. `pid` is as CRIU numbers: the host's in a dump, the namespace's in a restore. All text is safe to show.
    """

    code: str
    message: str
    line: str
    remedy: str | None = None
    pid: int | None = None
    fd: int | None = None
    path: str | None = None
    flag: str | None = None


_BENIGN = re.compile(
    r"rlimit: Can't setup RLIMIT_NOFILE for self"  # no CAP_SYS_RESOURCE: CRIU goes on with the descriptors it may open
    r"|Could not process rule: No such file or directory"  # nftables: CRIU removes its table twice
    r"|\b(?:ip6?tables)(?:-legacy)?-save\b"  # looked for, and done without
    r"|Can't keep kdat cache|Unable to interrupt task"
)
_CONSEQUENCE = re.compile(
    r"(?:Dumping|Restoring|Pre-dumping) FAILED"
    r"|Dump [\w ]+\(pid: \d+\) failed with"
    r"|^Unable to open fd=|- Can't open vma|^Can't open cwd|^Can't dump page with parasite"
    r"|exited, status=|^\d+ killed by signal"
    r"|Could not initialize kernel features detection|failed when initializing kerndat|Failed to fill self vdso symtable"
    r"|One of more action scripts failed|script failed with|Unable to detach from|Can't retrieve FDs from socket"
    r"|Message reply from daemon is trimmed|Couldn't open image dir|Error flushing image|Failed to lock TCP connection"
)
_ERROR = re.compile(r"(?:\([\d.]+\)\s*)?(?:pie: )?\s*(?:(?P<task>\d+):\s*)?Error (?:\(\S+?:\d+\)|): (?P<said>.*)")
_SPEECH = re.compile(r".*(?:error while loading shared libraries|unrecognized option|symbol lookup error|version `\S+' not found).*")
_FAILED_PID = re.compile(r"\(pid: (\d+)\) failed")


class _Line(msgspec.Struct, frozen=True):
    said: str
    task: int | None
    """PID that CRIU prefixed the line with: the task that was speaking."""
    position: int


def explain(text: str, *, action: str, returncode: int, timed_out: bool = False, cancelled: bool = False) -> Explanation:
    """Find the reason in `text`: the end of the log and of the error output that CRIU wrote for `action`.

    `returncode` is its exit status or the negative number of the signal that ended it; `timed_out` and `cancelled` tell who sent that.
    """
    if cancelled:
        return Explanation("criu-cancelled", f"the {action} was cancelled", "")
    lines = list(_errors(text))
    for line in lines:
        for pattern in KNOWN:
            match = re.search(pattern.regex, line.said)
            if match is None or (pattern.actions and action not in pattern.actions):
                continue
            later = re.search(pattern.also, text[line.position :])
            if later is not None:
                return _describe(pattern, {**match.groupdict(), **later.groupdict()}, line, text)
    if timed_out:
        return Explanation(
            "criu-timeout",
            f"the {action} did not end within the time allowed",
            lines[-1].said if lines else "",
            "allow more time; a damaged image or a stuck file system can stop CRIU for ever",
        )
    cause = next((line for line in lines if not _CONSEQUENCE.search(line.said)), lines[-1] if lines else None)
    return _unknown(cause, text, action=action, returncode=returncode)


def _errors(text: str) -> Iterator[_Line]:
    """Yield the lines of errors that are not harmless, safe to show and bounded."""
    position = 0
    for raw in text.splitlines(keepends=True):
        position += len(raw)
        line = raw.strip()
        match = _ERROR.fullmatch(line)
        said = match["said"] if match else line if _SPEECH.fullmatch(line) else ""
        if said and not _BENIGN.search(said):
            yield _Line(printable(said[:_MAX_LINE]), int(match["task"]) if match and match["task"] else None, position)


class _Values(dict[str, str]):
    """What a pattern found, for its sentences; an optional group that found nothing reads as a question mark."""

    def __missing__(self, key: str) -> str:
        return "?"


def _describe(pattern: Pattern, groups: dict[str, str | None], line: _Line, text: str) -> Explanation:
    found = {key: printable(value) for key, value in groups.items() if value is not None}
    path = found.get("path")
    if path is not None and not path.startswith("/"):
        path = found["path"] = f"/{path}"  # CRIU writes paths relative to the tree's root
    pid = int(found["pid"]) if "pid" in found else _failed_pid(line, text)
    values = _Values(found)
    return Explanation(
        code=pattern.code,
        message=pattern.message.format_map(values),
        line=line.said,
        remedy=pattern.remedy.format_map(values) or None,
        pid=pid,
        fd=int(found["fd"]) if "fd" in found else None,
        path=path,
        flag=pattern.flag,
    )


def _failed_pid(line: _Line, text: str) -> int | None:
    """Return the process that the error is about: CRIU names it in the next line of a dump, and before the line in a restore."""
    match = _FAILED_PID.search(text[line.position : line.position + 2000])
    return int(match[1]) if match else line.task


def _unknown(cause: _Line | None, text: str, *, action: str, returncode: int) -> Explanation:
    if returncode < 0:
        return Explanation(
            "criu-killed",
            f"CRIU was ended by signal {-returncode} in the middle of the {action}",
            cause.said if cause else "",
            "see the kernel's log (dmesg) for lack of memory" if returncode == -signal.SIGKILL else "find out who sent it",
        )
    if cause is None:
        return Explanation("criu-unexplained", f"criu {action} ended with status {returncode} and said no reason", "", "see its log")
    return Explanation("criu-unexplained", f"criu {action} failed: {cause.said}", cause.said, "see its log", pid=_failed_pid(cause, text))
