"""Run the command line as an ordinary user: `python tests/as_user.py UID GID GROUP,… [LIMIT=N…] -- ARGUMENTS`, started by root.

Or a function of a test's module: `… -- +call MODULE.py NAME JSON`, which prints as JSON what it returns.

The interpreter of these tests may lie where only root can read: everything is imported before the user is put on, for good.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import pwd  # noqa: F401 - asked for by name later
import resource
import sys

_LATER = (
    "perdure.agent.relay",
    "perdure.agent.waiting",
    "rich.progress",
    "rich.segment",
    "rich.table",
)
"""What commands import only when they need it."""
_RUNNING = ("perdure.supervisor.start", "perdure.supervisor.wanted")
"""What those import that do without an agent."""


def main() -> int:
    uid, gid = int(sys.argv[1]), int(sys.argv[2])
    groups = [int(group) for group in sys.argv[3].split(",") if group]
    limits = [word for word in sys.argv[4 : sys.argv.index("--")] if word]
    argv = sys.argv[sys.argv.index("--") + 1 :]
    if argv[0] == "+call":
        function = _function(argv[1], argv[2])
        _become(uid, gid, groups)
        sys.stdout.write(json.dumps(function(*json.loads(argv[3]))))
        return 0
    _prepare(argv)
    for limit in limits:
        name, _, value = limit.partition("=")
        if name == "nice":
            os.nice(int(value))
        elif name == "cpu":
            os.sched_setaffinity(0, {int(value)})
        else:
            resource.setrlimit(getattr(resource, name), (int(value), int(value)))
    _become(uid, gid, groups)
    from perdure.__main__ import main as command

    return command(argv)


def _prepare(argv: list[str]) -> None:
    """Import what the command of `argv` may need later."""
    from perdure.cli import app

    members = {group: members for group, (_, members) in app.GROUPS.items()}
    target = app.COMMANDS.get(argv[0]) or members[argv[0]][argv[1]]
    for name in (target.partition(":")[0], *_LATER, *(_RUNNING if argv[0] in {"run", "restore"} else ())):
        importlib.import_module(name)
    app.build(summaries=False)


def _become(uid: int, gid: int, groups: list[int]) -> None:
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def _function(path: str, name: str):
    import perdure.agent.client

    assert perdure.agent.client  # what the functions need later has to be there before the user is put on
    spec = importlib.util.spec_from_file_location("called", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


if __name__ == "__main__":
    sys.exit(main())
