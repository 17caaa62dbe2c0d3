"""The drafters that run in the worker, because they read what the model computed (features). They run after
verification: each step tells them the committed tokens, and they draft for the next step.

They are listed in the table METHODS (services/api/methods.py). Knows no scheduling.
"""

from __future__ import annotations

import contextlib
import logging
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from services.api import draft_tree as tree
from services.api.drafter import NO_DRAFT, Committed, Draft, Drafter, DraftRequest, Features, Text
from services.api.strategies import STRATEGIES
from services.worker.running.work import NewSequence, SequenceWork, Verdict

log = logging.getLogger("specmesh.worker")

# For so long a drafter that has failed gets no new text.
FAULT_REST = 60.0  # seconds


class _Following:
    __slots__ = ("name", "new", "text")

    def __init__(self, new: NewSequence) -> None:
        self.name, self.new = new.drafter, new
        self.text = Text(new.sequence_id, array("i", new.text), new.prompt_tokens)


class HeadDrafters:
    def __init__(self, drafters: Mapping[str, Drafter], now: Callable[[], float] = time.monotonic) -> None:
        self._drafters = dict(drafters)
        self._now = now
        self._rests_until = 0.0
        self._known: dict[int, _Following] = {}
        # Of the last step: the time in which the drafters read its tokens.
        self.reading_seconds = 0.0

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._drafters)

    def join(self, new: NewSequence) -> None:
        if new.drafter in self._drafters and self._now() >= self._rests_until:
            self._known[new.sequence_id] = _Following(new)

    def forget(self, sequence_ids: Sequence[int]) -> None:
        gone = [sequence_id for sequence_id in sequence_ids if self._known.pop(sequence_id, None) is not None]
        try:
            for drafter in self._drafters.values() if gone else ():
                drafter.forget(gone)
        except Exception:
            self._fail()

    def step(self, items: list[SequenceWork], verdicts: list[Verdict | None], features: Any) -> list[Draft]:
        """Commit a step, and draft for the items that ask for it. `features` are those of all rows of the items, in
        order, and stay valid; None: no drafter reads any. A drafter that fails drafts no more for the texts there are,
        rests, and fails no request."""
        self.reading_seconds = 0.0
        if not self._known:
            return []
        try:
            return self._step(items, verdicts, features)
        except Exception:
            self._fail()
            return []

    def _fail(self) -> None:
        message = "a drafter in the worker failed: this worker goes on without its own drafters for %d s"
        log.exception(message, FAULT_REST)
        self._rests_until = self._now() + FAULT_REST
        left, self._known = list(self._known), {}
        for drafter in self._drafters.values():
            # Whatever it is, what it keeps of these texts is never read again.
            with contextlib.suppress(Exception):
                drafter.forget(left)

    def _step(self, items: list[SequenceWork], verdicts: list[Verdict | None], features: Any) -> list[Draft]:
        committed: dict[str, list[Committed]] = {}
        whole = None if features is None else StepFeatures(features)
        requests: dict[str, list[tuple[int, DraftRequest]]] = {}
        row = 0
        for index, (item, verdict) in enumerate(zip(items, verdicts, strict=True)):
            known = self._known.get(item.sequence_id)
            begin, row = row, row + item.rows
            if known is None or (verdict is not None and not verdict.tokens):
                continue
            added = _committed(known.text, item, verdict, whole, begin, known.new.lent)
            committed.setdefault(known.name, []).append(added)
            if verdict is not None:
                known.text.tokens.extend(verdict.tokens)
                if item.next_budget:
                    sampling = known.new.sampling
                    # Only these rules gain from a sampled draft; the others accept the most probable token most often.
                    # And only if no token is dropped for what it is: the rest would have another distribution.
                    samples = STRATEGIES[known.new.verification.strategy].reads_probs and not known.new.weighed
                    temperature = sampling.temperature if samples else 0.0
                    request = DraftRequest(
                        known.text, item.next_budget, tree=known.new.trees and temperature == 0.0,
                        temperature=temperature, seed=sampling.seed, floor=item.next_floor,
                    )  # fmt: skip
                    requests.setdefault(known.name, []).append((index, request))
        began = time.perf_counter()
        for name, results in committed.items():
            self._drafters[name].commit(results)
        self.reading_seconds = time.perf_counter() - began
        drafts = [NO_DRAFT] * len(items)
        for name, asked in requests.items():
            for (index, _), draft in zip(asked, self._drafters[name].draft([each for _, each in asked]), strict=True):
                drafts[index] = draft
        return drafts


class StepFeatures:
    """The features of all rows of a step."""

    def __init__(self, features: Any) -> None:
        self._features = features

    def __len__(self) -> int:
        return len(self._features)

    def gather(self, rows: list[int] | slice) -> Any:
        features = self._features
        if features.device.type != "cpu":
            return features[rows]
        # Not before a model that needs it is there.
        import torch

        # Numpy takes a few rows ten times as fast as torch.
        view = features.view(torch.int16 if features.dtype.itemsize == 2 else torch.int32).numpy()
        return torch.from_numpy(view[rows]).view(features.dtype)


def _committed(
    text: Text, item: SequenceWork, verdict: Verdict | None, whole: StepFeatures | None, begin: int, lent: bool,
) -> Committed:  # fmt: skip
    """The rows of an item that are text now: all tokens of the text, and the accepted path of the draft."""
    rows: list[int] | slice
    if verdict is None:
        tokens, accepted = item.tokens, 0
        following = text.tokens[item.start + len(tokens)]
        rows = slice(begin, begin + len(tokens))
    else:
        accepted, draft = verdict.accepted, item.draft
        tokens, following = item.tokens + verdict.tokens[:accepted], verdict.tokens[accepted]
        # A view where the rows are adjacent.
        rows = slice(begin, begin + len(tokens))
        if draft.parents:
            path = tree.walk(draft.tokens, draft.parents, verdict.tokens[:accepted])
            first = begin + len(item.tokens)
            rows = [*range(begin, first), *(first + place for place in path)]
    return Committed(
        text_id=item.sequence_id,
        start=item.start,
        tokens=tokens,
        following=following,
        accepted=accepted,
        asked=verdict is not None and item.next_budget > 0,
        step=None if whole is None else Features(whole.gather, rows, len(whole)),
        pages=item.pages,
        lent=lent,
    )
