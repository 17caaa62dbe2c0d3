"""An automaton's memory and bounds. loops.py fills it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from services.proposer.fast.automaton import loops
from services.proposer.fast.automaton.memory import Memory

# A short request takes a few pages.
_FIRST_ROOM = 128
# Words are 32 bits wide, and a token makes two states at most.
MOST_TOKENS = (1 << 30) - 2
_MOST_BYTES = 1 << 60


class Automaton:
    """Contexts of up to `depth` tokens are counted. At `max_tokens` or `max_bytes` it is full, and only read. With
    `looked_up` it is of one text: it keeps the last place of contexts, and its writer finds the last occurrence of
    contexts of up to that many tokens."""

    def __init__(
        self, depth: int, max_tokens: int = MOST_TOKENS, max_bytes: int = _MOST_BYTES, looked_up: int = 0
    ) -> None:
        assert looked_up <= depth, "places are kept as far as counts are"
        self._states = Memory(loops.STATE_WORDS)
        self._entries = Memory(loops.ENTRY_WORDS)
        self._buckets = Memory(loops.BUCKET_WORDS)
        self._lasts = Memory(1) if looked_up else None
        self._words: npt.NDArray[np.int64] = np.zeros(loops.AUTOMATON_WORDS, np.int64)
        self._words[[loops.STATES, loops.ENTRIES]] = 1
        self._words[[loops.BUCKETS, loops.LOW]] = loops.FIRST_BUCKETS
        self._words[loops.MAX_TOKENS], self._words[loops.MAX_BYTES] = min(max_tokens, MOST_TOKENS), max_bytes
        self._words[loops.DEPTH], self._words[loops.LOOKED_UP] = depth, looked_up
        # The words never move.
        self.address = int(self._words.ctypes.data)
        self._lay_out(2 * min(_FIRST_ROOM, self.max_tokens), min(_FIRST_ROOM, self.max_tokens))
        # The root has no link.
        self._states.set(0, loops.LINK, -1)

    def make_room(self, tokens: int) -> None:
        """Allocates for about `tokens` more tokens. Moves memory: never call it while a compiled call runs."""
        words = self._words
        self._lay_out(int(words[loops.STATES]) + 2 * tokens, int(words[loops.ENTRIES]) + tokens)

    def grow(self) -> None:
        """Doubles the table that has no room for one more token."""
        words = self._words
        states, entries = int(words[loops.STATES_ROOM]), int(words[loops.ENTRIES_ROOM])
        if words[loops.STATES] + 2 > states:
            self._lay_out(2 * states, 0)
        else:
            self._lay_out(0, 2 * entries)

    def _lay_out(self, states: int, entries: int) -> None:
        """Tokens make at most twice as many states, and three times as many transitions."""
        words = self._words
        self._states.lay_out(min(states, 2 * self.max_tokens) + 2)
        self._entries.lay_out(min(entries, 3 * self.max_tokens) + 2)
        words[loops.STATES_ROOM], words[loops.ENTRIES_ROOM] = self._states.rows, self._entries.rows
        self._buckets.lay_out(loops.BUCKETS_AN_ENTRY * self._entries.rows + loops.FIRST_BUCKETS)
        words[loops.STATES_AT], words[loops.ENTRIES_AT] = self._states.address, self._entries.address
        words[loops.BUCKETS_AT] = self._buckets.address
        if self._lasts is not None:
            self._lasts.lay_out(self._states.rows)
            words[loops.LASTS_AT] = self._lasts.address

    @property
    def max_tokens(self) -> int:
        return int(self._words[loops.MAX_TOKENS])

    @property
    def tokens(self) -> int:
        return int(self._words[loops.TOKENS])

    def held_bytes(self) -> int:
        """Bytes in use. The rest of the tables has never been touched, and takes no memory."""
        states, entries, buckets = (int(self._words[word]) for word in (loops.STATES, loops.ENTRIES, loops.BUCKETS))
        of_states = states * (loops.STATE_BYTES + (loops.LAST_BYTES if self._lasts is not None else 0))
        return of_states + entries * loops.ENTRY_BYTES + buckets * loops.BUCKET_BYTES

    def close(self) -> None:
        for memory in (self._states, self._entries, self._buckets, self._lasts):
            if memory is not None:
                memory.close()

    # For tests ----------------------------------------------------------------------

    @property
    def depth(self) -> int:
        return int(self._words[loops.DEPTH])

    @property
    def buckets_in_use(self) -> tuple[int, int]:
        """(how many, the power of two they have reached)"""
        return int(self._words[loops.BUCKETS]), int(self._words[loops.LOW])

    def tables(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Copies of states, entries and buckets, as far as they are in use."""
        words = self._words
        return (
            self._states.copy(int(words[loops.STATES])),
            self._entries.copy(int(words[loops.ENTRIES])),
            self._buckets.copy(int(words[loops.BUCKETS])),
        )
