"""An actor's letter box: bounded in letters and in bytes. Knows nothing of actors or peers."""

from __future__ import annotations

from collections import deque
from typing import Generic, Protocol, TypeVar


class Weighed(Protocol):
    @property
    def weight(self) -> int: ...


M = TypeVar("M", bound=Weighed)


class Mailbox(Generic[M]):
    """First in, first out. What does not fit is not taken."""

    def __init__(self, letters: int, weight: int) -> None:
        self._letters = letters
        self._weight = weight
        self._box: deque[M] = deque()
        self.weight = 0

    def __len__(self) -> int:
        return len(self._box)

    def put(self, mail: M) -> bool:
        """False when full. One letter always fits an empty box, however heavy."""
        if self._box and (len(self._box) >= self._letters or self.weight + mail.weight > self._weight):
            return False
        self._box.append(mail)
        self.weight += mail.weight
        return True

    def take(self) -> M | None:
        if not self._box:
            return None
        mail = self._box.popleft()
        self.weight -= mail.weight
        return mail

    def discard(self, mail: M) -> bool:
        """Take out one letter from wherever it lies; False when it is not here."""
        try:
            self._box.remove(mail)
        except ValueError:
            return False
        self.weight -= mail.weight
        return True
