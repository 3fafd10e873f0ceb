"""Jobs out of JSON of any size, one at a time. Called by `sacct_json`.

The root is read by hand as far as its ``jobs``; each job, and each other value, is decoded by the standard library from a buffer
that is refilled as needed. Memory is bounded by the largest job.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from typing import Any, BinaryIO

from perdure import errors
from perdure.history import lines  # registers the error handler that keeps undecodable bytes

_CHUNK_BYTES = 1 << 20
VALUE_LIMIT_CHARS = 64 << 20
"""A single value beyond this is no job: the file is damaged."""
_SPACE = " \t\r\n\ufeff"


class JsonStream:
    """Reads documents of the form ``{"jobs": […], …}``, arrays of jobs, or jobs that follow each other."""

    def __init__(self, handle: BinaryIO, name: str) -> None:
        self._handle = handle
        self._name = name
        self._decode = codecs.getincrementaldecoder("utf-8")(lines.KEEP_BYTES)
        self._decoder = json.JSONDecoder(strict=False)
        self._text = ""
        self._at = 0
        self._ended = False
        self.bytes_read = 0
        self.bad_utf8 = 0
        self.saw_jobs = False
        self.others: list[dict[str, Any]] = []
        """What each document holds beside its jobs."""

    def jobs(self) -> Iterator[Any]:
        """Yield every job of every document. Raises `errors.InputFormat` where the JSON is damaged."""
        while self._peek():
            if self._peek() == "[":
                self.saw_jobs = True
                yield from self._array()
            elif self._peek() == "{":
                yield from self._document()
            else:
                raise self._damaged("there is something between documents that is no JSON")

    def _document(self) -> Iterator[Any]:
        rest: dict[str, Any] = {}
        self._at += 1
        while self._peek() != "}":
            key = self._value()
            self._expect(":")
            if key == "jobs" and self._peek() == "[":
                self.saw_jobs = True
                yield from self._array()
            else:
                rest[str(key)] = self._value()
            if self._peek() == ",":
                self._at += 1
            elif self._peek() != "}":
                raise self._damaged("a comma is missing")
        self._at += 1
        if "job_id" in rest:
            self.saw_jobs = True
            yield rest
        elif len(self.others) < 1000:
            self.others.append(rest)

    def _array(self) -> Iterator[Any]:
        self._at += 1
        while self._peek() != "]":
            yield self._value()
            if self._peek() == ",":
                self._at += 1
            elif self._peek() != "]":
                raise self._damaged("a comma is missing")
        self._at += 1

    def _peek(self) -> str:
        """The next character that is no white space, or nothing at the end."""
        while True:
            while self._at < len(self._text):
                char = self._text[self._at]
                if char not in _SPACE:
                    return char
                self._at += 1
            if not self._fill():
                return ""

    def _expect(self, char: str) -> None:
        if self._peek() != char:
            raise self._damaged(f"a {char!r} is missing")
        self._at += 1

    def _value(self) -> Any:
        if not self._peek():
            raise self._damaged("it ends in the middle")
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                if len(self._text) - self._at > VALUE_LIMIT_CHARS or not self._fill():
                    raise self._damaged(error.msg if not self._ended else "it ends in the middle, or a value is malformed") from error
                continue
            except (RecursionError, ValueError) as error:
                raise self._damaged("a value is nested too deeply or out of range") from error
            # A number may go on in what has not been read yet.
            if end == len(self._text) and not isinstance(value, str | dict | list) and self._fill():
                continue
            self._at = end
            return value

    def _fill(self) -> bool:
        """Read on, doubling what is held while one value does not fit. Returns False at the end of the file."""
        if self._ended:
            return False
        held = self._text[self._at :]
        raw = self._handle.read(max(_CHUNK_BYTES, len(held)))
        self.bytes_read += len(raw)
        self._ended = not raw
        fresh = self._decode.decode(raw, final=not raw)
        if not fresh.isascii():
            self.bad_utf8 += sum("\uef80" <= char <= "\uefff" for char in fresh)
        self._text, self._at = held + fresh, 0
        return bool(fresh) or (not self._ended and self._fill())

    def _damaged(self, why: str) -> errors.InputFormat:
        return errors.InputFormat(
            f"{self._name}: damaged JSON near byte {self.bytes_read - len(self._text) + self._at}: {why}",
            hint="was it written to its end? pull it again",
        )
