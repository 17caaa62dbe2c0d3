"""What of a choice's tokens may be shown now: text, token ids and logprobs leave together or not at all.

Tokens wait here while their characters are unfinished or may become a stop string. When a stop string is
found, the text ends before it, and so do the ids and logprobs: a token is kept when some of its text is.

    characters:  shown | held back by StopMatcher | bytes of an unfinished character
    tokens:      gone  | waiting, each with the characters [start, end) it stands for

Knows no sockets, no JSON.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from services.messages import TokenLogprob
from services.streamer.detokenize import Detokenizer
from services.streamer.stops import StopMatcher

UNFINISHED = -1


@dataclass(slots=True)
class Piece:
    """A part of the answer. `offsets` say where in the answer's text each token begins."""

    text: str
    ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Waiting:
    id: int
    logprob: TokenLogprob | None
    start: int
    end: int


class Delivery:
    """Of one choice. `count` is how many tokens were generated, up to the one that completed a stop string."""

    __slots__ = ("_detokenizer", "_matcher", "_min_tokens", "_seen", "_shown", "_simple", "_waiting", "count")

    def __init__(
        self, detokenizer: Detokenizer, stops: tuple[str, ...], *, min_tokens: int, tokens_shown: bool
    ) -> None:
        self._detokenizer = detokenizer
        self._matcher = StopMatcher(stops)
        self._min_tokens = min_tokens
        # Text alone needs no book-keeping of tokens.
        self._simple = not stops and not tokens_shown
        self._waiting: list[_Waiting] = []
        self._seen = 0  # characters the detokenizer has given
        self._shown = 0  # characters that left in a piece
        self.count = 0

    @property
    def stopped_by(self) -> str | None:
        return self._matcher.found

    def push(self, ids: list[int], logprobs: list[TokenLogprob] | None) -> Piece:
        if self._simple:
            self.count += len(ids)
            return Piece(self._detokenizer.feed(ids))
        texts: list[str] = []
        for index, token in enumerate(ids):
            texts.append(self._push_one(token, logprobs[index] if logprobs else None))
            if self._matcher.found is not None:
                return self._cut("".join(texts))
        return self._release("".join(texts))

    def flush(self) -> Piece:
        """The end without a stop string. What was held back is shown, unless it completes one after all."""
        rest = self._detokenizer.flush()
        if self._simple:
            return Piece(rest)
        text = self._grow(rest, armed=self.count >= self._min_tokens)
        if self._matcher.found is not None:
            return self._cut(text)
        return self._release(text + self._matcher.flush())

    def _push_one(self, token: int, logprob: TokenLogprob | None) -> str:
        self.count += 1
        self._waiting.append(_Waiting(token, logprob, self._seen, UNFINISHED))
        return self._grow(self._detokenizer.feed([token]), armed=self.count >= self._min_tokens)

    def _grow(self, text: str, *, armed: bool) -> str:
        self._seen += len(text)
        if not self._detokenizer.unfinished:
            for each in reversed(self._waiting):
                if each.end != UNFINISHED:
                    break
                each.end = self._seen
        return self._matcher.feed(text, armed=armed) if text else ""

    def _release(self, text: str) -> Piece:
        """Show `text` and the tokens whose characters it completes."""
        self._shown += len(text)
        ready = 0
        for each in self._waiting:
            if each.end == UNFINISHED or each.end > self._shown:
                break
            ready += 1
        leaving, self._waiting = self._waiting[:ready], self._waiting[ready:]
        return _piece(text, leaving)

    def _cut(self, text: str) -> Piece:
        """Show the last `text`, which ends before the stop string, and the tokens that have a part in it."""
        self._shown += len(text)
        leaving = [each for each in self._waiting if each.start < self._shown]
        self._waiting = []
        return _piece(text, leaving)


def _piece(text: str, leaving: list[_Waiting]) -> Piece:
    return Piece(
        text,
        ids=[each.id for each in leaving],
        logprobs=[each.logprob for each in leaving if each.logprob is not None],
        offsets=[each.start for each in leaving],
    )
