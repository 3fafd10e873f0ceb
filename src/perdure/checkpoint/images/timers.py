"""Timers in CRIU's images that would never fire again, mended before a restore. Called by whoever restores.

CRIU saves a timer as its remaining time and its interval, and a remaining time of zero means *off* when a timerfd is set again. But a
periodic timerfd that has expired and was not read since shows zero, too: the kernel starts it again only when it is read (fs/timerfd.c).
It gets the shortest remaining time there is, so that it fires at once and goes on in its rhythm. One that was switched off and keeps an
interval looks alike except for its count of expiries, which is zero: it stays off. The other way about, a timerfd that was set to an
absolute time and is off would fire at once, since CRIU adds the present time to the zero (criu/pie/restorer.c): it is made relative.

What needs no cure, held by tests against CRIU: interval timers with their signal pending show zero as well, but CRIU then takes the
interval for the remaining time; POSIX timers never show zero while they run; counts of eventfd, signals pending for a signalfd and
edge-triggered epoll events are there again after a restore.
"""

from __future__ import annotations

from pathlib import Path

from perdure.checkpoint.images import container, wire

_TYPE, _TIMERFD = 1, 12
_TYPE_TIMERFD = 17
_TICKS, _SET_FLAGS, _VALUE_S, _VALUE_NS, _INTERVAL_S, _INTERVAL_NS = 5, 6, 7, 8, 9, 10
_ABSOLUTE = 1


def cure_timerfds(images: Path) -> int:
    """Mend the timerfds in ``files.img`` of the folder `images`; return how many were changed. All else stays byte for byte as it is.

    Raises `errors.InputMissing`, `errors.InputFormat` and `errors.OutputError`; the file is then as it was.
    """
    path = images / "files.img"
    image = container.read(path, container.FILES)
    mended = [_mended_file(entry) for entry in image.entries]
    changed = sum(entry is not None for entry in mended)
    if changed:
        entries = tuple(new if new is not None else old for new, old in zip(mended, image.entries, strict=True))
        container.write(path, container.Image(image.head, entries))
    return changed


def _mended_file(entry: bytes) -> bytes | None:
    fields = wire.parse(entry)
    inner = wire.content(fields, _TIMERFD)
    if wire.number(fields, _TYPE) != _TYPE_TIMERFD or inner is None:
        return None
    timer = wire.parse(inner)
    if wire.number(timer, _VALUE_S) or wire.number(timer, _VALUE_NS):
        return None
    flags = wire.number(timer, _SET_FLAGS)
    is_periodic = bool(wire.number(timer, _INTERVAL_S) or wire.number(timer, _INTERVAL_NS))
    if is_periodic and wire.number(timer, _TICKS):
        timer = wire.replaced(timer, _VALUE_NS, 1)
    elif flags & _ABSOLUTE:
        timer = wire.replaced(timer, _SET_FLAGS, flags & ~_ABSOLUTE)
    else:
        return None
    return wire.assemble(wire.replaced(fields, _TIMERFD, wire.assemble(timer)))
