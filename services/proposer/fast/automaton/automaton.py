"""An automaton's memory and bounds. loops.py fills it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from services.proposer.fast.automaton.memory import Memory
from services.proposer.fast.automaton.records import (
    AUTOMATON,
    BUCKET_BYTES,
    BUCKETS_AN_ENTRY,
    ENTRY,
    FIRST_BUCKETS,
    LAST_BYTES,
    STATE,
)
from services.proposer.plain.automaton import MAX_TOKENS

# A short request takes a few pages.
_FIRST_ROOM = 128
_MOST_BYTES = 1 << 60


class FastAutomaton:
    """Contexts of up to `depth` tokens are counted. At `max_tokens` or `max_bytes` it is full, and only read. With
    `looked_up` it is of one text: it keeps the last place of contexts, and its writer finds the last occurrence of
    contexts of up to that many tokens."""

    def __init__(
        self, depth: int, max_tokens: int = MAX_TOKENS, max_bytes: int = _MOST_BYTES, looked_up: int = 0
    ) -> None:
        assert looked_up <= depth, "places are kept as far as counts are"
        self._states, self._entries, self._buckets = Memory(STATE), Memory(ENTRY), Memory(np.int32)
        self._lasts = Memory(np.int32) if looked_up else None
        # The record never moves.
        self._record: npt.NDArray[Any] = np.zeros(1, AUTOMATON)
        self.address = int(self._record.ctypes.data)
        for field, value in (
            ("states", 1), ("entries", 1), ("buckets", FIRST_BUCKETS), ("low", FIRST_BUCKETS), ("depth", depth),
            ("looked_up", looked_up), ("max_tokens", min(max_tokens, MAX_TOKENS)), ("max_bytes", max_bytes),
        ):  # fmt: skip
            self._record[field] = value
        self._lay_out(2 * min(_FIRST_ROOM, self.max_tokens), min(_FIRST_ROOM, self.max_tokens))
        # The root has no link.
        self._states.records(1)["link"] = -1

    def make_room(self, tokens: int) -> None:
        """Allocates for about `tokens` more tokens. Moves memory: never call it while a compiled call runs."""
        self._lay_out(self.figure("states") + 2 * tokens, self.figure("entries") + tokens)

    def grow(self) -> None:
        """Doubles the table that has no room for one more token."""
        states, entries = self.figure("states_room"), self.figure("entries_room")
        if self.figure("states") + 2 > states:
            self._lay_out(2 * states, 0)
        else:
            self._lay_out(0, 2 * entries)

    def _lay_out(self, states: int, entries: int) -> None:
        """Tokens make at most twice as many states, and three times as many transitions."""
        self._states.lay_out(min(states, 2 * self.max_tokens) + 2)
        self._entries.lay_out(min(entries, 3 * self.max_tokens) + 2)
        self._buckets.lay_out(BUCKETS_AN_ENTRY * self._entries.rows + FIRST_BUCKETS)
        for name, memory in (("states", self._states), ("entries", self._entries), ("buckets", self._buckets)):
            self._record[f"{name}_at"], self._record[f"{name}_room"] = memory.address, memory.rows
        if self._lasts is not None:
            self._lasts.lay_out(self._states.rows)
            self._record["lasts_at"] = self._lasts.address

    def figure(self, field: str) -> int:
        """A field of the record."""
        return int(self._record[field][0])

    @property
    def max_tokens(self) -> int:
        return self.figure("max_tokens")

    @property
    def tokens(self) -> int:
        return self.figure("tokens")

    def held_bytes(self) -> int:
        """Bytes in use. The rest of the tables has never been touched, and takes no memory."""
        of_states = self.figure("states") * (STATE.itemsize + (LAST_BYTES if self._lasts is not None else 0))
        return of_states + self.figure("entries") * ENTRY.itemsize + self.figure("buckets") * BUCKET_BYTES

    def tables(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
        """Copies of states, entries and buckets, as far as they are in use: for tests."""
        tables = ("states", self._states), ("entries", self._entries), ("buckets", self._buckets)
        states, entries, buckets = (memory.records(self.figure(name)).copy() for name, memory in tables)
        return states, entries, buckets

    def close(self) -> None:
        for memory in (self._states, self._entries, self._buckets, self._lasts):
            if memory is not None:
                memory.close()
