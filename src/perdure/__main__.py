"""The way in: `perdure …` and `python -m perdure …`.

`perdure --help` and `--version` are answered from a text file and a constant, without importing the command line's
libraries: shells and people ask for them often, and the answer is the same every time (a test checks that it is current).
"""

from __future__ import annotations

import io
import os
import sys

TYPE_CHECKING = False  # not from `typing`: the first page of help loads nothing
if TYPE_CHECKING:
    from types import FrameType

_HELP = ("--help", "-h", "help")


class _Here:
    """What Ctrl-C needs to know of this process."""

    is_over = False
    """All is done or given up but its end, so that there is nothing to interrupt."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command line with `arguments` (default: the process's own) and return its exit status."""
    _Here.is_over = False
    argv = sys.argv[1:] if arguments is None else arguments
    try:
        status = _run(argv)
        _Here.is_over = True
    except KeyboardInterrupt:
        # While modules are imported, and when it comes once more while `app.run` tells of the first. Python looks for signals at calls
        # alone, so that none comes between.
        _Here.is_over = True
        status = 128 + 2
        sys.stderr.write("perdure: interrupted\n")
    except BaseException:
        _Here.is_over = True
        raise
    return status


def _interrupted(number: int, _frame: FrameType | None) -> None:
    """Ctrl-C: it interrupts what is done, and after that ends this process at once, without a word, as it ends any program."""
    if not _Here.is_over:
        raise KeyboardInterrupt
    import signal

    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _heed_interrupts() -> None:
    """See to it that Ctrl-C is told by `_interrupted`, where it is not passed over."""
    import signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupted)


def _run(argv: list[str]) -> int:
    try:
        _open_standard_streams()
        if not argv or (len(argv) == 1 and argv[0] in _HELP):
            with open(os.path.join(os.path.dirname(__file__), "cli", "help.txt"), encoding="utf-8") as handle:
                text = handle.read()
            if _takes(text):
                sys.stdout.write(text)
                sys.stdout.flush()
                return 0
            argv = ["--help"]  # drawn with what there is
        if argv == ["--version"]:
            from perdure._version import __version__

            sys.stdout.write(f"perdure {__version__}\n")
            sys.stdout.flush()
            return 0
        _heed_interrupts()
        if argv[0] == "run":
            import signal

            # The wish for a checkpoint may come before there is anything to save, and must not end what has hardly begun.
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        from perdure.cli import app

        return app.run(argv)
    except BrokenPipeError:
        # The reader went away (`perdure … | head`): nothing is wrong, and nothing more can be said on stdout.
        _give_up_stdout()
        return 128 + 13
    except OSError as error:
        # Nothing else is done here than to write: `app.run` has told of whatever befell a command.
        _give_up_stdout()
        sys.stderr.write(f"perdure: cannot write to stdout: {error.strerror} (free some space, or write elsewhere)\n")
        return 20


def _open_standard_streams() -> None:
    """See to it that descriptors 0 to 2 are open, as /dev/null where whoever started us closed them, and take all text.

    The next files to be opened would come to stand there, and be written to as if they were our output. Of a character that the
    terminal's encoding lacks its code is shown.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free: this one
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="backslashreplace")


def _takes(text: str) -> bool:
    """Tell whether stdout's encoding has all characters of `text`."""
    try:
        text.encode(sys.stdout.encoding)
    except UnicodeEncodeError:
        return False
    return True


def _give_up_stdout() -> None:
    """Let what is still to be written to stdout go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


if __name__ == "__main__":
    sys.exit(main())
