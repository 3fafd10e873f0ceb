"""Who waits for a checkpoint: told what goes on, and how it ended. Called by `keeper`."""

from __future__ import annotations

from perdure import errors
from perdure.supervisor.control import Client
from perdure.supervisor.messages import Answer, Event


class Askers:
    """Clients of the checkpoint that is being made, and of the one after it."""

    def __init__(self) -> None:
        self._present: list[Client] = []
        self._next: list[Client] = []

    def add(self, client: Client) -> None:
        """Let `client` wait for the next checkpoint."""
        self._next.append(client)

    def begin(self) -> None:
        """The next checkpoint begins: it is that of all who wait for it."""
        self._present, self._next = self._next, []

    @property
    def are_there(self) -> bool:
        """Tell whether somebody waits for the present one."""
        return any(self._present)

    def tell(self, message: Event | Answer) -> None:
        """Tell those of the present one."""
        for client in self._present:
            client.tell(message)

    def refuse(self, error: errors.PerdureError) -> None:
        """Tell those of the present one that it was not made."""
        for client in self._present:
            client.refuse(error)

    def release(self) -> None:
        """They have been told everything."""
        self._present = []

    def tell_all(self, answer: Answer) -> None:
        """Tell everybody who waits."""
        for client in (*self._present, *self._next):
            client.tell(answer)
