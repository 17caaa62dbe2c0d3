"""Prompt lookup: what followed the last few tokens of the text earlier in its prompt or output. The longest n-gram is
tried first, and of several occurrences the last one counts. Texts of other requests are not used."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from services.proposer.plain.automaton import Reader, shortened
from services.proposer.plain.guess import Guess
from services.proposer.plain.rates import NGRAM, counted
from services.proposer.plain.texts import Followed
from services.proposer.text_drafter import TextDrafter


class NgramDrafter(TextDrafter):
    name: ClassVar[str] = "ngram"
    sources: ClassVar[tuple[str, ...]] = (NGRAM,)

    def guess(self, followed: Followed, ahead: Sequence[int], longest: int) -> Guess:
        return replace(most_recent(followed, ahead, longest), source=NGRAM)


def most_recent(followed: Followed, ahead: Sequence[int], longest: int, calibrated: bool = False) -> Guess:
    """What came behind the last earlier occurrence. At the end it goes on with its own guess: a match that near to the
    end is a text that repeats itself, and the repetition goes on.

        text  x y z x y z        the place is the second x  ->  x y z x y
                    ^
    """
    options = followed.options
    whole = followed.text.tokens + array("i", ahead)
    place, size = last_place(whole, len(followed.text.tokens), options.least_ngram, options.most_ngram)
    if not size:
        return Guess()
    period = len(whole) - place
    tokens = [whole[place + at % period] for at in range(longest)]
    return Guess(tokens, shares_of(followed.own(ahead), size, tokens, calibrated, not ahead), size)


def last_place(whole: array[int], said: int, least: int, most: int) -> tuple[int, int]:
    """(the place behind the last earlier occurrence of the longest n-gram at the end, its n); (0, 0): there is none.
    The first `said` tokens are searched."""
    data, width = whole.tobytes(), whole.itemsize
    for size in range(min(most, len(whole)), least - 1, -1):
        gram = data[-size * width :]
        at = data.rfind(gram, 0, min(said, len(whole) - 1) * width)
        # Not between two tokens.
        while at > 0 and at % width:
            at = data.rfind(gram, 0, at + len(gram) - 1)
        if at >= 0:
            return at // width + size, size
    return 0, 0


def shares_of(reader: Reader, size: int, tokens: list[int], calibrated: bool, at_end: bool) -> list[float]:
    """How often each token followed the tokens before it, beginning with the last `size`; of those, only as many as it
    ever followed. `calibrated`: shares by which rates are measured; an occurrence `at_end` is followed by nothing."""
    automaton = reader.automaton
    state, length, shares = shortened(reader.state, size), size, []
    for token in tokens:
        while token not in state.next and state.link is not None:
            state = state.link
            length = state.length
        times = automaton.tokens if state.link is None else state.count
        target = state.next.get(token)
        followed = target.count if target else 0
        shares.append(counted(followed, times - at_end) if calibrated else followed / times)
        at_end = False
        length = min(length + 1, automaton.depth) if target else 0
        state = shortened(target, length) if target else automaton.root
    return shares
