"""Steps that no drafter has read yet. In most steps of a batch for which no head pays, nobody asks for a draft, and a
drafter that reads each of them would take a share of its time. So steps wait here as they are, which costs the same
for any number of texts, and are told in one piece for each text when a draft is asked for.

    steps     a0 b0    a1 b1    b2 c0    ─▶    a0 a1    b0 b1 b2    c0

When there are too many, the oldest are dropped, and the texts in them can't be drafted for any more: to read some
thousand rows takes a worker's thread several milliseconds, again and again, for drafts that nobody asks for.

Knows no drafters.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate, chain
from typing import Any, NamedTuple

from services.api import draft_tree as tree
from services.api.drafter import Committed, Features, Text
from services.worker.running.work import SequenceWork, Verdict

# Steps, and rows of these steps, whose features of all texts are kept.
MOST_STEPS, MOST_ROWS = 1024, 4096
# Newest steps that aren't dropped.
YOUNG = 32


class Advance(NamedTuple):
    """What a step added to a text: the tokens that are computed now, the one behind them, how many of them come from
    the draft, and their rows, counted from the item's first."""

    tokens: list[int]
    following: int
    accepted: int
    rows: Sequence[int]


def advance(text: Text, item: SequenceWork, verdict: Verdict | None) -> Advance:
    """All tokens of the item that are text, and the accepted path of its draft."""
    own = len(item.tokens)
    if verdict is None:
        return Advance(item.tokens, text.tokens[item.start + own], 0, range(own))
    accepted, draft = verdict.accepted, item.draft
    tokens, following = item.tokens + verdict.tokens[:accepted], verdict.tokens[accepted]
    if not draft.parents:
        return Advance(tokens, following, accepted, range(own + accepted))
    path = tree.walk(draft.tokens, draft.parents, verdict.tokens[:accepted])
    return Advance(tokens, following, accepted, [*range(own), *(own + place for place in path)])


class StepFeatures:
    """The features of all rows of a step, or of several."""

    def __init__(self, features: Any) -> None:
        self._features = features

    def __len__(self) -> int:
        return len(self._features)

    def gather(self, rows: list[int] | slice) -> Any:
        # Not before a model that needs it is there.
        import torch

        features = self._features
        if features.device.type == "cpu":
            # Numpy takes a few rows ten times as fast as torch.
            view = features.view(torch.int16 if features.dtype.itemsize == 2 else torch.int32).numpy()
            return torch.from_numpy(view[rows]).view(features.dtype)
        if isinstance(rows, list):
            # With a list torch would wait for the device.
            return features[torch.tensor(rows).pin_memory().to(features.device, non_blocking=True)]
        return features[rows]

    def copy(self, rows: list[int] | slice) -> Any:
        """That doesn't keep the other rows."""
        return self.gather(rows).clone()


class _Piece:
    """A part of a text from `start` to `end`. `rows` of all features together; `pages` of the newest step."""

    __slots__ = ("accepted", "end", "following", "pages", "rows", "start", "tokens")

    def __init__(self, start: int) -> None:
        self.start = self.end = start
        self.following, self.accepted = -1, 0
        self.tokens: list[int] = []
        self.rows: list[int] = []
        self.pages: Sequence[int] = ()


class UnreadSteps:
    def __init__(self) -> None:
        self._steps: list[tuple[list[SequenceWork], list[Verdict | None], Any]] = []
        self._rows = 0
        # By text, the steps at the beginning that are known already.
        self._known: dict[int, int] = {}

    @property
    def full(self) -> bool:
        return len(self._steps) >= MOST_STEPS or self._rows >= MOST_ROWS

    def clear(self) -> None:
        self._steps, self._rows, self._known = [], 0, {}

    def add(
        self, items: list[SequenceWork], verdicts: list[Verdict | None], features: Any, told: Collection[int] = ()
    ) -> None:
        """`features` of all rows of the items stay valid; None: no drafter reads any. `told`: texts that know the
        step, and all before it."""
        self._steps.append((items, verdicts, features))
        self._known |= dict.fromkeys(told, len(self._steps))
        self._rows += len(items) if features is None else len(features)

    def drop(self) -> set[int]:
        """Those that aren't young. Returns the texts that miss something now."""
        count = max(0, len(self._steps) - YOUNG)
        dropped, self._steps = self._steps[:count], self._steps[count:]
        self._rows = sum(len(items) if features is None else len(features) for items, _, features in self._steps)
        known = self._known
        missing = {
            item.sequence_id
            for place, (items, _, _) in enumerate(dropped)
            for item in items
            if known.get(item.sequence_id, 0) <= place
        }
        self._known = {text: steps - count for text, steps in known.items() if steps > count}
        return missing

    def begin(self, text_id: int) -> None:
        """A text of which no step so far has a row."""
        self._known[text_id] = len(self._steps)

    def take(self, texts: Mapping[int, Text], *, of_now: bool) -> list[Committed]:
        """What all of them added to these texts, which get their tokens here; to others they are still to be told.
        `of_now`: the last of them was computed just now. Only then, and only for its own texts, are pages named: the
        others may have lost theirs."""
        first = min((self._known.get(each, 0) for each in texts), default=len(self._steps))
        steps = self._steps[first:]
        if not steps:
            return []
        pieces = self._pieces(texts, first)
        self._known |= dict.fromkeys(texts, len(self._steps))
        last = {item.sequence_id for item in steps[-1][0]} if of_now else set()
        parts = [(text_id, piece) for text_id, found in pieces.items() for piece in found]
        ends = list(accumulate(len(piece.rows) for _, piece in parts))
        gathered = _gathered([features for _, _, features in steps], [piece.rows for _, piece in parts])
        return [
            Committed(
                text_id=text_id, start=piece.start, tokens=piece.tokens, following=piece.following,
                accepted=piece.accepted,
                step=None if gathered is None else Features(gathered.copy, slice(end - len(piece.rows), end)),
                pages=piece.pages if text_id in last and piece is pieces[text_id][-1] else (),
            )
            for (text_id, piece), end in zip(parts, ends, strict=True)
        ]  # fmt: skip

    def _pieces(self, texts: Mapping[int, Text], first: int) -> dict[int, list[_Piece]]:
        """More than one of a text that was begun again."""
        pieces: dict[int, list[_Piece]] = {}
        row = 0
        for place, (items, verdicts, _) in enumerate(self._steps[first:], first):
            for item, verdict in zip(items, verdicts, strict=True):
                begin, row = row, row + len(item.tokens) + len(item.draft.tokens)
                text = texts.get(item.sequence_id)
                if text is None or (verdict is not None and not verdict.tokens):
                    continue
                if place < self._known.get(item.sequence_id, 0):
                    continue
                found = pieces.get(item.sequence_id)
                if found is None:
                    found = pieces[item.sequence_id] = []
                if not found or found[-1].end != item.start:
                    found.append(_Piece(item.start))
                piece = found[-1]
                if verdict is not None and len(item.tokens) == 1 and not item.draft.tokens:
                    # Almost all of them.
                    piece.tokens.append(item.tokens[0])
                    piece.rows.append(begin)
                    piece.end += 1
                    piece.following, piece.accepted = verdict.tokens[0], 0
                else:
                    tokens, piece.following, piece.accepted, rows = advance(text, item, verdict)
                    piece.tokens += tokens
                    piece.rows += [begin + each for each in rows]
                    piece.end += len(tokens)
                piece.pages = item.pages
                if verdict is not None:
                    text.tokens.extend(verdict.tokens)
        return pieces


def _gathered(features: list[Any], rows: list[list[int]]) -> StepFeatures | None:
    if not rows or features[0] is None:
        return None
    import torch

    whole = features[0] if len(features) == 1 else torch.cat(features)
    return StepFeatures(StepFeatures(whole).gather(list(chain.from_iterable(rows))))
