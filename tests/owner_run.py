"""A root supervisor of an ordinary user's workload, as the node's agent starts one. Run as a program: the one argument is JSON.

``uid gid groups``: who it is for; ``argv cwd environment umask``: the command, empty for what is known of the name; ``name state run
store``; ``options``: those of `Options`; ``more``: other fields of `Wanted`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from perdure import errors
from perdure.base import settings
from perdure.checkpoint.criu import locate
from perdure.model.checkpoint import Owner
from perdure.supervisor import start
from perdure.supervisor.folders import Folders
from perdure.supervisor.place import Place
from perdure.supervisor.record import Options
from perdure.supervisor.voice import Voice
from perdure.supervisor.wanted import Setup, Wanted


def main(told: dict) -> int:
    owner = Owner(uid=told["uid"], gid=told["gid"], groups=tuple(told["groups"]))
    folders = Folders(Path(told["state"]), Path(told["run"])).of_user(owner.uid)
    values = settings.load({}, working_directory=Path("/"))
    wanted = Wanted(
        name=told["name"],
        command=tuple(told["argv"]),
        working_directory=told["cwd"],
        environment=told["environment"],
        umask=told.get("umask"),
        options=Options(**{key: tuple(value) if isinstance(value, list) else value for key, value in told["options"].items()}),
        owner=owner,
        **told.get("more", {}),
    )
    setup = Setup(
        folders=folders,
        place=lambda _: Place(url=told["store"], key_file=None, cache=str(folders.cache), threads=1),
        criu=lambda: locate.places(values, os.environ),
        staging=None,
    )
    try:
        return start.run(wanted, setup, detach=False, voice=Voice(quiet=False, as_json=False, events=None))
    except errors.PerdureError as error:
        sys.stderr.write(f"refused: {error.code}: {error} ({error.hint})\n")
        return error.exit_status


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
