"""What an import did: every line and record accounted for. Made by `importer`, printed by `perdure history import`.

For each file ``lines = header + blank + comment + attempts + skipped + merged + unreadable``; `FileSummary.unaccounted` is the
difference, zero unless there is a fault in Perdure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

EXAMPLES = 5
"""Unreadable lines that are quoted, per file."""
QUOTED_CHARS = 160


class Example(msgspec.Struct, frozen=True):
    """A line that could not be read: untrusted text, shortened."""

    line: int | None
    text: str
    why: str


class Tally(msgspec.Struct):
    """Counts of one file while it is read."""

    lines: int = 0
    header: int = 0
    blank: int = 0
    comment: int = 0
    attempts: int = 0
    merged: int = 0
    unreadable: int = 0
    bad_utf8: int = 0
    skipped: Counter[str] = msgspec.field(default_factory=Counter)
    repaired: Counter[str] = msgspec.field(default_factory=Counter)
    examples: list[Example] = msgspec.field(default_factory=list)
    notes: list[str] = msgspec.field(default_factory=list)

    def refuse(self, line: int | None, text: str, why: str) -> None:
        """Count a line as unreadable and quote it, if it is among the first."""
        self.unreadable += 1
        if len(self.examples) < EXAMPLES:
            self.examples.append(Example(line, text[:QUOTED_CHARS], why))


class FileSummary(msgspec.Struct, frozen=True):
    """One file. A *line* is a record in JSON sources."""

    name: str
    format: str
    """``sacct text``, ``sacct json``, ``swf``, ``csv`` or ``attempts``."""
    lines: int
    header: int
    blank: int
    comment: int
    attempts: int
    """Records that became attempts, before duplicates were dropped."""
    skipped: dict[str, int]
    """Records that are no attempts, by reason: steps, revoked …"""
    merged: int
    """Lines that are a part of another line's record."""
    repaired: dict[str, int]
    """Records that were mended, by what was wrong; they are among `attempts` or `skipped`."""
    unreadable: int
    bad_utf8: int
    """Records with bytes that are not UTF-8; each such byte 0x80+n is kept as the private character U+EF80+n."""
    unknown_fields: tuple[str, ...]
    missing_fields: tuple[str, ...]
    """Fields that would have been used and are not there."""
    examples: tuple[Example, ...]
    notes: tuple[str, ...]

    @classmethod
    def of(cls, name: str, format_: str, tally: Tally, *, unknown: Sequence[str] = (), missing: Sequence[str] = ()) -> FileSummary:
        """Sum up a file from its counts."""
        return cls(
            name=name,
            format=format_,
            lines=tally.lines,
            header=tally.header,
            blank=tally.blank,
            comment=tally.comment,
            attempts=tally.attempts,
            skipped=dict(tally.skipped),
            merged=tally.merged,
            repaired=dict(tally.repaired),
            unreadable=tally.unreadable,
            bad_utf8=tally.bad_utf8,
            unknown_fields=tuple(unknown),
            missing_fields=tuple(missing),
            examples=tuple(tally.examples),
            notes=tuple(tally.notes),
        )

    @property
    def unaccounted(self) -> int:
        """Lines that are in none of the counts: zero."""
        return self.lines - (
            self.header + self.blank + self.comment + self.attempts + sum(self.skipped.values()) + self.merged + self.unreadable
        )


class ImportSummary(msgspec.Struct, frozen=True):
    """All files together, and what the table of attempts shows about their quality."""

    files: tuple[FileSummary, ...]
    lines: int
    attempts: int
    """Rows in the table."""
    repaired: dict[str, int]
    skipped: dict[str, int]
    """By reason, ``duplicate`` included."""
    unreadable: int
    unaccounted: int
    unknown_states: dict[str, int]
    """State → attempts, for states without a class of their own."""
    dst_suspects: int
    """Attempts whose times occur twice or never in the zone, or whose End − Start − Elapsed − Suspended is about an hour."""
    runaway: int
    """Attempts still RUNNING in the database far beyond their limit: the scheduler has most likely forgotten them."""
    clamped: int
    """Attempts whose start lay after their end, as far as the times tell."""
    missing_history: int
    """Earlier attempts that `Restarts` speaks of and the files do not hold: purged, or pulled without -D."""
    truncated_windows: int
    """Attempts that start at midnight sharp, when they are too many for chance: a pull with -T cuts attempts there."""
    truncated_arrays: int
    """Pending array summaries whose list of tasks was cut; pull with SLURM_BITSTR_LEN=0."""
    censored: int
    outcomes: dict[str, int]
    bad_utf8: int
    notes: tuple[str, ...]
    """What a person should know, a sentence each."""
