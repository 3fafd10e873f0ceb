"""`perdure store verify`: read a store again, all of it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from perdure import errors
from perdure.agent import asked
from perdure.base import units
from perdure.cli import agent_side, console, findings, store_open
from perdure.store import locks, verify
from perdure.store.layout import Kind
from perdure.store.owners import Linux
from perdure.store.repository import Repository
from perdure.store.verify import Damage, Progress, Verified


def verify_(
    *,
    restore: Annotated[
        str | None,
        Parameter(help="Only this checkpoint, such as train-7b@3.12, or a workload's newest: restore it where it can do no harm."),
    ] = None,
    drop_damaged: Annotated[
        bool,
        Parameter(negative="", help="Delete damaged packs, so that new checkpoints store anew what was in them instead of sharing it."),
    ] = False,
    store: store_open.StoreOption = None,
    key_file: store_open.KeyFileOption = None,
    user: agent_side.User = None,
    common: console.Common = console.Common(),
) -> None:
    """Read every object of a store, check every hash and seal, and name what is damaged and which checkpoints that costs.

    Ends with status 13 when something is damaged or missing, with 22 when a newer Perdure wrote some of it, and with 4 when there are
    objects that are none of ours.

    With --restore, one checkpoint is taken out of the store, all of it verified, and restored into namespaces that are thrown away: it
    reaches no network, and nothing that it writes to files stays. It is seen to live for a moment and is ended. That needs root.

    For example:

      perdure store verify

      perdure store verify --restore train-7b

      perdure store verify --store s3://checkpoints/team --json
    """
    agent = agent_side.find_for_store(common, store, key_file, user)
    if agent is not None:
        _ask(agent, common, refused=restore is not None or drop_damaged)
        return
    if restore is not None:
        _try_out(restore, store, key_file, common)
        return

    def found(damage: Damage) -> None:
        if not common.json:
            _print(damage)

    with store_open.opened(common, store, key_file) as (repository, place):
        with _locked(repository, common):
            all_bytes = sum(info.size_bytes for info in repository.backend.list(""))
            with console.progress(common, "verifying", all_bytes) as report:

                def progress(how_far: Progress) -> None:
                    report(how_far.done_bytes)

                result = verify.verify(repository, threads=place.threads, found=found, progress=progress)
        dropped = _drop(repository, common, result) if drop_damaged else ()
        workloads = repository.workloads()
    _tell(common, result, workloads, dropped)


def _ask(agent: agent_side.Agent, common: console.Common, *, refused: bool) -> None:
    """Let the agent do it, and show what it found."""
    if refused:
        raise errors.Unsupported("--restore and --drop-damaged are root's alone", hint="leave them out; perdure check --restore is yours")
    answer = agent.ask(asked.StoreVerify())
    result = msgspec.convert(answer["result"], Verified)
    if not common.json:
        for damage in result.damages:
            _print(damage)
    _tell(common, result, tuple(answer["workloads"]), ())


def _tell(common: console.Common, result: Verified, workloads: tuple[str, ...], dropped: tuple[str, ...]) -> None:
    if common.json:
        console.print_json(_document(result, workloads, dropped))
    else:
        _summarise(common, result, workloads, dropped)
    _judge(result)


def _try_out(checkpoint: str, store: str | None, key_file: Path | None, common: console.Common) -> None:
    from perdure.checkpoint import staging
    from perdure.checkpoint.criu import locate
    from perdure.supervisor import trial

    values = console.load_settings(common, store=store, key_file=None if key_file is None else str(key_file))
    criu = locate.find(locate.places(values, os.environ))
    with store_open.opened(common, store, key_file) as (repository, _):
        chosen = store_open.choose(repository, checkpoint)
        surroundings, waiting = Linux(), store_open.Waits(common)
        size_bytes = repository.head(chosen).logical_bytes
        folder = trial.make_folder(size_bytes, setting=values["staging"].value, state=store_open.folders_of(values).state)
        try:
            with (
                locks.shared(repository, purpose=f"verify {chosen}", surroundings=surroundings, using=(chosen,), waiting=waiting),
                console.progress(common, f"reading {chosen}", size_bytes) as report,
            ):
                manifest = repository.extract(chosen, folder, progress=report)
            tried = trial.try_out(manifest, folder, criu)
        finally:
            staging.remove(folder)
    if common.json:
        console.print_json({"id": str(chosen), "restored": True} | msgspec.to_builtins(tried))
        return
    for finding in tried.findings:
        console.note(common, findings.line(finding))
    how = {"moved": "were seen to run", "waiting": "wait for something, as they did", "ended": "ended by themselves"}[tried.progress]
    took = units.format_duration(tried.restore_s)
    console.note(common, f"{chosen} can be restored: back in {took}, its {tried.processes} processes {how}; they were ended")


@contextlib.contextmanager
def _locked(repository: Repository, common: console.Common) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locks.shared(repository, purpose="verify", surroundings=Linux(), waiting=store_open.Waits(common)))
        except (errors.StoreLocked, errors.StoreUnavailable):
            raise
        except errors.StoreError as error:
            # A store that may only be read can be verified all the same.
            console.note(common, f"verifying without a lock: {console.printable(str(error))}")
        yield


def _drop(repository: Repository, common: console.Common, result: Verified) -> tuple[str, ...]:
    """Delete the damaged packs, alone in the store for no longer than that takes."""
    if not any(damage.kind is Kind.PACK and not damage.newer for damage in result.damages):
        return ()
    with locks.exclusive(repository, purpose="verify", surroundings=Linux(), waiting=store_open.Waits(common)) as lock:
        return verify.drop_damaged(repository, result.damages, lock=lock)


def _print(damage: Damage) -> None:
    lost = f"  lost: {', '.join(map(str, damage.lost))}" if damage.lost else ""
    console.out().print(f"{damage.key}: {console.printable(damage.message)}{lost}")
    console.out().print(f"  {console.printable(damage.remedy)}")


def _summarise(common: console.Common, result: Verified, workloads: tuple[str, ...], dropped: tuple[str, ...]) -> None:
    for key in result.unknown:
        console.out().print(f"{console.printable(key)}: not ours, left alone")
    for name in sorted({one.workload for one in result.lost}):
        newest = result.newest_good(name)
        console.out().print(f"{name}: newest good checkpoint: {newest if newest is not None else 'none'}")
    good = f"{len(result.good)} good checkpoints of {len(workloads)} workloads"
    newer = sum(damage.newer for damage in result.damages)
    found = f"{len(result.damages) - newer} damages" + (f", {newer} objects of a newer Perdure" if newer else "")
    console.note(common, f"{result.objects} objects, {units.format_size(result.size_bytes)}, {good}, {found}")
    if dropped:
        console.note(common, f"{len(dropped)} damaged packs deleted")
    if result.orphan_packs:
        console.note(common, f"{units.format_size(result.orphan_bytes)} in packs that no checkpoint needs: perdure store gc")


def _document(result: Verified, workloads: tuple[str, ...], dropped: tuple[str, ...]) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(result)
    plain["damages"] = [msgspec.to_builtins(one) | {"lost": [str(each) for each in one.lost]} for one in result.damages]
    plain["lost"] = [str(one) for one in result.lost]
    plain["good"] = [str(one) for one in result.good]
    newest = {name: result.newest_good(name) for name in workloads}
    plain["newest_good"] = {name: None if one is None else str(one) for name, one in newest.items()}
    plain["dropped"] = list(dropped)
    return plain


def _judge(result: Verified) -> None:
    damaged = [damage.key for damage in result.damages if not damage.newer]
    if damaged:
        raise errors.StoreCorrupt(
            f"damaged: {_first(damaged)}",
            hint=f"{len(result.lost)} checkpoints are lost; the others can be restored" if result.lost else "no checkpoint is lost",
            object_key=damaged[0],
        )
    if result.damages:
        raise errors.StoreFormat(
            f"made by a newer Perdure, and not checked: {_first([damage.key for damage in result.damages])}",
            hint="verify with the Perdure that wrote them, or a newer one",
        )
    if result.unknown:
        raise errors.Findings(f"{len(result.unknown)} objects are not ours", hint="find out who put them there")


def _first(keys: list[str]) -> str:
    return ", ".join(keys[:3]) + (", …" if len(keys) > 3 else "")
