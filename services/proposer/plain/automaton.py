"""The suffix automaton in plain Python: what followed every context that has occurred, in linear time and memory.

A state stands for all contexts that have occurred at the same places. The longest has `length` tokens, each shorter one
is a suffix of it, down to one token more than `length` of its `link` has. The root is the empty context.

    text  a b c a b x        "b" and "ab" end at the same places: one state, length 2, count 2, link the root.
                             They were followed by c first, then by x: best c, best_count 1.

Several texts may be written in turns. Counts are exact for contexts of up to `depth` tokens, and for those with one
token behind them. fast/automaton/ is the same in flat memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

# Memory of a token, about: two states and their transitions.
BYTES_A_TOKEN = 450
# The compiled one's numbers are 32 bits wide, and a token makes two states at most.
MAX_TOKENS = (1 << 30) - 2


@dataclass(slots=True, eq=False)
class State:
    length: int = 0
    link: State | None = None
    count: int = 0
    # The token that most often came next, and how often.
    best: int = -1
    best_count: int = 0
    # Where each token leads, in the order in which they first came.
    next: dict[int, State] = field(default_factory=dict)


class Automaton:
    def __init__(self, depth: int, max_tokens: int = MAX_TOKENS) -> None:
        self.root = State()
        self.depth, self.max_tokens, self.tokens = depth, max_tokens, 0

    @property
    def is_full(self) -> bool:
        return self.tokens >= self.max_tokens

    def _grow(self, end: State, token: int) -> State:
        """The state of the text that ends at `end` with the token behind it."""
        new = State(end.length + 1)
        state: State | None = end
        while state is not None and token not in state.next:
            state.next[token] = new
            state = state.link
        suffix = self.root if state is None else state.next[token]
        if state is not None and suffix.length != state.length + 1:
            suffix = _split(state, token, suffix)
        if state is end:
            return suffix
        new.link = suffix
        return new

    def _count(self, source: State, length: int, target: State, token: int) -> None:
        """The token has followed the last `length` tokens, which end in `source`, and all suffixes of them.

        Each suffix leads to the suffix of the target's that is one token longer. Both chains of links go through all
        lengths, so lengths tell which target is whose, and nothing is looked up:

            sources    5 4 | 3 | 2 1
            targets    6 5 | 4   3 | 2 | 1
        """
        target.count += 1
        while source.link is not None:
            while target.link is not None and target.link.length > length:
                target = target.link
                target.count += 1
            if _overtakes(source, target.count, token):
                source.best, source.best_count = token, target.count
            source = source.link
            length = source.length
        while target.link is not None and target.link.link is not None:
            target = target.link
            target.count += 1


def _split(state: State, token: int, longer: State) -> State:
    """The shorter contexts of `longer`, those of `state` with the token, now occur where its longer ones don't: they
    get a state of their own."""
    shorter = State(
        state.length + 1, longer.link, longer.count, longer.best, longer.best_count, dict(longer.next)
    )
    longer.link = shorter
    source: State | None = state
    while source is not None and source.next.get(token) is longer:
        source.next[token] = shorter
        source = source.link
    return shorter


def _overtakes(state: State, count: int, token: int) -> bool:
    """Of tokens that followed equally often, twice or more, the last one is the best: recent text is likelier to
    repeat. Not where the first token that ever followed is one occurrence behind."""
    if count != state.best_count or count == 1:
        return count > state.best_count
    first = next(iter(state.next))
    return first == token or state.next[first].count != count - 1


def shortened(state: State, length: int) -> State:
    """The state of the context of that length: another one after a split, or when the context is cut."""
    while state.link is not None and state.link.length >= length:
        state = state.link
    return state


@dataclass(slots=True)
class Reader:
    """The longest context that the automaton knows, of the last tokens read."""

    automaton: Automaton
    state: State
    length: int = 0

    def read(self, tokens: Iterable[int]) -> Reader:
        for token in tokens:
            state, length = shortened(self.state, self.length), self.length
            while token not in state.next and state.link is not None:
                state = state.link
                length = state.length
            target = state.next.get(token)
            self.length = min(length + 1, self.automaton.depth) if target else 0
            self.state = shortened(target, self.length) if target else self.automaton.root
        return self

    def behind(self, ahead: Iterable[int]) -> Reader:
        """A copy that has read what is ahead."""
        return Reader(self.automaton, self.state, self.length).read(ahead)

    def contexts(self, limit: int) -> Iterable[tuple[State, int]]:
        """(state, length) of the contexts of up to `limit` tokens, the longest first, one of each state."""
        length = min(self.length, limit)
        state = shortened(self.state, length)
        while state.link is not None:
            yield state, length
            state = state.link
            length = state.length


@dataclass(slots=True)
class Writer(Reader):
    """Its context is what it wrote last; `end` is the state of all that it wrote."""

    end: State = field(init=False)

    def __post_init__(self) -> None:
        self.end = self.automaton.root

    def write(self, token: int) -> None:
        automaton = self.automaton
        automaton.tokens += 1
        end = automaton._grow(self.end, token)
        source = shortened(self.state, self.length)
        target = end if source is self.end else source.next[token]
        automaton._count(source, self.length, target, token)
        self.length = min(self.length + 1, automaton.depth)
        self.end, self.state = end, shortened(target, self.length)


def reader_of(automaton: Automaton) -> Reader:
    return Reader(automaton, automaton.root)


def writer_of(automaton: Automaton) -> Writer:
    return Writer(automaton, automaton.root)
