"""What both ends of a session share: its timing, and which calls a peer has already made."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds. Tests shorten them; the order matters: ack < resend, ping < silence, sweep below all."""

    grace: float = 1.0  # a lost connection may come back for so long
    silence: float = 3.0  # a peer with work that says nothing for so long is lost
    ping: float = 0.5
    resend: float = 0.3
    again: float = 1.0  # an ask that waits for so long is said again: it may be lost, or its answer
    ack: float = 0.025
    sweep: float = 0.1
    linger: float = 0.2  # what the sockets may still send after close
    farewell: float = 0.5  # how long a leaving node waits for its peers to have read everything


class SeenIds:
    """Which ids were seen, in bounded memory: below the floor everything counts as seen.

    Ids of one dialler grow, so an id below the floor is a late copy (or `window` calls late: it is lost,
    and a call is made at most once anyway).
    """

    __slots__ = ("_floor", "_order", "_seen", "_window")

    def __init__(self, window: int = 8192) -> None:
        self._window = window
        self._floor = 0
        self._seen: set[int] = set()
        self._order: deque[int] = deque()

    def __contains__(self, id: int) -> bool:
        return id <= self._floor or id in self._seen

    def __len__(self) -> int:
        return len(self._seen)

    def first(self, id: int) -> bool:
        """True the first time an id is shown, False ever after."""
        if id <= self._floor or id in self._seen:
            return False
        self._seen.add(id)
        self._order.append(id)
        if len(self._order) > self._window:
            oldest = self._order.popleft()
            self._seen.discard(oldest)
            self._floor = max(self._floor, oldest)
        return True
