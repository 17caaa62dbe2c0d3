"""What all requests have said, in one place: everyone's output is learned as it comes, and read by everyone.

It is bounded by two automata. When the fresh one is full, an empty one takes its place and the full one goes on being
read, until the new one is half full: so there is always something to read, and what is old goes.

It keeps no two tenants apart: whoever shares one may see, in drafts that are accepted, what another was told.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from services.proposer.suffix_store.automaton import Automaton
from services.proposer.suffix_store.followers import Followers, Rule, Turn


@dataclass(slots=True, eq=False)
class Generation:
    automaton: Automaton
    requests: int = 0


@dataclass(slots=True, eq=False)
class Member:
    """A request: what it writes where, and up to which token of its text it has written and read."""

    written: int
    writer: int = -1
    writes: Generation | None = None
    readers: dict[Generation, int] = field(default_factory=dict)
    read: int = 0


class SharedStore:
    """`max_requests` of which text is kept, None: any number."""

    def __init__(self, followers: Followers, depth: int, max_tokens: int, max_requests: int | None) -> None:
        assert max_tokens > 0, "an empty one takes something"
        self._followers = followers
        self._depth = depth
        self._max_tokens = max_tokens
        # A full one, and another that is just not half full.
        self._requests_of_one = None if max_requests is None else max(1, 2 * max_requests // 3)
        self._members: set[Member] = set()
        # The one that is written to comes first.
        self._generations = [self._empty()]

    def join(self, prompt_tokens: int) -> Member:
        """Prompts are read, and not learned."""
        member = Member(written=max(0, prompt_tokens))
        self._members.add(member)
        return member

    def leave(self, member: Member) -> None:
        self._members.discard(member)
        self._stop_writing(member)
        for follower in member.readers.values():
            self._followers.release(follower)
        member.readers.clear()

    def write(self, members: Sequence[Member], texts: Sequence[array[int]], at_most: int) -> None:
        """What is new of their outputs, the shortest first, and so many tokens in all."""
        shares = shares_of([len(text) - member.written for member, text in zip(members, texts, strict=True)], at_most)
        writers = [(member, text, share) for member, text, share in zip(members, texts, shares, strict=True) if share]
        while writers:
            left = []
            told = self._followers.run([self._writing(*each) for each in writers], Rule())
            for (member, text, share), each in zip(writers, told, strict=True):
                member.written += each.taken
                if each.taken < share:
                    left.append((member, text, share - each.taken))
            if left:
                self._take_over()
            writers = left
        self._forget_the_old()

    def reading(self, member: Member, text: array[int], longest: int) -> list[Turn]:
        """One turn a generation, the fresh one's first. Who comes late need not read more than is ever looked at."""
        if len(text) - member.read > self._depth:
            for follower in member.readers.values():
                self._followers.release(follower)
            member.readers.clear()
        turns = []
        for generation in self._generations:
            begin = member.read
            if generation not in member.readers:
                member.readers[generation] = self._followers.read(generation.automaton)
                begin = max(0, len(text) - self._depth)
            turns.append(Turn(member.readers[generation], text[begin:], longest))
        member.read = len(text)
        return turns

    def held_bytes(self) -> int:
        return sum(generation.automaton.held_bytes() for generation in self._generations)

    def tokens(self) -> int:
        return sum(generation.automaton.tokens for generation in self._generations)

    # Generations ------------------------------------------------------------------------------------------

    def _empty(self) -> Generation:
        return Generation(Automaton(self._depth, self._max_tokens))

    def _writing(self, member: Member, text: array[int], share: int) -> Turn:
        if member.writes is not self._generations[0]:
            self._begin_writing(member)
        return Turn(member.writer, text[member.written : member.written + share])

    def _begin_writing(self, member: Member) -> None:
        if self._requests_of_one is not None and self._generations[0].requests >= self._requests_of_one:
            self._take_over()
        self._stop_writing(member)
        fresh = self._generations[0]
        fresh.requests += 1
        member.writer, member.writes = self._followers.write(fresh.automaton), fresh

    def _stop_writing(self, member: Member) -> None:
        if member.writes is not None:
            self._followers.release(member.writer)
            member.writes = None

    def _take_over(self) -> None:
        """Nobody is dropped here: turns that are on their way still name the old ones."""
        self._generations.insert(0, self._empty())

    def _forget_the_old(self) -> None:
        while len(self._generations) > (1 if self._is_half_full(self._generations[0]) else 2):
            self._drop(self._generations.pop())

    def _is_half_full(self, generation: Generation) -> bool:
        if self._requests_of_one is not None and 2 * generation.requests >= self._requests_of_one:
            return True
        return 2 * generation.automaton.tokens >= generation.automaton.max_tokens

    def _drop(self, generation: Generation) -> None:
        for member in self._members:
            if member.writes is generation:
                self._stop_writing(member)
            if generation in member.readers:
                self._followers.release(member.readers.pop(generation))
        generation.automaton.close()


def shares_of(waiting: Sequence[int], at_most: int) -> list[int]:
    """How much of each is done now: the shortest first, so that a long one keeps nobody waiting."""
    shares = [max(0, tokens) for tokens in waiting]
    for at in sorted(range(len(shares)), key=shares.__getitem__):
        shares[at] = min(shares[at], at_most)
        at_most -= shares[at]
    return shares
