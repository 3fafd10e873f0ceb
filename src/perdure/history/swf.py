"""Standard Workload Format into attempts: 18 columns of numbers, −1 for what is missing, comments that begin with ``;``.

Called by `importer`. Times are seconds from ``UnixStartTime`` in the comments (else from 0, and the summary says so). A status of
2 to 4 is a part of a job that was checkpointed or swapped out and went on: REQUEUED, COMPLETED, FAILED. Processors are counted as
CPUs, and as nodes where the comments say that a node has one (``MaxNodes`` = ``MaxProcs``).
Source: Chapin et al., "Benchmarks and standards for the evaluation of parallel job schedulers", 1999; version 2.2.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from perdure.history import convert, rows
from perdure.history.lines import decode
from perdure.history.sources import Source
from perdure.history.summary import FileSummary, Tally

if TYPE_CHECKING:
    import duckdb

COLUMNS = 18
FIELDS = (
    "jobid", "jobidraw", "user", "account", "partition", "qos", "submit", "start", "end", "elapsedraw", "timelimitraw", "state", "nnodes",
    "alloccpus", "jobname", "submitline",
)  # fmt: skip
STATES = {"0": "FAILED", "1": "COMPLETED", "2": "REQUEUED", "3": "COMPLETED", "4": "FAILED", "5": "CANCELLED"}
_HEADER = re.compile(rb";\s*(\w+):\s*(\S+)")


def read(connection: duckdb.DuckDBPyConnection, source: Source, options: convert.Options) -> FileSummary:
    """Append the attempts of one SWF file to the table ``attempts``."""
    tally = Tally()
    reader = _Reader(source, tally)
    rows.append(connection, reader.records(), FIELDS, options, source=source.name, tally=tally)
    if not reader.epoch_s:
        tally.notes.append("no UnixStartTime: times count from 1970-01-01")
    return FileSummary.of(source.name, "swf", tally)


class _Reader:
    def __init__(self, source: Source, tally: Tally) -> None:
        self._source, self._tally = source, tally
        self.epoch_s = 0
        self._sizes: dict[str, int] = {}

    def records(self) -> Iterator[rows.Record]:
        tally = self._tally
        with self._source.path.open("rb") as handle:
            for number, line in enumerate(handle, 1):
                tally.lines += 1
                words = line.split()
                if not words:
                    tally.blank += 1
                elif words[0].startswith(b";"):
                    tally.comment += 1
                    self._learn(line)
                elif len(words) != COLUMNS or not all(map(_is_number, words)):
                    tally.refuse(number, decode(line.strip()), f"not {COLUMNS} numbers")
                else:
                    yield number, self._record([word.decode() for word in words])

    def _learn(self, line: bytes) -> None:
        match = _HEADER.match(line)
        if match is None or not re.fullmatch(rb"\d{1,12}", match[2]):
            return
        if match[1] == b"UnixStartTime":
            self.epoch_s = int(match[2])
        elif match[1] in (b"MaxNodes", b"MaxProcs"):
            self._sizes[match[1].decode()] = int(match[2])

    def _record(self, words: list[str]) -> dict[str, str]:
        job, submit, wait, run, allocated, _, _, requested, limit, _, status, user, group, executable, queue, partition, preceding, _ = (
            words
        )
        started = float(run) >= 0 and float(wait) >= 0
        start = self.epoch_s + float(submit) + float(wait)
        processors = allocated if float(allocated) > 0 else requested
        one_each = self._sizes.get("MaxNodes") == self._sizes.get("MaxProcs") and "MaxNodes" in self._sizes
        return {
            "jobid": job,
            "jobidraw": job,
            "user": _name("user", user),
            "account": _name("group", group),
            "partition": _name("partition", partition),
            "qos": _name("queue", queue),
            "submit": f"{self.epoch_s + float(submit):.0f}",
            "start": f"{start:.0f}" if started else "",
            "end": f"{start + float(run):.0f}" if started else "",
            "elapsedraw": run if float(run) >= 0 else "0",
            "timelimitraw": f"{float(limit) / 60:.6f}" if float(limit) > 0 else "",
            "state": STATES.get(status, f"STATUS_{status}") if float(status) >= 0 else "UNKNOWN",
            "nnodes": processors if one_each and float(processors) > 0 else "",
            "alloccpus": processors if float(processors) > 0 else "",
            "jobname": _name("executable", executable),
            "submitline": f"--dependency=afterany:{preceding}" if float(preceding) > 0 else "",
        }


def _name(kind: str, word: str) -> str:
    return f"{kind}{word}" if float(word) >= 0 else ""


def _is_number(word: bytes) -> bool:
    return re.fullmatch(rb"-?\d+(\.\d*)?", word) is not None
