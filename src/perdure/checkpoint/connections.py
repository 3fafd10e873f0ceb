"""TCP connections across a checkpoint: those within the tree are kept, those with others are closed. Called by `dump` and `restore`.

CRIU closes all connections of a restored tree or none. Where there are some within the tree, all are saved, and before the restore the
others are turned into closed sockets in the images. No packet filter is needed for it: both ends of what is kept stand still together.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from perdure import errors
from perdure.base.proc import descriptors, network, reading
from perdure.base.proc.network import Inet
from perdure.checkpoint.images import container, wire

_CONNECTED = ("established", "syn-sent", "syn-received", "fin-wait-1", "fin-wait-2", "close-wait", "last-ack", "closing")
_TYPE, _INET = 1, 4
_TYPE_INET = 4
_PROTOCOL, _STATE, _LOCAL_PORT, _REMOTE_PORT, _LOCAL, _REMOTE = 5, 6, 7, 8, 11, 12
_IPPROTO_TCP = 6
_CLOSED, _LISTEN = 7, 10
_MAPPED = b"\0" * 10 + b"\xff\xff"


def has_pair_within(pids: Iterable[int]) -> bool:
    """Tell whether two sockets of the processes `pids` are connected with each other. All are in one network namespace."""
    pids = tuple(pids)
    table = [each for each in _table(pids) if each.protocol in ("tcp", "tcp6") and each.state in _CONNECTED and each.inode]
    if not table:
        return False
    own = _socket_inodes(pids)
    ends = {(_plain(each.local), _plain(each.remote)) for each in table if each.inode in own}
    return any((remote, local) in ends for local, remote in ends)


def _table(pids: tuple[int, ...]) -> tuple[Inet, ...]:
    for pid in pids:
        with contextlib.suppress(errors.ProcessGone):
            return network.inet(pid)
    return ()


def _socket_inodes(pids: tuple[int, ...]) -> frozenset[int]:
    found: set[int] = set()
    for pid in pids:
        with contextlib.suppress(errors.ProcessGone):
            for number in descriptors.numbers(pid):
                with contextlib.suppress(errors.ProcessGone):
                    shown = reading.link(pid, f"fd/{number}")
                    if shown.startswith("socket:["):
                        found.add(int(shown[8:-1]))
    return frozenset(found)


def _plain(end: tuple[str, int]) -> tuple[str, int]:
    """An IPv4 address that is written as IPv6 is the same end."""
    address, port = end
    return address.removeprefix("::ffff:"), port


def are_saved(images: Path) -> bool:
    """Tell whether the images hold connections that can go on."""
    return any(images.glob("tcp-stream-*.img"))


def close_outside(images: Path) -> int:
    """Turn the connections in ``files.img`` whose other end is not in the images into closed sockets; returns how many there were.

    Raises `errors.InputMissing`, `errors.InputFormat` and `errors.OutputError`; the file is then as it was.
    """
    path = images / "files.img"
    image = container.read(path, container.FILES)
    sockets = {number: fields for number, entry in enumerate(image.entries) if (fields := _connected(entry)) is not None}
    ends = {_ends(fields) for fields in sockets.values()}
    entries = list(image.entries)
    changed = 0
    for number, fields in sockets.items():
        local, remote = _ends(fields)
        if (remote, local) not in ends:
            entries[number] = _closed(entries[number], fields)
            changed += 1
    if changed:
        container.write(path, container.Image(image.head, tuple(entries)))
    return changed


def _connected(entry: bytes) -> tuple[wire.Field, ...] | None:
    """Return the socket's fields when the entry is a TCP connection."""
    fields = wire.parse(entry)
    inner = wire.content(fields, _INET)
    if wire.number(fields, _TYPE) != _TYPE_INET or inner is None:
        return None
    socket = wire.parse(inner)
    is_tcp = wire.number(socket, _PROTOCOL) == _IPPROTO_TCP
    return socket if is_tcp and wire.number(socket, _STATE) not in (_CLOSED, _LISTEN) else None


def _ends(socket: tuple[wire.Field, ...]) -> tuple[tuple[bytes, int], tuple[bytes, int]]:
    local = (_address(wire.numbers(socket, _LOCAL)), wire.number(socket, _LOCAL_PORT))
    return local, (_address(wire.numbers(socket, _REMOTE)), wire.number(socket, _REMOTE_PORT))


def _address(words: tuple[int, ...]) -> bytes:
    return b"".join((word & 0xFFFFFFFF).to_bytes(4, "little") for word in words).removeprefix(_MAPPED)


def _closed(entry: bytes, socket: tuple[wire.Field, ...]) -> bytes:
    for field, value in ((_STATE, _CLOSED), (_LOCAL_PORT, 0), (_REMOTE_PORT, 0)):
        socket = wire.replaced(socket, field, value)
    return wire.assemble(wire.replaced(wire.parse(entry), _INET, wire.assemble(socket)))
