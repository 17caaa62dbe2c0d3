"""The suffix store by looking everywhere: texts in lists, counts in dicts. Obvious; what the automaton must say."""

from __future__ import annotations

from collections import defaultdict

from services.proposer.suffix_store.followers import Rule

Context = tuple[int, ...]


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
            self.followed[context][token] += 1
            if self.followed[context][token] > self.best.get(context, (0, 0))[1]:
                self.best[context] = (token, self.followed[context][token])
        before.append(token)
        for length in range(1, min(self.depth, len(before)) + 1):
            self.count[tuple(before[-length:])] += 1


class Reader:
    """The longest context that is known, of those that grow out of the last one."""

    def __init__(self, store: EveryContext) -> None:
        self.store = store
        self.context: Context = ()

    def read(self, token: int) -> None:
        context = (*self.context, token)[-self.store.depth :]
        while context and context not in self.store.count:
            context = context[1:]
        self.context = context


def walk(store: EveryContext, context: Context, budget: int, least: float) -> tuple[list[int], float]:
    tokens: list[int] = []
    score, prob = 0.0, 1.0
    while len(tokens) < budget and context in store.best:
        token, times = store.best[context]
        prob *= times / store.count[context]
        if prob < least:
            break
        tokens.append(token)
        score += prob
        context = (*context, token)[-store.depth :]
    return tokens, score


def guess(store: EveryContext, context: Context, longest: int, rule: Rule) -> tuple[list[int], float, int]:
    """All lengths, longest first; a shorter one must be better to win."""
    best: tuple[list[int], float, int] = ([], 0.0, 0)
    for length in range(len(context), 0, -1):
        budget = min(longest, int(length * rule.factor + rule.offset + 1e-6))
        tokens, score = walk(store, context[len(context) - length :], budget, rule.least)
        if score > best[1]:
            best = (tokens, score, length)
    return best
