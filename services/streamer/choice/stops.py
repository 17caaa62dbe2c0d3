"""Finds stop strings across token borders. Knows characters only.

The rule: generation stops at the stop string that is completed first; of several completed by the same
character, the longest. So the cut doesn't depend on how the text was split into tokens or messages.

    released text | held (a prefix of some stop string) | new text
                                                 ^ a match must end after here

Aho and Corasick's automaton (StopTable): its state is the longest end of the text that some stop string begins with, so
a character costs the same however many stop strings there are and however nearly the text matches them.
"""

from __future__ import annotations

import re

# Bits of a character in the key of a transition.
_CHARACTER = 21


class StopTable:
    """Of a request's stop strings, shared by its choices. State 0: no stop string begins with any end of the text.
    `matched` and `held`, by state: the length of the longest stop string that ends here, and of the longest end that
    a stop string goes on from."""

    __slots__ = ("_fails", "_next", "first", "held", "matched")

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._next: dict[int, int] = {}  # state and character: the state after it
        depths = [0]
        ends: set[int] = set()
        for stop in stops:
            state = 0
            for character in stop:
                key = state << _CHARACTER | ord(character)
                if key not in self._next:
                    self._next[key] = len(depths)
                    depths.append(depths[state] + 1)
                state = self._next[key]
            ends.add(state)
        goes_on = {key >> _CHARACTER for key in self._next}
        self._fails, self.matched, self.held = ([0] * len(depths) for _ in range(3))
        for key, state in sorted(self._next.items(), key=lambda each: depths[each[1]]):
            before, code = key >> _CHARACTER, key & (1 << _CHARACTER) - 1
            fail = self._fails[state] = self.after(self._fails[before], code) if before else 0
            self.matched[state] = depths[state] if state in ends else self.matched[fail]
            self.held[state] = depths[state] if state in goes_on else self.held[fail]
        # A character that leads out of state 0.
        self.first = re.compile("[" + "".join(re.escape(stop[0]) for stop in stops) + "]") if stops else None

    def __len__(self) -> int:
        """As many states; about a microsecond each to make."""
        return len(self._fails)

    def after(self, state: int, code: int) -> int:
        """The state behind a character, which is given by its code point."""
        while (following := self._next.get(state << _CHARACTER | code)) is None and state:
            state = self._fails[state]
        return following or 0


NO_STOPS = StopTable(())


class StopMatcher:
    """Feed it text; it returns the text that can be sent. After a match `found` is the stop string."""

    __slots__ = ("_state", "_table", "found", "held")

    def __init__(self, table: StopTable) -> None:
        self._table = table
        self._state = 0
        self.held = ""
        self.found: str | None = None

    def feed(self, text: str, *, armed: bool = True) -> str:
        """The text that is now safe. While not `armed` (min_tokens) a stop string ending here does not count."""
        table, state = self._table, self._state
        if table.first is None:
            return text
        window, place = self.held + text, len(self.held)
        while place < len(window):
            if not state:
                if (begins := table.first.search(window, place)) is None:
                    break
                place = begins.start()
            state = table.after(state, ord(window[place]))
            place += 1
            if armed and (length := table.matched[state]):
                self.found = window[place - length : place]
                self.held = ""
                return window[: place - length]
        self._state = state
        safe = len(window) - table.held[state]
        self.held = window[safe:]
        return window[:safe]

    def flush(self) -> str:
        held, self.held = self.held, ""
        self._state = 0
        return held
