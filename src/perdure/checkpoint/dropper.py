"""The step between a workload's init, which stays root, and the command of an ordinary user. Run by the init as a program of its own.

It takes what it is to do from the supervisor over a socket in its working directory, which is root's alone, so that nothing of it stands
in a command line, an environment or a file; becomes the user; and then becomes the command, as a login would have started it. Only then
the socket closes, without a word: a line that comes before says what was wrong. `launch` uses `find` too, for commands that need no such
step. Its start is part of the workload's, so that it imports the bare modules of the interpreter: those above them, and JSON, would double
the time.
"""

import _signal  # type: ignore[import-not-found]  # the interpreter has it, the stubs do not
import _socket
import ctypes
import marshal
import os
import resource
import stat

SOCKET = "start.sock"
"""Where the supervisor listens, in the folder that the init works in."""

_DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
_MAX_HASHBANG = 256
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_CAPABILITY_VERSION_3 = 0x20080522


class Unusable(Exception):
    """A command that cannot be run: not there, or there and not to be executed."""

    def __init__(self, message: str, *, hint: str, is_missing: bool) -> None:
        super().__init__(message)
        self.hint = hint
        self.is_missing = is_missing


def find(name: str, path: str | None, folder: str) -> str:
    """Return the path of the program that a shell in `folder` would run for `name` with the search path `path` (None: there is none).

    Absolute, or as given. Raises `Unusable`.
    """
    if "/" in name:
        places = [os.path.join(folder, name)]
    else:
        search = _DEFAULT_PATH if path is None else path
        places = [os.path.join(folder, each or ".", name) for each in search.split(":")]
    refused: str | None = None
    for place in places:
        try:
            mode = os.stat(place).st_mode
        except (OSError, ValueError):
            continue
        if stat.S_ISREG(mode) and os.access(place, os.X_OK):
            _check_interpreter(place)
            return name if "/" in name else place
        refused = refused or (f"{place} is a directory" if stat.S_ISDIR(mode) else f"{place} may not be executed")
    if refused:
        raise Unusable(refused, hint=f"chmod +x {name}" if refused.endswith("executed") else "name a program", is_missing=False)
    raise Unusable(f"{name}: command not found", hint="check its name and PATH", is_missing=True)


def _check_interpreter(program: str) -> None:
    """Refuse a script whose interpreter is not there: the kernel would say that the script itself is missing."""
    try:
        with open(program, "rb") as handle:
            first = handle.read(_MAX_HASHBANG).partition(b"\n")[0]
    except OSError:
        return  # executable and not readable is allowed
    if first.startswith(b"#!") and first[2:].split():
        interpreter = os.fsdecode(first[2:].split()[0])
        if not os.path.exists(interpreter):
            hint = "install it, or mend the first line"
            raise Unusable(f"{program}: its interpreter {interpreter} is not there", hint=hint, is_missing=True)


def _drop(channel: _socket.socket) -> None:
    content = b""
    while part := channel.recv(1 << 16):
        content += part
    request = marshal.loads(content)  # noqa: S302 - root's own words, to the same interpreter
    _raise(request["limits"])
    _become(request["uid"], request["gid"], request["groups"])
    folder = request["working_directory"]
    os.chdir(folder)
    os.umask(request["umask"])
    environment = {_bytes(name): _bytes(value) for name, value in request["environment"]}
    path = environment.get(b"PATH")
    argv = [_bytes(word) for word in request["argv"]]
    program = find(os.fsdecode(argv[0]), None if path is None else os.fsdecode(path), folder)
    # Python ignores these two for itself; a signal that is ignored would stay so for the command.
    for number in (_signal.SIGPIPE, _signal.SIGXFSZ, _signal.SIGTTIN, _signal.SIGTTOU):
        _signal.signal(number, _signal.SIG_DFL)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, [])
    _limit(request["limits"])
    os.execve(program, [os.fsencode(program), *argv[1:]], environment)  # noqa: S606 - a program with its arguments is what was asked for


def _raise(limits: list[tuple[int, int, int]]) -> None:
    """Raise the hard limits that are lower than the user's, as far as root may: the user cannot."""
    for number, _, hard in limits:
        now = resource.getrlimit(number)
        if now[1] != resource.RLIM_INFINITY and (hard == resource.RLIM_INFINITY or hard > now[1]):
            try:
                resource.setrlimit(number, (now[0], hard))
            except (ValueError, OSError):
                continue  # a root without CAP_SYS_RESOURCE: what there is has to do


def _limit(limits: list[tuple[int, int, int]]) -> None:
    """Set the user's limits; none is higher than what this process has."""
    for number, soft, hard in limits:
        most = resource.getrlimit(number)[1]
        resource.setrlimit(number, (_lower(soft, most), _lower(hard, most)))


def _lower(one: int, other: int) -> int:
    if resource.RLIM_INFINITY in (one, other):
        return other if one == resource.RLIM_INFINITY else one
    return min(one, other)


def _become(uid: int, gid: int, groups: list[int]) -> None:
    """Become the user, for good: no capability is left but in the bounding set, as after a login."""
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    libc = ctypes.CDLL(None, use_errno=True)
    # Kernels that know no ambient capabilities have none to clear.
    libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    _check(libc.capset(header, (ctypes.c_uint32 * 6)()))
    left = (ctypes.c_uint32 * 6)()
    _check(libc.capget(header, left))
    are_groups = sorted(os.getgroups()) == sorted(groups)
    if any(left) or os.getresuid() != (uid,) * 3 or os.getresgid() != (gid,) * 3 or not are_groups:
        raise PermissionError(1, "something of root's rights is left")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _main() -> None:
    channel = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    channel.connect(SOCKET)
    try:
        _drop(channel)
    except Unusable as error:
        told = ("missing" if error.is_missing else "refused", str(error), error.hint)
    except OSError as error:
        told = ("failed", str(error.errno), os.fsdecode(error.filename or ""))
    channel.sendall(b"\0".join(part.encode("utf-8", "backslashreplace") for part in told))
    os._exit(1)


if __name__ == "__main__":
    _main()
