"""What a seat's supervisor says, told to the user's process instead of written to a descriptor. Called by `seat`."""

from __future__ import annotations

from perdure.agent import replies
from perdure.agent.replies import Reply, Started
from perdure.supervisor.line import Line
from perdure.supervisor.messages import Event
from perdure.supervisor.voice import Voice


class Told(Voice):
    """Speaks over `line`. `events`: programs want to know of each."""

    def __init__(self, line: Line, *, quiet: bool, events: bool) -> None:
        super().__init__(quiet=quiet, as_json=False)
        self._line = line
        self._is_quiet = quiet
        self._wants_events = events

    def say(self, words: str) -> None:
        """Say `words` to the user."""
        if not self._is_quiet:
            self._line.tell(replies.encode(Reply(said=words)))

    def event(self, event: Event) -> None:
        """Tell of `event` where that is wanted, and always that the workload runs."""
        for listener in self.listeners:
            listener(event)
        if event.phase == "running":
            self._line.tell(replies.encode(Reply(started=Started(event.workload, event.text or None))))
        if self._wants_events:
            self._line.tell(replies.encode(Reply(event=event)))
