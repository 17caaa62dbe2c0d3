"""The drafters that run in the worker, because they read what the model computed (features). They run after
verification: each step tells them the committed tokens, and they draft for the next step.

Steps behind which no draft is asked for are told later, many at once (unread.py), or never: then the text is lost for
the drafters, and its sequence goes on without them.

They are listed in the table METHODS (services/api/methods.py). Knows no scheduling.
"""

from __future__ import annotations

import contextlib
import logging
import time
from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from services.api.drafter import NO_DRAFT, Committed, Draft, Drafter, DraftRequest, Features, Text
from services.api.strategies import STRATEGIES
from services.worker.running.work import NewSequence, SequenceWork, Verdict
from services.worker.speculation.heads.unread import StepFeatures, UnreadSteps, advance

log = logging.getLogger("specmesh.worker")

# For so long a drafter that has failed gets no new text.
FAULT_REST = 60.0  # seconds
# So few texts are read and not lost: it takes a small share of their steps.
FEW_TEXTS = 4


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
        self._unread = UnreadSteps()
        # Texts whose pages have to be complete after each step.
        self._lent: set[int] = set()
        # Of the last step: the time in which the drafters read its tokens.
        self.reading_seconds = 0.0
        # And the texts that no draft can be asked for any more.
        self.lost: list[int] = []

    @property
    def reads(self) -> bool:
        """Whether any text is read. Else `step` needs no features."""
        return bool(self._known)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._drafters)

    def join(self, new: NewSequence) -> None:
        if new.drafter in self._drafters and self._now() >= self._rests_until:
            self._known[new.sequence_id] = _Following(new)
            self._unread.begin(new.sequence_id)
            if new.lent:
                self._lent.add(new.sequence_id)

    def forget(self, sequence_ids: Sequence[int]) -> None:
        gone = [sequence_id for sequence_id in sequence_ids if self._known.pop(sequence_id, None) is not None]
        self._lent.difference_update(gone)
        if not self._known:
            self._unread.clear()
        try:
            for drafter in self._drafters.values() if gone else ():
                drafter.forget(gone)
        except Exception:
            self._fail()

    def step(self, items: list[SequenceWork], verdicts: list[Verdict | None], features: Any) -> list[Draft]:
        """Commit a step, perhaps later, and draft for the items that ask for it; []: none does. `features` are those of
        all rows of the items, in order, and stay valid; None: no drafter reads any. A drafter that fails drafts no more
        for the texts there are, rests, and fails no request."""
        self.reading_seconds, self.lost = 0.0, []
        if not self._known:
            return []
        # Those that a draft is asked for, and those whose pages have to be complete.
        now = {item.sequence_id for item in items if item.next_budget} | self._lent
        try:
            drafts = self._step(items, verdicts, features, now) if now else []
            if not self._known.keys() <= now:
                self._unread.add(items, verdicts, features, now)
            if self._unread.full and len(self._known) > FEW_TEXTS:
                self._lose(self._unread.drop())
            # Long prompts, or few texts.
            if self._unread.full:
                self._catch_up(self._known, of_now=True)
                self._unread.clear()
            return drafts
        except Exception:
            self._fail()
            return []

    def _fail(self) -> None:
        message = "a drafter in the worker failed: this worker goes on without its own drafters for %d s"
        log.exception(message, FAULT_REST)
        self._rests_until = self._now() + FAULT_REST
        left, self._known = list(self._known), {}
        self._lent.clear()
        self._unread.clear()
        for drafter in self._drafters.values():
            # Whatever it is, what it keeps of these texts is never read again.
            with contextlib.suppress(Exception):
                drafter.forget(left)

    def _lose(self, text_ids: Collection[int]) -> None:
        self.lost = [each for each in text_ids if each in self._known]
        self.forget(self.lost)

    def _catch_up(self, sequence_ids: Iterable[int], *, of_now: bool = False) -> None:
        """Tell the drafters of the steps that wait, as far as they are of these sequences. `of_now`: the last of them
        was computed just now."""
        began = time.perf_counter()
        committed: dict[str, list[Committed]] = {}
        texts = {each: self._known[each].text for each in sequence_ids if each in self._known}
        for each in self._unread.take(texts, of_now=of_now):
            committed.setdefault(self._known[each.text_id].name, []).append(each)
        for name, results in committed.items():
            self._drafters[name].commit(results)
        self.reading_seconds += time.perf_counter() - began

    def _step(
        self, items: list[SequenceWork], verdicts: list[Verdict | None], features: Any, now: Collection[int]
    ) -> list[Draft]:
        """Of these sequences. The others are told later."""
        self._catch_up(now)
        committed: dict[str, list[Committed]] = {}
        whole = None if features is None else StepFeatures(features)
        requests: dict[str, list[tuple[int, DraftRequest]]] = {}
        row = 0
        for index, (item, verdict) in enumerate(zip(items, verdicts, strict=True)):
            known = self._known.get(item.sequence_id) if item.sequence_id in now else None
            begin, row = row, row + item.rows
            if known is None or (verdict is not None and not verdict.tokens):
                continue
            committed.setdefault(known.name, []).append(_committed(known, item, verdict, whole, begin))
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
        self.reading_seconds += time.perf_counter() - began
        drafts = [NO_DRAFT] * len(items)
        for name, asked in requests.items():
            for (index, _), draft in zip(asked, self._drafters[name].draft([each for _, each in asked]), strict=True):
                drafts[index] = draft
        return drafts


def _committed(
    known: _Following, item: SequenceWork, verdict: Verdict | None, whole: StepFeatures | None, begin: int,
) -> Committed:  # fmt: skip
    tokens, following, accepted, rows = advance(known.text, item, verdict)
    # A view where the rows are adjacent.
    places = slice(begin, begin + len(rows)) if isinstance(rows, range) else [begin + each for each in rows]
    return Committed(
        text_id=item.sequence_id,
        start=item.start,
        tokens=tokens,
        following=following,
        accepted=accepted,
        asked=verdict is not None and item.next_budget > 0,
        step=None if whole is None else Features(whole.gather, places),
        pages=item.pages,
        lent=known.new.lent,
    )
