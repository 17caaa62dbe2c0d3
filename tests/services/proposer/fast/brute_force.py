"""What followed what, by looking everywhere: texts in lists, counts in dicts. What the compiled step must say."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from services.proposer.plain.guess import DraftRule

Context = tuple[int, ...]
Guess = tuple[list[int], list[float], int]
NOTHING: Guess = ([], [], 0)


class EveryContext:
    """Counts of all contexts of up to `depth` tokens in all texts."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.texts: list[list[int]] = []
        self.count: dict[Context, int] = defaultdict(int)
        self.followed: dict[Context, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        self.best: dict[Context, tuple[int, int]] = {}

    def begin(self) -> int:
        self.texts.append([])
        return len(self.texts) - 1

    def append(self, text: int, token: int) -> None:
        before = self.texts[text]
        for length in range(1, min(self.depth, len(before)) + 1):
            context = tuple(before[-length:])
            followed = self.followed[context]
            followed[token] += 1
            times, best = followed[token], self.best.get(context, (0, 0))[1]
            # The dict's first key is the token that came first.
            overtakes = next(iter(followed)) == token or next(iter(followed.values())) != times - 1
            if times > best or (times == best > 1 and overtakes):
                self.best[context] = (token, times)
        before.append(token)
        for length in range(1, min(self.depth, len(before)) + 1):
            self.count[tuple(before[-length:])] += 1

    def times(self, context: Context, token: int) -> int:
        """How often the token came behind the context; the empty one is before every token."""
        if context:
            return self.followed[context][token] if context in self.followed else 0
        return self.count.get((token,), 0)


class Reader:
    """The longest context that is known, of those that grow out of the last one."""

    def __init__(self, store: EveryContext, context: Context = ()) -> None:
        self.store = store
        self.context = context

    def read(self, token: int) -> None:
        context = (*self.context, token)[-self.store.depth :]
        while context and context not in self.store.count:
            context = context[1:]
        self.context = context

    def behind(self, ahead: Sequence[int]) -> Context:
        copy = Reader(self.store, self.context)
        for token in ahead:
            copy.read(token)
        return copy.context


def walk(store: EveryContext, context: Context, budget: int, least: float, limit: int) -> tuple[list[int], list[float]]:
    tokens: list[int] = []
    shares: list[float] = []
    probability = 1.0
    while len(tokens) < budget and context in store.best:
        token, times = store.best[context]
        probability *= times / store.count[context]
        if probability < least:
            break
        tokens.append(token)
        shares.append(times / store.count[context])
        context = (*context, token)[-limit:]
    return tokens, shares


def score_of(shares: list[float]) -> float:
    score, probability = 0.0, 1.0
    for share in shares:
        probability *= share
        score += probability
    return score


def guess(store: EveryContext, context: Context, longest: int, rule: DraftRule) -> Guess:
    """All lengths, longest first; a shorter one must be better to win."""
    best, best_score = NOTHING, 0.0
    for length in range(len(context), 0, -1):
        budget = min(longest, int(length * rule.factor + rule.offset + 1e-6))
        tokens, shares = walk(store, context[len(context) - length :], budget, rule.least, store.depth)
        if score_of(shares) > best_score:
            best, best_score = (tokens, shares, length), score_of(shares)
    return best


# N-grams ----------------------------------------------------------------------------------------------------


def last_place(text: list[int], ahead: list[int], least: int, most: int) -> tuple[int, int]:
    """(the place behind the last earlier occurrence of the longest n-gram at the end, its n); (-1, 0): there is none.
    What is ahead can be found, and nothing is found in it."""
    whole = text + ahead
    for size in range(min(most, len(whole)), least - 1, -1):
        for place in range(min(len(text), len(whole) - 1), size - 1, -1):
            if whole[place - size : place] == whole[len(whole) - size :]:
                return place, size
    return -1, 0


def continuation(tokens: list[int], start: int, budget: int) -> list[int]:
    """The `budget` tokens from `start` on; at the end of the text it goes on with its own guess."""
    found = tokens[start : start + budget]
    period = len(found)
    return found if period == budget else (found * (budget // period + 1))[:budget]


def recent(store: EveryContext, text: list[int], ahead: list[int], sizes: tuple[int, int], longest: int) -> Guess:
    place, size = last_place(text, ahead, *sizes)
    if place < 0:
        return NOTHING
    whole = text + ahead
    tokens = continuation(whole, place, longest)
    shares, context = [], tuple(whole[len(whole) - size :])
    for token in tokens:
        while context and not store.times(context, token):
            context = context[1:]
        times = store.count[context] if context else len(text)
        shares.append(store.times(context, token) / times)
        context = (*context, token)[-store.depth :] if store.times(context, token) else ()
    return tokens, shares, size
