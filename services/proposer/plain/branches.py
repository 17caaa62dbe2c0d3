"""A chain becomes a tree, in plain Python: beside its tokens, what else followed the same contexts, and what followed
that. fast/drafting/branches.py is the same, compiled.

    chain       a b c            the context occurred 5 times: a followed 3 times, d twice
    tree      ┬ a b c            behind a, b followed 4 times, x once
              │ └ x
              └ d e

Only automata are looked at; the chain may come from any source. A branch is of use only where the chain's token is
rejected, so its probability is at most what that token leaves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from services.api.drafter import Draft
from services.proposer.plain.automaton import Reader, State, Writer
from services.proposer.plain.rates import COUNT_PRIOR

# Nodes of a tree, its chain's among them.
MAX_NODES = 64
# At most: places of the chain at which branches are looked for, contexts at each place, and tokens that followed each.
MAX_PLACES, MAX_CONTEXTS, MAX_FOLLOWED = 8, 6, 24
# Least probability of a node given the ones before it, and of its whole path.
MIN_SHARE, MIN_PATH_SHARE = 0.02, 0.015
# Tokens that a branch goes on.
MAX_BEYOND = 6


def grown(draft: Draft, readers: Sequence[Reader], ahead: Sequence[int]) -> Draft:
    """The draft, a chain, with branches. The readers have read the text, and not what is ahead of it."""
    tree = _Tree(draft)
    for given in readers:
        reader = given.behind(ahead)
        # One occurrence of the context is the text's own end, which nothing follows yet.
        at_end, reach = isinstance(given, Writer) and not ahead, 1.0
        for place, (token, share) in enumerate(zip(draft.tokens[:MAX_PLACES], draft.confidence, strict=False)):
            tree.add_others(reader, place - 1, 1.0 - share, reach, at_end)
            reach *= share
            if reach < MIN_PATH_SHARE:
                break
            reader.read((token,))
            at_end = False
    if len(tree.tokens) == len(draft.tokens):
        return draft
    return Draft(tree.tokens, draft.source, draft.match_length, tree.parents, tree.shares)


class _Tree:
    def __init__(self, chain: Draft) -> None:
        self.tokens, self.shares = list(chain.tokens), list(chain.confidence)
        self.parents = list(range(-1, len(chain.tokens) - 1))

    def add_others(self, reader: Reader, parent: int, left: float, reach: float, at_end: bool) -> None:
        """What followed the reader's contexts, the longest first, with the probability that the chain leaves."""
        for state, _ in islice(reader.contexts(reader.length), MAX_CONTEXTS):
            times = state.count - at_end + COUNT_PRIOR
            for token in islice(_followed(state), MAX_FOLLOWED):
                target = state.next[token]
                self._add(token, target, left * target.count / times, reach, parent)

    def _add(self, token: int, target: State, share: float, reach: float, parent: int) -> None:
        """The token, and what most often followed it."""
        if (parent, token) in zip(self.parents, self.tokens, strict=True):
            return
        state = target
        for _ in range(MAX_BEYOND + 1):
            reach *= share
            if len(self.tokens) >= MAX_NODES or share < MIN_SHARE or reach < MIN_PATH_SHARE:
                return
            self.tokens.append(token)
            self.parents.append(parent)
            self.shares.append(share)
            if not state.best_count:
                return
            parent, token = len(self.tokens) - 1, state.best
            share = state.best_count / (state.count + COUNT_PRIOR)
            state = state.next[token]


def _followed(state: State) -> Iterator[int]:
    """The tokens that followed: the first one, then the last ones first."""
    first = next(iter(state.next), -1)
    if first >= 0:
        yield first
    for token in reversed(state.next):
        if token != first:
            yield token
