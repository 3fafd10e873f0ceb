"""`perdure history anonymise`: a history that can be shown."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter

from perdure.base import files
from perdure.cli import console


def anonymise(
    history: Annotated[str, Parameter(help="Attempts file, or any accounting file that `perdure history import` reads; - for stdin.")],
    /,
    *,
    output: Annotated[Path, Parameter(name=["--output", "-o"], help="Attempts file (Parquet) to write.")],
    key_file: Annotated[
        Path | None,
        Parameter(help="Keep the secret here, or use the one that is here: the same history then gives the same pseudonyms again."),
    ] = None,
    coarsen_sizes: Annotated[
        bool, Parameter(negative="", help="Round sizes that one user alone has to powers of two; figures by size then change.")
    ] = False,
    cluster: Annotated[str | None, Parameter(help="Cluster of records that name none.")] = None,
    tz: Annotated[str | None, Parameter(help="Time zone of times without an offset (UTC).")] = None,
    memory_limit: Annotated[str | None, Parameter(help="Memory that it may use; beyond it, disk is used.")] = None,
    threads: Annotated[str | None, Parameter(help="Threads to use.")] = None,
    common: console.Common = console.Common(),
) -> None:
    """Anonymise a history: names gone, structure kept, so that advise gives the same figures.

    Users, accounts, clusters, partitions, nodes, paths and the words of job names become keyed pseudonyms; ids are renumbered
    in order, with requeues, arrays, groups and dependencies intact; all times are shifted by whole weeks; free text is dropped.
    The result is then searched for every word and number of the original, and is not written if one is left.

    Durations and sizes stay exact: who knows when one job ran how long can still recognise it.

    For example:

      perdure history anonymise attempts.parquet -o shareable.parquet
    """
    from perdure.history import importer, table
    from perdure.history.anonymise import anonymise as anonymiser
    from perdure.history.anonymise import key

    values = console.load_settings(common, cluster=cluster, tz=tz, memory_limit=memory_limit, threads=threads)
    files.refuse_same(output, history, key_file)
    connection = table.connect(memory_limit=str(values["memory-limit"].value), threads=console.threads(values))
    size = os.path.getsize(history) if os.path.isfile(history) else None
    with console.progress(common, "reading", size) as report:
        request = importer.Request(cluster=values["cluster"].value, tz=str(values["tz"].value))
        importer.open_history(connection, history, request, progress=lambda _name, done: report(done))
    secret = key.make() if key_file is None else key.load_or_make(key_file)
    console.note(common, "anonymising, and looking for what is left")
    done = anonymiser.anonymise(connection, output, key=secret, coarsen=coarsen_sizes)
    if common.json:
        console.print_json({"output": str(output), "key_file": str(key_file) if key_file else None, **msgspec.to_builtins(done)})
        return
    print_ = console.out().print
    print_(f"{console.printable(str(output))}: {done.rows:,} attempts")
    print_(
        f"proof: none of {done.proof.words:,} words and {done.proof.numbers:,} numbers of the original is left"
        f" in {done.proof.texts:,} different texts ({done.proof.cells:,} cells)"
    )
    if done.unique_sizes:
        print_(
            f"{done.unique_sizes:,} sizes belong to one user alone ({done.unique_size_attempts:,} attempts): "
            + ("rounded to powers of two" if done.coarsened else "kept, so that figures stay; --coarsen-sizes rounds them")
        )
