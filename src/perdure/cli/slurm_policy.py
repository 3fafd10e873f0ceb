"""`perdure slurm policy`: check the admin's policy, put it into force, show what is in force."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from cyclopts import Parameter

from perdure import errors
from perdure.cli import console
from perdure.slurm import policy

_FileOption = Annotated[Path, Parameter(name="--file", help="The policy.")]


def policy_(
    action: Annotated[Literal["show", "check", "apply"], Parameter(help="What to do: show, check or apply.")] = "show",
    /,
    *,
    file: Annotated[Path, Parameter(help="The policy that check and apply read.")] = Path(policy.POLICY_FILE),
    common: console.Common = console.Common(),
) -> None:
    """Which jobs are kept without being asked by them: by partition, QOS, account and user.

    People write /etc/perdure/slurm.toml. `check` says what is wrong with it. `apply` (as root) puts it into force on this node, for every
    job that starts from then on; no daemon is restarted. `show` prints what is in force: what the shim reads in each task.

    Example: `perdure slurm policy apply`
    """
    match action:
        case "show":
            _show(common)
        case "check":
            _check(file, common)
        case "apply":
            _apply(file, common)


def _apply(file: Path, common: console.Common) -> None:
    changed = policy.apply(policy.load(str(file), trusted=True))
    if common.json:
        console.print_json({"changed": changed, "path": policy.SHIM_FILE})
        return
    console.note(common, f"{file} is in force" if changed else "nothing has changed")


def _check(file: Path, common: console.Common) -> None:
    if not file.exists():
        raise errors.InputMissing(f"{file}: no such policy", hint="perdure slurm install makes one")
    read = policy.load(str(file), trusted=False)
    in_force = _in_force() == policy.parse_shim(policy.render(read))
    if common.json:
        console.print_json({"ok": True, "in_force": in_force})
        return
    console.note(common, f"{file} is right" + ("" if in_force else ", and not in force here: perdure slurm policy apply"))


def _show(common: console.Common) -> None:
    found = _in_force()
    if found is None:
        raise errors.InputMissing(f"{policy.SHIM_FILE}: there is none, and the admin opts nobody in", hint="perdure slurm policy apply")
    if common.json:
        console.print_json(found)
        return
    out = console.out()
    for names, never in ((found.opt_in, ""), (found.never, "never ")):
        for key, values in msgspec.structs.asdict(names).items():
            if values:
                out.print(console.printable(f"{never}{key}: {', '.join(values)}"))
    for key, value in found.options.items():
        out.print(console.printable(f"option {key} = {value}"))
    if found == policy.Policy():
        console.note(common, "nobody is opted in by the admin")


def _in_force() -> policy.Policy | None:
    try:
        content = Path(policy.SHIM_FILE).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise errors.InputDenied(f"{policy.SHIM_FILE}: {error.strerror}", hint="make it readable for all: chmod 644") from error
    return policy.parse_shim(content)
