"""One checkpoint in one file, and back into a store: migration by hand. Called by `perdure store export` and `perdure store import`.

The file holds what was saved, not how a store laid it out: `import_` writes it through the store's own writer, so the two stores may have
other keys, and nothing of other workloads that shares a pack goes along.

Who may be believed: a file made with a key file is encrypted, and is taken only with the same key file. One made without can be made by
anybody, and what is restored from it runs with the rights that it asks for: it is taken only when the caller says that it is trusted.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

import msgspec

from perdure import errors
from perdure.base import files
from perdure.model.checkpoint import CheckpointId, LifeEnd, Manifest, PartSize, StoredFile
from perdure.store import lives, locks, transfer_format
from perdure.store.locks import Lock
from perdure.store.owners import Surroundings
from perdure.store.repository import Repository
from perdure.store.transfer_format import PIECE_BYTES, SALT_BYTES

Progress = Callable[[int], None]
"""Told how many bytes of the checkpoint's files are done."""


class Imported(msgspec.Struct, frozen=True):
    """What an import did."""

    manifest: Manifest
    """As it is in the store now."""
    is_new: bool
    """False: the store had this very checkpoint, and nothing was done."""


def export(
    repository: Repository,
    checkpoint: CheckpointId,
    output: Path,
    *,
    key_file: bytes | None,
    surroundings: Surroundings,
    random: Callable[[int], bytes],
    progress: Progress,
) -> Manifest:
    """Write `checkpoint` to the file `output`, mode 0600, all of it or nothing; return its manifest.

    `key_file`: what the key file holds that the file is encrypted with; None: it is not encrypted. `random(n)` returns n random bytes fit
    for keys. Room for the largest file of the checkpoint is needed beside `output`.

    Raises as `Repository.extract`; `errors.OutputError`.
    """
    with locks.shared(repository, purpose=f"export {checkpoint}", surroundings=surroundings, using=[checkpoint]):
        manifest = msgspec.structs.replace(repository.head(checkpoint), pinned=False)
        with _scratch(output.absolute().parent) as scratch, files.replacing(output) as temporary, open(temporary, "wb") as handle:
            writer = transfer_format.Writer(handle, manifest, salt=random(SALT_BYTES), key_file=key_file)
            done_bytes = 0
            for file in manifest.files:
                for piece in _content(repository, checkpoint, file, scratch):
                    writer.piece(piece)
                    done_bytes += len(piece)
                    progress(done_bytes)
            writer.finish()
    return manifest


def import_(
    repository: Repository,
    source: Path,
    *,
    key_files: tuple[bytes, ...],
    trusted: bool,
    scratch: Path,
    surroundings: Surroundings,
    progress: Progress,
) -> Imported:
    """Bring the checkpoint in the file `source` into the store, all of it or nothing.

    `key_files`: contents of the key files that it may have been made with. `trusted`: take a file that was made without one. `scratch` is
    a folder with room for the largest file of the checkpoint. A workload that the store does not know yet has its lives counted on from
    the checkpoint's.

    Raises `errors.InputMissing`, `errors.InputFormat` for a damaged or hostile file, `errors.StoreFormat` for one of a newer Perdure,
    `errors.StoreKeyWrong` for one that none of `key_files` opens, `errors.UsageError` for one that is not trusted, `errors.ObjectExists`
    when the store has another checkpoint of that name, `errors.WorkloadBusy` when that workload is running, or is started meanwhile.
    """
    with _opened(source) as handle:
        front = transfer_format.read_front(handle, str(source))
        key_file = _key_for(front, key_files, source)
        if not front.keyed and not trusted:
            raise errors.UsageError(
                f"{source} was made without a key file: anybody can have made it, and what is restored from it runs as it says",
                hint="where you know who made it, and that nobody changed it, add --trust",
            )
        reader = transfer_format.Reader(handle, front, key_file=key_file, name=str(source))
        wanted = msgspec.structs.replace(reader.manifest, pinned=False)
        with locks.shared(repository, purpose=f"import {wanted.id}", surroundings=surroundings) as lock:
            there = _there(repository, wanted.id)
            if there is not None:
                return Imported(_same(there, wanted), is_new=False)
            _check_idle(repository, wanted.id.workload, surroundings)
            with _scratch(scratch) as folder:
                manifest = _store(repository, reader, wanted, folder=folder, lock=lock, surroundings=surroundings, progress=progress)
    return Imported(manifest, is_new=True)


def _store(
    repository: Repository,
    reader: transfer_format.Reader,
    wanted: Manifest,
    *,
    folder: Path,
    lock: Lock,
    surroundings: Surroundings,
    progress: Progress,
) -> Manifest:
    done_bytes = 0
    with repository.writer(previous=_previous(repository, wanted.id), progress=lambda _done: None) as writer:
        for file in wanted.files:
            # Its own name comes from the file: not used for a path here.
            spool = folder / "content"
            with open(spool, "xb", opener=_private) as handle:
                for piece in reader.pieces(file.size_bytes):
                    handle.write(piece)
                    done_bytes += len(piece)
                    progress(done_bytes)
            writer.add(file.name, spool, part=file.part, mode=file.mode)
            spool.unlink()
        reader.finish()
        _count_on(repository, wanted, surroundings)

        def describe(sizes: tuple[PartSize, ...], stored: tuple[StoredFile, ...]) -> Manifest:
            return msgspec.structs.replace(wanted, sizes=sizes, files=stored)

        return writer.commit(describe, require=lock.require)


def _previous(repository: Repository, checkpoint: CheckpointId) -> Manifest | None:
    """Return the newest older checkpoint of the workload that can be read."""
    for older in reversed([one for one in repository.checkpoints(checkpoint.workload) if one < checkpoint]):
        with suppress(errors.StoreCorrupt, errors.StoreFormat, errors.WorkloadMissing):
            return repository.head(older)
    return None


def _count_on(repository: Repository, wanted: Manifest, surroundings: Surroundings) -> None:
    """Let the lives of this workload be counted on from the checkpoint's, so that newer ones are newer here too.

    Raises `errors.WorkloadBusy` for one that was started since the import began: it must not take the checkpoint's life for a newer one.
    """
    _check_idle(repository, wanted.id.workload, surroundings)
    end = LifeEnd(at_ns=surroundings.wall_ns(), completed=False, status=None, reason=f"its checkpoint {wanted.id} was imported")
    is_recorded = lives.record_past(repository, wanted.id, started_ns=wanted.created_ns, end=end, surroundings=surroundings)
    # One that begins now either sees the record, or is seen here.
    try:
        _check_idle(repository, wanted.id.workload, surroundings)
    except errors.WorkloadBusy as busy:
        if is_recorded:
            lives.withdraw_past(repository, wanted.id, msgspec.structs.replace(end, reason=f"its checkpoint was not imported: {busy}"))
        raise


def _check_idle(repository: Repository, workload: str, surroundings: Surroundings) -> None:
    running = lives.alive(repository, workload, surroundings)
    if running is not None:
        raise errors.WorkloadBusy(
            f"{workload} has a life here that has not ended: {running.epoch}, process {running.supervisor_pid} on {running.hostname}",
            hint=f"stop it before its checkpoints are mixed with others: perdure stop {workload}",
        )


def _there(repository: Repository, checkpoint: CheckpointId) -> Manifest | None:
    try:
        return repository.head(checkpoint)
    except errors.WorkloadMissing:
        return None


def _same(there: Manifest, wanted: Manifest) -> Manifest:
    """Return `there` if it is the checkpoint `wanted`: alike in everything but what depends on the store."""
    if msgspec.structs.replace(there, sizes=(), pinned=False) != msgspec.structs.replace(wanted, sizes=()):
        raise errors.ObjectExists(
            f"the store has a checkpoint {wanted.id} already, and it is another one",
            hint="remove that workload first: perdure rm, or import into another store",
        )
    return there


def _key_for(front: transfer_format.Front, key_files: tuple[bytes, ...], source: Path) -> bytes | None:
    if not front.keyed:
        return None
    for key_file in key_files:
        if front.opens_with(key_file):
            return key_file
    raise errors.StoreKeyWrong(
        f"{source} was made with a key file" + (", and not with this one" if key_files else ""), hint="name it: --file-key FILE"
    )


def _content(repository: Repository, checkpoint: CheckpointId, file: StoredFile, scratch: Path) -> Iterator[bytes]:
    """Yield the content of one file of a checkpoint, verified, in pieces."""
    folder = Path(tempfile.mkdtemp(dir=scratch))
    repository.extract(checkpoint, folder, names=[file.name], progress=lambda _done: None)
    with open(folder / file.name, "rb") as handle:
        while piece := handle.read(PIECE_BYTES):
            yield piece
    shutil.rmtree(folder)


@contextmanager
def _opened(source: Path) -> Iterator[IO[bytes]]:
    with ExitStack() as stack:
        try:
            handle = stack.enter_context(open(source, "rb"))
        except PermissionError as error:
            raise errors.InputDenied(f"cannot read {source}", hint="run this as the file's owner") from error
        except OSError as error:
            raise errors.InputMissing(
                f"cannot read {source}: {error.strerror}", hint="give a file that perdure store export wrote"
            ) from error
        yield handle


@contextmanager
def _scratch(parent: Path) -> Iterator[Path]:
    """Make a private folder below `parent` for the time of the block."""
    try:
        folder = Path(tempfile.mkdtemp(prefix=".perdure-", dir=parent))
    except OSError as error:
        raise errors.OutputError(f"cannot write into {parent}: {error.strerror}", hint="choose a folder that you may write to") from error
    try:
        yield folder
    except OSError as error:
        raise errors.OutputError(f"cannot write into {parent}: {error.strerror}", hint="free some space or choose another disk") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
