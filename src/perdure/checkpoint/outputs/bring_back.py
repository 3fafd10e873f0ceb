"""Bring output files back to what they were at a checkpoint. Called before a restore, while nothing of the workload runs.

Never destroys data: what was added since is kept in ``NAME.perdure-tail-EPOCH`` before it is cut off, what was written anew is kept there
whole before the checkpoint's content takes its place, and where the checkpoint has no content nothing is touched but named. A run that was
interrupted at any point is made good by running it again. A file stays the very same one (its inode) where it still is.

Paths lie where the workload's user can write, and this runs as root: they are walked without following links, and a file is only changed in
place when it is the one of the checkpoint, or has no other name, and belongs to the same user (a hard link to somebody else's file is not
cut).
"""

from __future__ import annotations

import enum
import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path

from perdure import errors
from perdure.base import acting, linkless, text
from perdure.checkpoint.outputs import aside, copying, renamed, rules
from perdure.model.checkpoint import OutputFile, Owner
from perdure.model.finding import Finding, Severity

_MOST_APPENDED = 20
"""So often more of a file is kept aside that grows while it is."""


def bring_back(outputs: Iterable[OutputFile], *, epoch: int, contents: Path | None, owner: Owner | None = None) -> tuple[Finding, ...]:
    """Bring each of `outputs` back with the rights of `owner` (None: of this process); return what was done and what could not be.

    `epoch` names the files that are kept aside: that of the life that begins. `contents` is the folder into which the checkpoint's stored
    files were extracted; None: there are none. A finding is a problem when CRIU would refuse the restore for it, a warning when the restore
    would go on with a file that is not what it was, else information.
    """
    findings: list[Finding] = []
    for output in outputs:
        try:
            findings += _Return(output, epoch, contents, owner).run()
        except (OSError, errors.OutputError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            path = text.original(output.path)
            findings.append(rules.finding("restore-output-failed", Severity.PROBLEM, path, f"cannot be brought back: {reason}"))
    return tuple(findings)


class Change(enum.Enum):
    """What is done to a file that lies at its path."""

    NONE = enum.auto()
    CUT = enum.auto()
    """What lies beyond the recorded size is kept aside and cut off; what is before stays."""
    REWRITE = enum.auto()
    """Other content takes the place of what it holds."""


def change(output: OutputFile, *, contents: Path | None, owner: Owner | None = None) -> Change:
    """Return what `bring_back` would do to the file of `output` itself; nothing is done. Raises OSError and `errors.PerdureError`."""
    return _Return(output, 0, contents, owner).foreseen()


def checked_name(name: str) -> str:
    """Return `name`, that of a stored file, when it stays inside the folder it is joined to. Raises `errors.OutputError`."""
    if name.startswith("/") or ".." in name.split("/"):
        raise errors.OutputError("its stored name leads out of the checkpoint")
    return name


class _Return:
    """The way back of one file."""

    def __init__(self, output: OutputFile, epoch: int, contents: Path | None, owner: Owner | None) -> None:
        self._output = output
        self._path = text.original(output.path)
        self._epoch = epoch
        self._owner = owner
        self._stored = contents / checked_name(output.stored_as) if contents is not None and output.stored_as is not None else None
        self._findings: list[Finding] = []

    def run(self) -> list[Finding]:
        if self._stored is None:
            self._on_the_way(self._from_record)
            return self._findings
        source = os.open(self._stored, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if os.fstat(source).st_size != self._output.size_bytes:
                self._say("restore-output-failed", Severity.PROBLEM, "cannot be brought back: its copy in the checkpoint is not whole")
            else:
                self._on_the_way(lambda folder, name: self._from_content(folder, name, source))
        finally:
            os.close(source)
        return self._findings

    def foreseen(self) -> Change:
        """Return what `run` would do to the file that lies there now."""
        with acting.as_owner(self._owner), linkless.parent(self._path) as (folder, name):
            current = linkless.open_regular(folder, name)
        try:
            there = os.fstat(current)
            size = self._output.size_bytes
            if self._stored is None:
                is_same = (there.st_dev, there.st_ino) == (self._output.device, self._output.inode)
                may_cut = self._is_ours(there) and (self._is_known(current, there) or (is_same and rules.is_size_checked(self._output)))
                return Change.CUT if may_cut and there.st_size > size else Change.NONE
            if not self._is_ours(there) or there.st_size < size or not self._begins_with(current, self._stored):
                return Change.REWRITE
            return Change.CUT if there.st_size > size else Change.NONE
        finally:
            os.close(current)

    def _begins_with(self, current: int, stored: Path) -> bool:
        source = os.open(stored, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            return copying.is_equal(source, current, 0, self._output.size_bytes)
        finally:
            os.close(source)

    def _on_the_way(self, bring: Callable[[int, str], None]) -> None:
        """Walk to the file and let `bring` do its work, both as the owner."""
        make = (self._output.uid, self._output.gid) if self._stored else None
        try:
            with acting.as_owner(self._owner), linkless.parent(self._path, make=make) as (folder, name):
                bring(folder, name)
        except errors.InputMissing:
            self._missing()
        except errors.InputError as error:
            self._say("restore-output-link", Severity.PROBLEM, f"is not touched: {error}", "put the folder back where it was")

    def _from_content(self, folder: int, name: str, source: int) -> None:
        """Bring a file back whose content is in the checkpoint, at `source`: it is that content in every case."""
        for path in map(text.original, self._output.without):
            self._set_aside(folder, os.path.basename(path), "was not there at the checkpoint")
        if not self._mend_in_place(folder, name, source):
            self._replace(folder, name, source)

    def _mend_in_place(self, folder: int, name: str, source: int) -> bool:
        """Make the file right without making it another, if it may be changed; tell whether it is right now."""
        try:
            current = linkless.open_regular(folder, name)
        except errors.InputError:
            return False
        try:
            there = os.fstat(current)
            size = self._output.size_bytes
            if not self._is_ours(there):
                return False
            is_whole = there.st_size >= size and copying.is_equal(source, current, 0, size)
            if is_whole and (there.st_size == size or not aside.interrupted(folder, name, current, source, self._epoch)):
                self._cut(folder, name, current)
                return True
            if (there.st_dev, there.st_ino) != (self._output.device, self._output.inode):
                return False
            tail = aside.overwrite(folder, name, current, source, look=self._look(), epoch=self._epoch)
            message = f"is as at the checkpoint again; what it held since is kept as {text.printable(tail)}"
            self._say("restore-output-put-back", Severity.INFO, message)
            return True
        finally:
            os.close(current)

    def _replace(self, folder: int, name: str, source: int) -> None:
        """Put the checkpoint's content at the path as a new file, after what lies there has been kept aside."""
        if self._set_aside(folder, name, "was written anew after the checkpoint"):
            self._say("restore-output-put-back", Severity.INFO, "is as at the checkpoint again")
        else:
            self._say("restore-output-put-back", Severity.INFO, "was gone, and is there again")
        aside.put(folder, name, source, self._look(), self._epoch)
        if os.pread(source, len(rules.SQLITE_MAGIC), 0) == rules.SQLITE_MAGIC:
            self._say(
                "restore-output-new-file",
                Severity.WARNING,
                "is an SQLite database and another file than at the checkpoint, with the same content: a program that had it open with a "
                "rollback journal refuses to write to it (attempt to write a readonly database)",
                "let the program open it anew, or use journal_mode=wal",
            )

    def _look(self) -> aside.Look:
        return aside.Look(self._output.mode, self._output.uid, self._output.gid, self._output.mtime_ns)

    def _from_record(self, folder: int, name: str) -> None:
        """Bring a file back of which only a record is kept: what was added can go, what is lost is named."""
        try:
            current = linkless.open_regular(folder, name)
        except errors.LinkInPath:
            self._say("restore-output-link", Severity.PROBLEM, "is not a regular file any more", "move what lies there away")
            return
        except errors.InputMissing:
            if not self._from_renamed(folder, name):
                self._missing()
            return
        try:
            there = os.fstat(current)
            if self._is_at_hand(current, there) or not self._from_renamed(folder, name):
                self._mend_by_record(folder, name, current, there)
        finally:
            os.close(current)

    def _is_at_hand(self, current: int, there: os.stat_result) -> bool:
        """Tell whether the file is the recorded one, or holds what that held."""
        is_same = (there.st_dev, there.st_ino) == (self._output.device, self._output.inode)
        return is_same or (there.st_size >= self._output.size_bytes and self._is_known(current, there))

    def _mend_by_record(self, folder: int, name: str, current: int, there: os.stat_result) -> None:
        output = self._output
        if there.st_size < output.size_bytes:
            stops = there.st_uid != output.uid or rules.is_size_checked(output)
            self._stale("restore-output-shorter", there, "is shorter than at the checkpoint", stops=stops)
            return
        is_known = self._is_known(current, there)
        is_same = (there.st_dev, there.st_ino) == (output.device, output.inode)
        if not self._is_ours(there) or not (is_known or is_same):
            # CRIU would open it for the workload whoever owns it: another user's file stops the restore.
            is_wrong_size = rules.is_size_checked(output) and there.st_size != output.size_bytes
            stops = there.st_uid != output.uid or is_wrong_size
            self._stale("restore-output-replaced", there, "is another file than at the checkpoint", stops=stops)
            return
        # Its end tells nothing of what lies before it, where the program could write anywhere.
        is_later = rules.is_read_write(output) and there.st_mtime_ns != output.mtime_ns
        if is_later and there.st_size > output.size_bytes and rules.is_database(os.pread(current, rules.MAGIC_BYTES, 0)):
            what = "is a database that was written since the checkpoint: cut to its size of then it would be damaged"
            self._stale("restore-output-overwritten", there, what, stops=True)
            return
        if not is_known:
            self._stale("restore-output-overwritten", there, "was written anew since the checkpoint", stops=False)
        elif is_later:
            what = "can be written in place and was written since the checkpoint: what lies before its end may be of later"
            self._stale("restore-output-overwritten", there, what, stops=False)
        if is_known or rules.is_size_checked(output):
            # With its time of then, a second look would take it for what it was.
            self._cut(folder, name, current, with_time=not is_later)

    def _from_renamed(self, folder: int, name: str) -> bool:
        """Put what the file held at the checkpoint at its name of then, where it has another name now; tell whether that was so."""
        found = renamed.find(folder, name, self._output)
        if found is None:
            return False
        source, other = found
        try:
            self._set_aside(folder, name, "is another file than at the checkpoint")
            aside.put(folder, name, source, self._look(), self._epoch, size_bytes=self._output.size_bytes)
        finally:
            os.close(source)
        message = f"has another name now, {text.printable(other)}, which stays: its first {self._output.size_bytes} bytes are here again"
        self._say("restore-output-put-back", Severity.INFO, message)
        return True

    def _is_known(self, current: int, there: os.stat_result) -> bool:
        """Tell whether the file holds, up to its size then, what it held at the checkpoint, as far as its end tells."""
        output = self._output
        if output.head_digest is None:
            same = (there.st_dev, there.st_ino, there.st_size, there.st_mtime_ns)
            return same == (output.device, output.inode, output.size_bytes, output.mtime_ns)
        return rules.ends_alike(current, output)

    def _is_ours(self, there: os.stat_result) -> bool:
        """Tell whether the file may be changed in place: no other user's, and reached under no other name unless it is the recorded one."""
        is_same = (there.st_dev, there.st_ino) == (self._output.device, self._output.inode)
        return there.st_uid == self._output.uid and (is_same or there.st_nlink == 1)

    def _cut(self, folder: int, name: str, current: int, *, with_time: bool = True) -> None:
        """Keep aside and cut off what lies beyond the recorded size; put mode and, `with_time`, the time of its last change right."""
        output = self._output
        there = os.fstat(current)
        if there.st_size > output.size_bytes:
            kept_bytes, tails = self._keep_tail(folder, name, current)
            # Through the very file that was looked at: its name may lead elsewhere by now.
            writable = os.open(f"/proc/self/fd/{current}", os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.ftruncate(writable, output.size_bytes)
                os.fsync(writable)
            finally:
                os.close(writable)
            message = f"is {output.size_bytes} bytes long again; the {kept_bytes} bytes after them are in {text.printable(tails)}"
            self._say("restore-output-cut", Severity.INFO, message)
        if stat.S_IMODE(there.st_mode) != output.mode:
            # CRIU refuses a file whose permissions changed.
            os.fchmod(current, output.mode)
        if with_time and os.fstat(current).st_mtime_ns != output.mtime_ns:
            os.utime(current, ns=(output.mtime_ns, output.mtime_ns))

    def _keep_tail(self, folder: int, name: str, current: int) -> tuple[int, str]:
        """Keep aside what lies beyond the recorded size, also what others append meanwhile; return how much that is, and where."""
        begin, tails = self._output.size_bytes, []
        for _ in range(_MOST_APPENDED):
            tail = aside.keep_range(folder, name, current, begin, self._epoch)
            kept = linkless.status(folder, tail)
            begin += kept.st_size if kept is not None else 0
            tails.append(tail)
            if os.fstat(current).st_size == begin:
                return begin - self._output.size_bytes, " and ".join(tails)
        raise errors.OutputError("somebody writes to it")

    def _set_aside(self, folder: int, name: str, why: str) -> bool:
        """Keep what lies at `name` under another name; what is not to be there at all is then removed. Tell whether there was anything."""
        there = linkless.status(folder, name)
        if there is None:
            return False
        tail = aside.keep_whole(folder, name, self._epoch)
        aside.sync(folder)
        if name != os.path.basename(self._path) and not stat.S_ISDIR(there.st_mode):
            os.unlink(name, dir_fd=folder)
            aside.sync(folder)
        path = os.path.join(os.path.dirname(self._path), name)
        message = f"{why}, and is kept as {text.printable(tail)}"
        self._findings.append(rules.finding("restore-output-aside", Severity.INFO, path, message))
        return True

    def _missing(self) -> None:
        self._say(
            "restore-output-missing",
            Severity.PROBLEM,
            f"was {self._output.size_bytes} bytes long at the checkpoint and is not there",
            f"put it back, or next time include it: --outputs {text.printable(self._path)}",
        )

    def _stale(self, code: str, there: os.stat_result, what: str, *, stops: bool) -> None:
        self._say(
            code,
            Severity.PROBLEM if stops else Severity.WARNING,
            f"{what}: {there.st_size} bytes long, at the checkpoint {self._output.size_bytes}",
            f"put the file of that time back, or next time include it: --outputs {text.printable(self._path)}",
        )

    def _say(self, code: str, severity: Severity, message: str, remedy: str | None = None) -> None:
        self._findings.append(rules.finding(code, severity, self._path, message, remedy=remedy))
