"""The options of a request, read: what a user may decide about the keeping of a workload, and nothing else. Called by `seat`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal, cast

import msgspec

from perdure import errors
from perdure.model.checkpoint import CheckpointId, check_name
from perdure.supervisor import quantities
from perdure.supervisor.record import Options

_MOST_OUTPUTS = 100
_MOST_WORD = 4096


class Wishes(msgspec.Struct, frozen=True, kw_only=True):
    """What is wished for."""

    options: Options
    name: str | None = None
    fresh: bool = False
    must_resume: bool = False
    origin: CheckpointId | None = None
    end_ns: int | None = None
    detach: bool = False
    quiet: bool = False
    events: bool = False
    cpu_check: Literal["features", "strict", "off"] | None = None


def read(options: tuple[tuple[str, str], ...]) -> Wishes:
    """Read `options`; of a key that is there twice the last counts, but for ``outputs``, which add up.

    Raises `errors.UsageError` for a key or a value that is not among those that a user may give.
    """
    wishes: dict[str, object] = {}
    kept: dict[str, object] = {}
    outputs: list[str] = []
    for key, value in options:
        if len(value) > _MOST_WORD:
            raise errors.UsageError(f"option {key!r} is too long", hint=f"at most {_MOST_WORD} characters")
        if key == "outputs":
            outputs.append(_absolute(value))
        elif key in _KEPT:
            field, parse = _KEPT[key]
            kept[field] = parse(value)
        elif key in _WISHED:
            field, parse = _WISHED[key]
            wishes[field] = parse(value)
        else:
            raise errors.UsageError(f"there is no option {key!r}", hint=f"known: outputs, {', '.join([*_KEPT, *_WISHED])}")
    if len(outputs) > _MOST_OUTPUTS:
        raise errors.UsageError(f"{len(outputs)} outputs are too many", hint=f"name at most {_MOST_OUTPUTS}; a folder counts as one")
    return msgspec.convert({**wishes, "options": {**kept, "outputs": tuple(outputs)}}, Wishes)


def _absolute(path: str) -> str:
    if not path.startswith("/"):
        raise errors.UsageError(f"outputs: {path!r} is not an absolute path", hint="begin it with /")
    return path


def _flag(value: str) -> bool:
    if value not in {"0", "1"}:
        raise errors.UsageError(f"{value!r} is neither 0 nor 1", hint="write fresh=1")
    return value == "1"


def _keep(value: str) -> int:
    if not value.isascii() or not value.isdigit() or not 1 <= len(value) <= 6 or int(value) < 1:
        raise errors.QuantityError(f"keep: {value!r} is no number of at least 1", hint="the newest checkpoint is always kept")
    return int(value)


def _nanoseconds(value: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{0,18}", value):
        raise errors.QuantityError(f"end-ns: {value!r} is no time", hint="give nanoseconds since 1970")
    return int(value)


def _one_of(*words: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        if value not in words:
            raise errors.UsageError(f"{value!r} is none of {', '.join(words)}")
        return value

    return parse


def _duration(key: str) -> Callable[[str], float]:
    return lambda value: quantities.positive(value, key)


_Parse = Callable[[str], object]

_KEPT: dict[str, tuple[str, _Parse]] = {
    "every": ("every", quantities.every),
    "mttf": ("mttf_s", _duration("mttf")),
    "before-end": ("before_end", cast("_Parse", quantities.before_end)),
    "keep": ("keep", _keep),
    "probe": ("probe", str),
    "tcp": ("tcp", _one_of("close", "keep")),
    "grace": ("grace_s", _duration("grace")),
}
"""What is remembered with the workload."""

_WISHED: dict[str, tuple[str, _Parse]] = {
    "name": ("name", check_name),
    "fresh": ("fresh", _flag),
    "must-resume": ("must_resume", _flag),
    "from": ("origin", CheckpointId.parse),
    "end-ns": ("end_ns", _nanoseconds),
    "detach": ("detach", _flag),
    "quiet": ("quiet", _flag),
    "events": ("events", _flag),
    "cpu-check": ("cpu_check", _one_of("features", "strict", "off")),
}
"""What counts for this start alone."""
