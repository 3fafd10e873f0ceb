"""What a seat's supervisor says, told to the user's process instead of written to a descriptor. Called by `seat`."""

from __future__ import annotations

import msgspec

from perdure.agent import replies
from perdure.agent.replies import Reply, Started
from perdure.supervisor import wire
from perdure.supervisor.line import Line
from perdure.supervisor.messages import Event
from perdure.supervisor.voice import Voice

_MOST_TEXT = 300
_MOST_ABOUT = 100
"""A task writes lines of at most 4 KB, and a character may take six bytes."""


class Told(Voice):
    """Speaks over `line`. `events`: programs want to know of each; with `in_words` the other side writes all it is told where the
    workload writes, so that each event is said there, as a line of JSON."""

    def __init__(self, line: Line, *, quiet: bool, events: bool, in_words: bool = False) -> None:
        super().__init__(quiet=quiet, as_json=False)
        self._line = line
        self._is_quiet = quiet
        self._wants_events = events
        self._in_words = in_words
        self.has_begun = False
        """The workload runs, or ran."""

    def say(self, words: str) -> None:
        """Say `words` to the user."""
        if not self._is_quiet:
            self._line.tell(replies.encode(Reply(said=words)))

    def event(self, event: Event) -> None:
        """Tell of `event` where that is wanted, and always that the workload runs."""
        for listener in self.listeners:
            listener(event)
        if event.phase == "running":
            self.has_begun = True
            self._line.tell(replies.encode(Reply(started=Started(event.workload, event.text or None))))
        if self._wants_events and not self._in_words:
            self._line.tell(replies.encode(Reply(event=event)))
        elif self._wants_events and event.done_bytes is None:  # how far storing is would be ten lines a second
            brief = msgspec.structs.replace(
                event, text=event.text[:_MOST_TEXT], about=event.about[:_MOST_ABOUT], remedy=event.remedy[:_MOST_ABOUT]
            )
            self._line.tell(replies.encode(Reply(said=f"event {wire.encode(brief).decode()}")))
