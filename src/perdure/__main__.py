"""The way in: `perdure …` and `python -m perdure …`.

`perdure --help` and `--version` are answered from a text file and a constant, without importing the command line's
libraries: shells and people ask for them often, and the answer is the same every time (a test checks that it is current).
"""

from __future__ import annotations

import io
import os
import sys

_HELP = ("--help", "-h", "help")


def main(arguments: list[str] | None = None) -> int:
    """Run the command line with `arguments` (default: the process's own) and return its exit status."""
    argv = sys.argv[1:] if arguments is None else arguments
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
    except KeyboardInterrupt:
        # While modules are imported, and when it comes once more while `app.run` tells of the first.
        sys.stderr.write("perdure: interrupted\n")
        return 128 + 2
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
