"""`perdure store import`: a checkpoint from another machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from perdure.base import units
from perdure.cli import console, store_open
from perdure.store import opening, transfer
from perdure.store.owners import Linux


def import_(
    file: Annotated[Path, Parameter(help="File that perdure store export wrote.")],
    /,
    *,
    file_key: Annotated[Path | None, Parameter(help="Key file that it was made with. Default: the store's.")] = None,
    trust: Annotated[bool, Parameter(negative="", help="Take a file that was made without a key file: you know who made it.")] = False,
    store: store_open.StoreOption = None,
    key_file: store_open.KeyFileOption = None,
    common: console.Common = console.Common(),
) -> None:
    """Take a checkpoint from a file into the store, all of it or nothing; `perdure run` with its name then goes on from it.

    A checkpoint that the store has already is left as it is; another one of the same name is refused.

    For example:

      perdure store import train-7b.perdure --file-key shared.key && perdure run --name train-7b -- python train.py
    """
    with store_open.opened(common, store, key_file, create=True) as (repository, found):
        keys = (opening.read_key(str(file_key)) if file_key is not None else None, opening.read_key(found.key_file))
        Path(found.cache).mkdir(mode=0o700, parents=True, exist_ok=True)
        with console.progress(common, "importing", None) as report:
            imported = transfer.import_(
                repository,
                file,
                key_files=tuple(key for key in keys if key is not None),
                trusted=trust,
                scratch=Path(found.cache),
                surroundings=Linux(),
                progress=report,
            )
    manifest = imported.manifest
    if common.json:
        console.print_json({"id": str(manifest.id), "is_new": imported.is_new, "new_bytes": manifest.new_bytes})
        return
    if imported.is_new:
        console.note(
            common, f"{manifest.id} imported: {units.format_size(manifest.logical_bytes)}, {units.format_size(manifest.new_bytes)} new"
        )
    else:
        console.note(common, f"{manifest.id} is in the store already")
