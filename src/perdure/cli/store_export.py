"""`perdure store export`: one checkpoint as one file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from perdure import errors
from perdure.base import files, units
from perdure.cli import console, store_open
from perdure.store import opening, transfer
from perdure.store.owners import Linux


def export(
    checkpoint: store_open.CheckpointArgument,
    /,
    *,
    output: Annotated[Path, Parameter(name=["--output", "-o"], help="File to write, private to you.")],
    file_key: Annotated[
        Path | None, Parameter(help="Key file to encrypt the file with, 32 bytes or more. Default: that of an encrypted store.")
    ] = None,
    plain: Annotated[bool, Parameter(negative="", help="Do not encrypt, though the store is.")] = False,
    store: store_open.StoreOption = None,
    key_file: store_open.KeyFileOption = None,
    common: console.Common = console.Common(),
) -> None:
    """Write one checkpoint to one file, to be carried to another machine; `perdure store import` takes it there.

    The file holds the memory of the workload, secrets and all. Without a key file it is not encrypted, and whoever could change it on its
    way decides what is run when it is restored.

    For example:

      perdure store export train-7b -o train-7b.perdure --file-key shared.key
    """
    if plain and file_key is not None:
        raise errors.UsageError("--plain and --file-key contradict each other", hint="give one of them")
    with store_open.opened(common, store, key_file) as (repository, found):
        chosen = store_open.choose(repository, checkpoint)
        sealed_with = None if plain else str(file_key) if file_key is not None else found.key_file if repository.encrypted else None
        files.refuse_same(output, sealed_with, found.key_file)
        key = opening.read_key(sealed_with)
        with console.progress(common, f"exporting {chosen}", repository.head(chosen).logical_bytes) as report:
            manifest = transfer.export(repository, chosen, output, key_file=key, surroundings=Linux(), random=os.urandom, progress=report)
    size_bytes = output.stat().st_size
    if common.json:
        console.print_json({"id": str(manifest.id), "output": str(output), "size_bytes": size_bytes, "encrypted": key is not None})
        return
    console.note(common, f"{manifest.id} written to {console.printable(str(output))}, {units.format_size(size_bytes)}")
    if key is None:
        console.note(common, "it is not encrypted: whoever reads it reads the workload's memory, and importing it needs --trust")
