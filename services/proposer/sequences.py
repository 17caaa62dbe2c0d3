"""The texts a proposer process follows: whose they are, how long, and which may go when memory is short.

A target sends only what it committed since the last answer; here that becomes whole texts again, or the
finding that a text is not known. Nothing here knows how drafts are made.
"""

from __future__ import annotations

import itertools
from array import array
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from services.api.messages import Ended, ProposeItem
from services.proposer.proposer import View

# A sequence without text is a few hundred bytes; this many are more than all targets run at once.
MAX_SEQUENCES = 8192


def _packed(tokens: list[int]) -> array[int] | None:
    """Four bytes a token; None when one of them can't be a token id."""
    try:
        return array("i", tokens)
    except OverflowError:
        return None


@dataclass(slots=True)
class Sequence:
    view: View
    target: str
    target_sequence_id: int
    committed: int = 0
    # Its text was given up for want of memory: it is followed by length, and gets no drafts.
    muted: bool = False

    @property
    def held(self) -> int:
        """Tokens that take memory."""
        return len(self.view.tokens) + len(self.view.prediction)


@dataclass(slots=True)
class Target:
    epoch: int
    sequences: dict[int, Sequence] = field(default_factory=dict)


class Sequences:
    """`released` is called with a view's id when its text goes, for whatever reason."""

    def __init__(
        self, max_tokens: int, released: Callable[[int], None], max_sequences: int = MAX_SEQUENCES
    ) -> None:
        self._max_tokens = max_tokens
        self._max_sequences = max_sequences
        self._released = released
        self._targets: dict[str, Target] = {}
        # Least recently used first.
        self._by_use: OrderedDict[int, Sequence] = OrderedDict()
        self._view_ids = itertools.count(1)
        self.tokens = 0

    def __len__(self) -> int:
        return len(self._by_use)

    def targets(self) -> list[str]:
        return list(self._targets)

    def meet(self, target: str, epoch: int) -> bool:
        """A message of this target and epoch came. A new epoch starts with nothing; an old one is a ghost's
        (False)."""
        known = self._targets.get(target)
        if known is not None and epoch < known.epoch:
            return False
        if known is None or epoch > known.epoch:
            self.drop_target(target)
            self._targets[target] = Target(epoch)
        return True

    def follow(self, target: str, item: ProposeItem) -> Sequence | None:
        """The sequence with the item's tokens added; None when what it says doesn't fit what is known."""
        sequence = self._targets[target].sequences.get(item.sequence_id)
        if item.first:
            if sequence is not None:
                self._drop(sequence)
            sequence = self._start(target, item)
        elif sequence is not None and not self._append(sequence, item):
            self._drop(sequence)
            return None
        if sequence is None:
            return None
        self._by_use.move_to_end(sequence.view.sequence_id)
        if sequence.held > self._max_tokens // 2:
            # One giant must not push out everyone else.
            self._mute(sequence)
        return sequence

    def make_room(self) -> bool:
        """Called after each batch; whether somebody lost something. Too many tokens: those unused the longest lose
        their text. They keep their place, so that their targets don't send the text again only to have it thrown away
        again. Too many sequences: those unused the longest go altogether."""
        if self.tokens <= self._max_tokens and len(self._by_use) <= self._max_sequences:
            return False
        if self.tokens > self._max_tokens:
            for sequence in self._by_use.values():
                self._mute(sequence)
                if self.tokens <= self._max_tokens:
                    break
        while len(self._by_use) > self._max_sequences:
            self._drop(next(iter(self._by_use.values())))
        return True

    def end(self, target: str, ended: Ended) -> View | None:
        """The whole text of a sequence that is over, if it is known or told now. It isn't followed any more, and not
        released either: whoever learns from it does that afterwards."""
        item = ProposeItem(
            sequence_id=ended.sequence_id,
            committed=ended.committed,
            tokens=ended.tokens,
            first=ended.first,
            prompt_tokens=ended.prompt_tokens,
            namespace=ended.namespace,
        )
        sequence = self.follow(target, item)
        if sequence is None:
            return None
        if sequence.muted:
            self._drop(sequence)
            return None
        self._unfollow(sequence)
        return sequence.view

    def forget(self, target: str, sequence_id: int) -> None:
        sequence = self._targets[target].sequences.get(sequence_id)
        if sequence is not None:
            self._drop(sequence)

    def drop_target(self, target: str) -> None:
        known = self._targets.pop(target, None)
        for sequence in list(known.sequences.values()) if known else []:
            self._mute(sequence)
            del self._by_use[sequence.view.sequence_id]

    def _start(self, target: str, item: ProposeItem) -> Sequence | None:
        tokens, prediction = _packed(item.tokens), _packed(item.prediction)
        if tokens is None or prediction is None or item.committed != len(tokens):
            return None
        view = View(
            next(self._view_ids), tokens, item.prompt_tokens, prediction, item.namespace, item.corpora, item.learn
        )
        sequence = Sequence(view, target, item.sequence_id, item.committed)
        self._targets[target].sequences[item.sequence_id] = sequence
        self._by_use[view.sequence_id] = sequence
        self.tokens += sequence.held
        return sequence

    def _append(self, sequence: Sequence, item: ProposeItem) -> bool:
        """Add what is new. A target that missed our answer sends the same tokens again, with more after
        them; they must be the ones we have.

            known      . . . . . .
            item             [. . . .]     start = committed - len(tokens)
        """
        known, start = sequence.committed, item.committed - len(item.tokens)
        if not start <= known <= item.committed or start < 0:
            return False
        if not sequence.muted:
            tokens = _packed(item.tokens)
            if tokens is None:
                return False
            # Mostly all of them are new, and none has to be compared.
            if start < known:
                if sequence.view.tokens[start:] != tokens[: known - start]:
                    return False
                del tokens[: known - start]
            sequence.view.tokens.extend(tokens)
            self.tokens += item.committed - known
        sequence.committed = item.committed
        return True

    def _mute(self, sequence: Sequence) -> None:
        if not sequence.muted:
            sequence.muted = True
            self.tokens -= sequence.held
            self._released(sequence.view.sequence_id)
            # Whoever reads the text where it lies was told first.
            sequence.view.tokens = sequence.view.prediction = array("i")

    def _drop(self, sequence: Sequence) -> None:
        self._mute(sequence)
        self._unfollow(sequence)

    def _unfollow(self, sequence: Sequence) -> None:
        if not sequence.muted:
            self.tokens -= sequence.held
        del self._by_use[sequence.view.sequence_id]
        del self._targets[sequence.target].sequences[sequence.target_sequence_id]
