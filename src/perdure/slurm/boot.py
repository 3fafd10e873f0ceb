"""The first program on a node that has nothing of ours: never imported, sent as text by `runner` and run by the node's own Python.

It reads one line with the length of a JSON document, the document, and a packed payload from its standard input; unpacks that into a
private folder beside the place of the installation, starts Perdure from there, passes its exit status on, and removes the folder. It
runs on Python 3.6 as well, since that may be the only `python3` there, and looks for the one that the payload is made for.
"""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import typing

PREFIX = ".perdure-install."


def main() -> int:
    stream = sys.stdin.buffer
    told = json.loads(stream.read(int(stream.readline())).decode())
    apart = "{:.3f}".format(time.time() - told["sent_s"])
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    python = find_python(told["pythons"], told["python"])
    if python is None:
        return refuse("this node has no Python {}".format(told["python"]), "install it, or name it with --python")
    near = told["near"]
    while not os.path.isdir(near):
        near = os.path.dirname(near)
    sweep(near)
    folder = tempfile.mkdtemp(prefix=PREFIX, dir=near)
    try:
        held = os.open(folder, os.O_RDONLY)
        fcntl.flock(held, fcntl.LOCK_EX)
        unpack(stream, folder)
        program = "import sys; sys.path.insert(0, {!r}); from perdure.__main__ import main; sys.exit(main())".format(
            os.path.join(folder, "tree", told["packages"])
        )
        words = [word.replace("{payload}", folder).replace("{apart}", apart) for word in told["arguments"]]
        child = subprocess.Popen(
            [python, "-I", "-B", "-c", program, *words],
            stdin=subprocess.DEVNULL,
            cwd="/",
        )
        try:
            return child.wait()
        finally:
            if child.returncode is None:
                child.terminate()
                child.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def find_python(names: "list[str]", wanted: str) -> "str | None":
    """Return the first of `names` that is Python `wanted`, such as 3.11."""
    path = os.environ.get("PATH", "") + ":/usr/local/bin:/usr/bin:/bin"
    for name in names:
        found = shutil.which(name, path=path)  # type: str | None
        if found is None:
            continue
        asked = subprocess.run(
            [found, "-I", "-c", "import sys; print('{}.{}'.format(*sys.version_info))"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            check=False,
        )
        if asked.stdout.decode("ascii", "replace").strip() == wanted:
            return found
    return None


def sweep(near: str) -> None:
    """Remove the folders of calls that were killed: those that nobody holds."""
    for name in os.listdir(near):
        folder = os.path.join(near, name)
        if not name.startswith(PREFIX) or os.path.islink(folder) or os.lstat(folder).st_uid != os.geteuid():
            continue
        held = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:
            pass
        finally:
            os.close(held)


def unpack(stream: "typing.IO[bytes]", folder: str) -> None:
    """Write the files of the archive in `stream` below `folder`. What it names was checked by who packed it; links are not followed."""
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            if member.name.startswith("/") or ".." in member.name.split("/"):
                raise SystemExit("perdure: the payload names " + repr(member.name))
            target = os.path.join(folder, member.name)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            if member.issym():
                os.symlink(member.linkname, target)
                continue
            content = archive.extractfile(member)
            if content is None:
                raise SystemExit("perdure: the payload holds something else than files")
            with open(target, "wb") as handle:
                shutil.copyfileobj(content, handle)
            os.chmod(target, member.mode & 0o755)


def refuse(message: str, hint: str) -> int:
    error = {"error": {"code": "environment", "message": message, "hint": hint, "retryable": False}}
    sys.stderr.write(json.dumps(error) + "\n")
    return 20


if __name__ == "__main__":
    sys.exit(main())
