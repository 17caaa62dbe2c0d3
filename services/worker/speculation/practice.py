"""Questions to a proposer that are only rehearsed: shortly before the end of a step, so that both sides have in their
caches what the next question takes, and the proposer stays awake for it.

What was asked last is asked again, word for word, so the answer changes nothing there; and beside it about a text of
our own that grows, as texts do from question to question.
"""

from __future__ import annotations

from msgspec.structs import replace

from services.api.messages import Propose, ProposeItem

# Of our own text; those of requests begin at 1.
OWN = -1
# It begins with so many tokens, grows by so many, and begins anew before it is longer than that.
FIRST, MORE, LONGEST = 32, 3, 1024
# After so many tokens it repeats itself.
CYCLE = 24


class Practice:
    def __init__(self) -> None:
        # Of our own text, as far as the proposer has heard of it; 0: it hasn't.
        self._length = 0

    def question(self, propose: Propose, known: list[ProposeItem]) -> Propose:
        """Like `propose`, about those of its items whose answer has been heard."""
        again = [replace(item, tokens=[], first=False, prediction=[]) for item in known]
        return replace(propose, items=[self._own(known[0]), *again], forget=[], ended=[], rehearsed=True)

    def _own(self, like: ProposeItem) -> ProposeItem:
        first = self._length == 0 or self._length + MORE > LONGEST
        begin, self._length = (0, FIRST) if first else (self._length, self._length + MORE)
        return ProposeItem(
            sequence_id=OWN,
            committed=self._length,
            tokens=[place % CYCLE for place in range(begin, self._length)],
            first=first,
            budget=like.budget,
            method=like.method,
            learn=False,
        )

    def forgotten(self, unknown: list[int]) -> None:
        """What the proposer says it doesn't know."""
        if OWN in unknown:
            self._length = 0

    def leave(self) -> list[int]:
        """The sequences it is to forget."""
        known, self._length = self._length, 0
        return [OWN] if known else []
