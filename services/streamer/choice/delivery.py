"""Decides which of a choice's tokens can be sent now: text, ids, logprobs and origins are sent together or not at all.

Tokens wait here while their characters are unfinished or may become a stop string. When a stop string is
found, the text ends before it, and so does all else: a token is kept when some of its text is.

    characters:  shown | held back by StopMatcher | bytes of an unfinished character
    tokens:      gone  | waiting, each with the characters [start, end) it encodes

Knows no sockets, no JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from services.api.messages import Run, TokenLogprob
from services.streamer.choice.detokenize import Detokenizer
from services.streamer.choice.stops import NO_STOPS, StopMatcher, StopTable

UNFINISHED = -1


@dataclass(frozen=True, slots=True)
class TokenOrigin:
    """Source of one token, or of several tokens of one verify step. Rejected draft tokens are counted with
    the model's own token that replaces them, so that the parts of a step add up to the step."""

    step: int
    source: str = ""
    match_length: int = 0
    drafted: int = 0
    accepted: int = 0
    tokens: int = 1
    rejected: tuple[int, ...] = ()  # their ids, if the request asks for them

    def __add__(self, other: TokenOrigin) -> TokenOrigin:
        drafted, accepted = self.drafted + other.drafted, self.accepted + other.accepted
        tokens, rejected = self.tokens + other.tokens, self.rejected + other.rejected
        return TokenOrigin(self.step, self.source, self.match_length, drafted, accepted, tokens, rejected)


def join(runs: list[TokenOrigin], more: Sequence[TokenOrigin]) -> None:
    """Append `more` to `runs`; those of one step are merged."""
    for each in more:
        if runs and runs[-1].step == each.step:
            runs[-1] += each
        else:
            runs.append(each)


@dataclass(slots=True)
class Piece:
    """A part of the answer. `offsets` say where in the answer's text each token begins, `begin` where `text` does;
    `runs` are the origins of the tokens, those of one step together. With `of_prompt` it is a part of the prompt
    (echo.py), whose first token has no log-probability."""

    text: str
    ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob | None] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    runs: list[TokenOrigin] = field(default_factory=list)
    begin: int = 0
    of_prompt: bool = False


def slices(piece: Piece, most: int) -> Iterator[Piece]:
    """The piece in parts of at most `most` tokens, or of one step. What is said of a step stays together."""
    steps = [run.tokens for run in piece.runs] or [1] * len(piece.ids)
    start = end = run = shown = 0
    for number, tokens in enumerate(steps):
        if end > start and end + tokens - start > most:
            # Text of a token that comes later may have been shown before it.
            until = min(max(piece.offsets[end] - piece.begin, shown), len(piece.text))
            yield _part(piece, (start, end), (run, number), (shown, until))
            start, run, shown = end, number, until
        end += tokens
    yield _part(piece, (start, len(piece.ids)), (run, len(piece.runs)), (shown, len(piece.text)))


def _part(piece: Piece, tokens: tuple[int, int], runs: tuple[int, int], text: tuple[int, int]) -> Piece:
    of_tokens, of_runs, of_text = slice(*tokens), slice(*runs), slice(*text)
    return Piece(
        piece.text[of_text],
        piece.ids[of_tokens],
        piece.logprobs[of_tokens],
        piece.offsets[of_tokens],
        piece.runs[of_runs],
        piece.begin + text[0],
        piece.of_prompt,
    )


@dataclass(slots=True)
class _HeldToken:
    id: int
    logprob: TokenLogprob | None
    origin: TokenOrigin | None
    start: int
    end: int


class Delivery:
    """Of one choice. `count` is how many tokens were generated, up to the one that completed a stop string."""

    __slots__ = (
        "_detokenizer", "_matcher", "_min_tokens", "_origins_shown", "_seen", "_shown", "_simple", "_steps", "_waiting",
        "count",
    )  # fmt: skip

    def __init__(
        self,
        detokenizer: Detokenizer,
        stops: StopTable = NO_STOPS,
        *,
        min_tokens: int,
        tokens_shown: bool,
        origins_shown: bool = False,
    ) -> None:
        self._detokenizer = detokenizer
        self._matcher = StopMatcher(stops)
        self._min_tokens = min_tokens
        # Text alone needs no tracking of tokens.
        self._simple = stops is NO_STOPS and not tokens_shown and not origins_shown
        self._origins_shown = origins_shown
        self._steps = 0
        self._waiting: list[_HeldToken] = []
        self._seen = 0  # characters the detokenizer has given
        self._shown = 0  # characters that left in a piece
        self.count = 0

    def begin_behind(self, characters: int) -> None:
        """The answer's text begins with as many characters of the prompt."""
        self._seen = self._shown = characters

    @property
    def stopped_by(self) -> str | None:
        return self._matcher.found

    def push(self, ids: list[int], logprobs: list[TokenLogprob] | None, runs: Sequence[Run] = ()) -> Piece:
        if self._simple:
            self.count += len(ids)
            return Piece(self._detokenizer.feed(ids))
        texts: list[str] = []
        origins = self._origins(runs, len(ids)) if self._origins_shown else None
        for index, token in enumerate(ids):
            origin = origins[index] if origins else None
            texts.append(self._push_one(token, logprobs[index] if logprobs else None, origin))
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

    def _origins(self, runs: Sequence[Run], count: int) -> list[TokenOrigin]:
        """One for each of `count` tokens."""
        origins: list[TokenOrigin] = []
        for run in runs:
            self._steps += 1
            # The model's own token follows the accepted ones, unless the answer ended before it.
            last = min(run.accepted, run.length - 1)
            for place in range(run.length):
                accepted = int(place < run.accepted)
                drafted = accepted + (run.drafted - run.accepted if place == last else 0)
                rejected = tuple(run.rejected) if place == last else ()
                origin = TokenOrigin(self._steps, run.source, run.match_length, drafted, accepted, rejected=rejected)
                origins.append(origin)
        if len(origins) < count:
            # The worker sent no runs for these.
            self._steps += 1
            origins += [TokenOrigin(self._steps)] * (count - len(origins))
        return origins

    def _push_one(self, token: int, logprob: TokenLogprob | None, origin: TokenOrigin | None) -> str:
        self.count += 1
        self._waiting.append(_HeldToken(token, logprob, origin, self._seen, UNFINISHED))
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
        begin, self._shown = self._shown, self._shown + len(text)
        ready = 0
        for each in self._waiting:
            if each.end == UNFINISHED or each.end > self._shown:
                break
            ready += 1
        leaving, self._waiting = self._waiting[:ready], self._waiting[ready:]
        return _piece(text, leaving, begin)

    def _cut(self, text: str) -> Piece:
        """Show the last `text`, which ends before the stop string, and the tokens that have a part in it."""
        begin, self._shown = self._shown, self._shown + len(text)
        leaving = [each for each in self._waiting if each.start < self._shown]
        self._waiting = []
        return _piece(text, leaving, begin)


def _piece(text: str, leaving: list[_HeldToken], begin: int) -> Piece:
    runs: list[TokenOrigin] = []
    join(runs, [each.origin for each in leaving if each.origin is not None])
    return Piece(
        text,
        ids=[each.id for each in leaving],
        logprobs=[each.logprob for each in leaving if each.logprob is not None],
        offsets=[each.start for each in leaving],
        runs=runs,
        begin=begin,
    )
