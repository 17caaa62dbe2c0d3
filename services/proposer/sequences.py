"""The texts that a proposer follows: their workers, their length, and which are dropped when memory is short.

A worker sends only the tokens committed since the last answer. This appends them to the text, or finds that the text is
unknown. Knows nothing of drafting.
"""

from __future__ import annotations

import itertools
from array import array
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from services.api.drafter import Text
from services.api.messages import Ended, ProposeItem
from services.proposer.names import namespace_key

# A sequence without text takes a few hundred bytes; this is more than all workers run at once.
MAX_SEQUENCES = 8192


def _packed(tokens: list[int]) -> array[int] | None:
    """Four bytes a token; None when one of them can't be a token id."""
    try:
        return array("i", tokens) if min(tokens, default=0) >= 0 else None
    except OverflowError:
        return None


@dataclass(slots=True)
class FollowedSequence:
    text: Text
    worker: str
    sequence_id: int
    committed: int = 0
    # Its text was dropped because memory was short: only its length is tracked, and it gets no drafts.
    muted: bool = False

    @property
    def held(self) -> int:
        """Tokens that take memory."""
        return len(self.text.tokens) + len(self.text.prediction)


@dataclass(slots=True)
class Worker:
    epoch: int
    # Not in the directory; and when it asked last, in seconds.
    guest: bool = False
    heard: float = 0.0
    sequences: dict[int, FollowedSequence] = field(default_factory=dict)


class Sequences:
    """`released` is called with the id of each dropped text."""

    def __init__(self, max_tokens: int, released: Callable[[int], None], max_sequences: int = MAX_SEQUENCES) -> None:
        self._max_tokens = max_tokens
        self._max_sequences = max_sequences
        self._released = released
        self._workers: dict[str, Worker] = {}
        # Least recently used first.
        self._by_use: OrderedDict[int, FollowedSequence] = OrderedDict()
        self._text_ids = itertools.count(1)
        self.tokens = 0

    def __len__(self) -> int:
        return len(self._by_use)

    def workers(self) -> list[str]:
        """Those that the directory knows while they live."""
        return [name for name, each in self._workers.items() if not each.guest]

    def silent_guests(self, since: float) -> list[str]:
        return [name for name, each in self._workers.items() if each.guest and each.heard < since]

    def meet(self, worker: str, epoch: int, guest: bool = False, now: float = 0.0) -> bool:
        """A message of this worker and epoch arrived. A new epoch starts without sequences; False: a newer one is
        known."""
        known = self._workers.get(worker)
        if known is not None and epoch < known.epoch:
            return False
        if known is None or epoch > known.epoch:
            self.drop_worker(worker)
            known = self._workers[worker] = Worker(epoch, guest)
        known.heard = now
        return True

    def follow(self, worker: str, item: ProposeItem, vocabulary: str = "") -> FollowedSequence | None:
        """The sequence with the item's tokens added; None if they don't match its text."""
        sequence = self._workers[worker].sequences.get(item.sequence_id)
        if item.first and not (sequence is not None and self._is_said_again(sequence, item, vocabulary)):
            if sequence is not None:
                self._drop(sequence)
            sequence = self._start(worker, item, vocabulary)
        elif sequence is not None and not self._append(sequence, item):
            self._drop(sequence)
            return None
        if sequence is None:
            return None
        self._by_use.move_to_end(sequence.text.text_id)
        if sequence.held > self._max_tokens // 2:
            # One long text must not push out all others.
            self._mute(sequence)
        return sequence

    def _is_said_again(self, sequence: FollowedSequence, item: ProposeItem, vocabulary: str) -> bool:
        """A worker that didn't wait for the answer sends the whole text again: what was made of it is kept."""
        text, tokens = sequence.text, _packed(item.tokens)
        return (
            not sequence.muted
            and tokens is not None
            and tokens[: len(text.tokens)] == text.tokens
            and item.committed == len(tokens)
            and text.prediction == _packed(item.prediction)
            and (text.namespace, text.corpora, text.learn, text.prompt_tokens)
            == (namespace_key(vocabulary, item.namespace), item.corpora, item.learn, item.prompt_tokens)
        )

    def make_room(self) -> None:
        """Called once for each batch. With too many tokens, the least recently used sequences lose their text but stay
        known: otherwise their workers would send it again, only to have it dropped again. With too many sequences, the
        least recently used are dropped."""
        if self.tokens > self._max_tokens:
            for sequence in self._by_use.values():
                self._mute(sequence)
                if self.tokens <= self._max_tokens:
                    break
        while len(self._by_use) > self._max_sequences:
            self._drop(next(iter(self._by_use.values())))

    def end(self, worker: str, ended: Ended, vocabulary: str = "") -> Text | None:
        """The whole text of an ended sequence, if it is known or sent now. It is no longer followed; the caller
        releases it after learning from it."""
        item = ProposeItem(
            sequence_id=ended.sequence_id,
            committed=ended.committed,
            tokens=ended.tokens,
            first=ended.first,
            prompt_tokens=ended.prompt_tokens,
            namespace=ended.namespace,
        )
        sequence = self.follow(worker, item, vocabulary)
        if sequence is None:
            return None
        if sequence.muted:
            self._drop(sequence)
            return None
        self._unfollow(sequence)
        return sequence.text

    def forget(self, worker: str, sequence_id: int) -> None:
        sequence = self._workers[worker].sequences.get(sequence_id)
        if sequence is not None:
            self._drop(sequence)

    def drop_worker(self, worker: str) -> None:
        known = self._workers.pop(worker, None)
        for sequence in list(known.sequences.values()) if known else []:
            self._mute(sequence)
            del self._by_use[sequence.text.text_id]

    def _start(self, worker: str, item: ProposeItem, vocabulary: str) -> FollowedSequence | None:
        tokens, prediction = _packed(item.tokens), _packed(item.prediction)
        if tokens is None or prediction is None or item.committed != len(tokens):
            return None
        text = Text(
            next(self._text_ids),
            tokens,
            item.prompt_tokens,
            prediction,
            namespace_key(vocabulary, item.namespace),
            item.corpora,
            item.learn,
        )
        sequence = FollowedSequence(text, worker, item.sequence_id, item.committed)
        self._workers[worker].sequences[item.sequence_id] = sequence
        self._by_use[text.text_id] = sequence
        self.tokens += sequence.held
        return sequence

    def _append(self, sequence: FollowedSequence, item: ProposeItem) -> bool:
        """Add new tokens. A worker that missed the last answer sends its tokens again, followed by new ones; they must
        equal the known tokens.

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
            # Usually all are new, and there is nothing to compare.
            if start < known:
                if sequence.text.tokens[start:] != tokens[: known - start]:
                    return False
                del tokens[: known - start]
            sequence.text.tokens.extend(tokens)
            self.tokens += item.committed - known
        sequence.committed = item.committed
        return True

    def _mute(self, sequence: FollowedSequence) -> None:
        if not sequence.muted:
            sequence.muted = True
            self.tokens -= sequence.held
            self._released(sequence.text.text_id)
            # Those that hold the text's address have been told.
            sequence.text.tokens = sequence.text.prediction = array("i")

    def _drop(self, sequence: FollowedSequence) -> None:
        self._mute(sequence)
        self._unfollow(sequence)

    def _unfollow(self, sequence: FollowedSequence) -> None:
        if not sequence.muted:
            self.tokens -= sequence.held
        del self._by_use[sequence.text.text_id]
        del self._workers[sequence.worker].sequences[sequence.sequence_id]
