"""`perdure agent`: the node's service for ordinary users."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from perdure import errors
from perdure.agent import client
from perdure.base import privileges
from perdure.cli import console

_UNIT = "perdure-agent.service"


def agent(
    *,
    unit: Annotated[bool, Parameter(negative="", help="Print a systemd unit for it, and end.")] = False,
    status: Annotated[bool, Parameter(negative="", help="Ask the agent that runs which Perdure it is, and end.")] = False,
    common: console.Common = console.Common(),
) -> None:
    """Serve this node's ordinary users, as root, in the foreground: what only root may do for their workloads, and nothing else.

    It listens on a Unix socket, knows its callers by what the kernel says, and acts on what is theirs alone. Ended or killed, it
    takes no workload with it. With --json, --status prints one document.

    For example:

      perdure agent --unit > /etc/systemd/system/perdure-agent.service
    """
    if unit:
        sys.stdout.write(_unit())
        return
    values = console.load_settings(common)
    if status:
        _print_status(common, values["agent-socket"].value or client.SOCKET)
        return
    if not privileges.is_root():
        raise errors.EnvironmentUnfit("only root can be the agent", hint="run this as root, as a service: perdure agent --unit")
    _serve(values["agent-socket"].value or client.SOCKET)


def _serve(path: str) -> None:
    from perdure.agent import audit, server, site

    os.umask(0o022)
    place = site.read(os.environ)
    audit.prepare(place.values["audit-log"].value or audit.DEFAULT)
    server.Server(os.path.abspath(path), place, os.environ).serve()


def _print_status(common: console.Common, path: str) -> None:
    from perdure.agent import asked

    found = client.ask(path, asked.Status())
    if common.json:
        console.print_json(found)
        return
    console.out().print(f"perdure {found['version']} listens at {path}; {found['seats']} of your {found['most_seats']} seats are taken")


def _unit() -> str:
    """Return the unit, with the program that runs now."""
    text = (Path(__file__).parent.parent / "agent" / _UNIT).read_text("utf-8")
    program = Path(sys.argv[0])
    if program.name != "perdure" or not program.is_absolute():
        program = Path(sys.executable).with_name("perdure")
    return text.replace("@PERDURE@", str(program))
