"""What comes from one life through its pipes: the bytes that the command prints, and what the cell tells. Called by `conduct`."""

from __future__ import annotations

import os
import selectors
from collections.abc import Callable

import msgspec

from perdure.evaluation.local import Life, Told


class Pipes:
    """Reads both pipes of `life` until they end; a context manager.

    `printed` gets bytes as they come, `told` each word of the cell, and `lost` is called when its pipe ends without the command's end told.
    """

    def __init__(self, life: Life, *, printed: Callable[[bytes], None], told: Callable[[Told], None], lost: Callable[[], None]) -> None:
        self._life = life
        self._printed = printed
        self._told = told
        self._lost = lost
        self._rest = b""
        self._is_end_told = False
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> Pipes:
        self._selector.register(self._life.output, selectors.EVENT_READ, self._read_output)
        self._selector.register(self._life.told, selectors.EVENT_READ, self._read_told)
        return self

    def __exit__(self, *_: object) -> None:
        self._selector.close()

    @property
    def are_open(self) -> bool:
        """Whether one of the pipes has not ended."""
        return bool(self._selector.get_map())

    def wait(self, longest_s: float) -> None:
        """Pass on what is there, or comes within `longest_s` seconds."""
        for key, _ in self._selector.select(longest_s):
            if not key.data():
                self._selector.unregister(key.fd)

    def _read_output(self) -> bool:
        content = os.read(self._life.output, 1 << 16)
        if content:
            self._printed(content)
        return bool(content)

    def _read_told(self) -> bool:
        content = os.read(self._life.told, 4096)
        *whole, self._rest = (self._rest + content).split(b"\n")
        for line in whole:
            told = msgspec.json.decode(line, type=Told)
            self._is_end_told = self._is_end_told or told.started is None
            self._told(told)
        if not content and not self._is_end_told:
            self._lost()
        return bool(content)
