"""A new proposer takes over from the one at work, without a step that notices: first it is asked the same questions,
and nobody uses its answers; what would have stood of both is counted; when the new one does as well, it is the one.

    question ─┬─▶ the one at work ─▶ drafts
              └─▶ the candidate   ─▶ compared with the text, once that has gone on

The same interface as a proposer's line (proposer_link.py), of which it holds one or two. Nobody waits for a candidate,
and one that dies, is slow or is worse just stays one. Knows no directory: who is a candidate it is told.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from services.api.drafts import DraftItem
from services.worker.scheduling.events import DraftAsk, DraftsReady
from services.worker.scheduling.sequence import Sequence
from services.worker.speculation.remote.proposer_link import ProposerLink

log = logging.getLogger("specmesh.worker")

# Questions that both answered before they are compared, and again after as many.
COMPARED = 100
# The candidate's drafts have to bring so much of the other's.
AS_GOOD = 0.95
# Of each draft, so many tokens count.
LOOKED_AT = 8
# Questions whose text has yet to go on.
MOST_OPEN = 512


@dataclass(slots=True)
class _Pair:
    """What both said behind one place of a text."""

    sequence: Sequence
    length: int
    ahead: list[int]
    now: list[int] | None = None
    new: list[int] | None = None

    @property
    def position(self) -> int:
        return self.length + len(self.ahead)

    def went_elsewhere(self) -> bool:
        """What was assumed to follow didn't."""
        said = self.sequence.token_ids[self.length : self.position]
        return said != self.ahead[: len(said)]

    def is_known(self) -> bool:
        return len(self.sequence.token_ids) >= self.position + LOOKED_AT

    def stood(self, draft: list[int]) -> int:
        said = self.sequence.token_ids[self.position : self.position + LOOKED_AT]
        for at, (token, guessed) in enumerate(zip(said, draft, strict=False)):
            if token != guessed:
                return at
        return min(len(said), len(draft))


Key = tuple[int, int]


class Succession:
    """`make_link` makes a line that isn't connected yet; `took_over` is told the endpoint that is at work now."""

    def __init__(self, make_link: Callable[[], ProposerLink], took_over: Callable[[str], None]) -> None:
        self._make_link = make_link
        self._took_over = took_over
        self.link = make_link()
        self._candidate: ProposerLink | None = None
        self._pairs: dict[Key, _Pair] = {}
        # Of the questions that are open: which places they are about.
        self._asked: list[Key] = []
        self._asked_candidate: list[Key] = []
        self._compared = self._stood = self._stood_new = 0
        self.takeovers = 0

    @property
    def share(self) -> float:
        """What the candidate's drafts bring of those at work, as far as is known; 0 while there is no candidate."""
        return self._stood_new / self._stood if self._stood else float(self._candidate is not None)

    # Who is there -----------------------------------------------------------------------------------------

    def move_to(self, endpoint: str) -> None:
        self.link.move_to(endpoint)

    def try_out(self, endpoint: str) -> None:
        """A candidate is at `endpoint`; "": there is none any more."""
        if self._candidate is not None:
            self._candidate.close()
            self._candidate = None
        self._forget_pairs()
        if endpoint:
            self._candidate = self._make_link()
            self._candidate.shadow = True
            self._candidate.move_to(endpoint)

    def _take_over(self, candidate: ProposerLink) -> None:
        log.warning(
            "the proposer at %s takes over: of its drafts %d tokens would have stood, of the others %d",
            candidate.endpoint, self._stood_new, self._stood,
        )  # fmt: skip
        self.link.close()
        candidate.shadow = False
        self.link, self._candidate = candidate, None
        self._forget_pairs()
        self.takeovers += 1
        self._took_over(candidate.endpoint)

    def _forget_pairs(self) -> None:
        self._pairs.clear()
        self._asked, self._asked_candidate = [], []
        self._compared = self._stood = self._stood_new = 0

    # The line ---------------------------------------------------------------------------------------------

    def forget(self, sequence_ids: list[int], learned: list[Sequence]) -> None:
        self.link.forget(sequence_ids, learned)
        if self._candidate is not None:
            self._candidate.forget(sequence_ids, learned)
            ended = set(sequence_ids)
            self._judge(lambda pair: pair.sequence.id in ended)

    def listens(self) -> bool:
        return self.link.listens()

    def ask_ahead(self, asks: list[DraftAsk]) -> None:
        self._both(asks, self.link.ask_ahead)

    def hurry(self, asks: list[DraftAsk]) -> None:
        self._both(asks, self.link.hurry)

    def ask(self, asks: list[DraftAsk], wait: float = 0.0) -> None:
        self._both(asks, self.link.ask, wait)

    def look(self) -> DraftsReady | None:
        return self._heard(self.link.look())

    def wait_ahead(self, seconds: float) -> DraftsReady | None:
        ready = self.link.wait_ahead(seconds)
        return None if ready is None else self._heard(ready)

    def collect(self, within: float | None = None) -> DraftsReady | None:
        return self._heard(self.link.collect(within))

    def expects(self) -> bool:
        return self.link.expects()

    def rehearse(self) -> None:
        self.link.rehearse()

    def rehearsed(self) -> bool:
        return self.link.rehearsed()

    def rest(self) -> bool:
        unsaid = self.link.rest()
        if self._candidate is not None:
            unsaid |= self._candidate.rest()
        return unsaid

    def close(self) -> None:
        self.link.close()
        if self._candidate is not None:
            self._candidate.close()

    # Both beside each other -------------------------------------------------------------------------------

    def _both(self, asks: list[DraftAsk], ask_link: Callable[..., None], *more: float) -> None:
        """What the one at work is asked, the candidate is, too."""
        before = self.link.asked
        ask_link(asks, *more)
        if self.link.asked == before:
            return
        self._asked = [_key(ask) for ask in asks]
        candidate = self._candidate
        if candidate is None:
            return
        before = candidate.asked
        candidate.ask_ahead(asks)
        if candidate.asked == before:
            return
        self._asked_candidate = [_key(ask) for ask in asks]
        for ask in asks:
            if len(self._pairs) < MOST_OPEN:
                pair = _Pair(ask.sequence, ask.length, list(ask.ahead))
                self._pairs.setdefault(_key(ask), pair)

    def _heard(self, ready: DraftsReady | None) -> DraftsReady | None:
        if self._candidate is None:
            return ready
        if ready is not None and ready.answered:
            said = _by_sequence(ready.drafts)
            for key in self._asked:
                if (pair := self._pairs.get(key)) is not None:
                    pair.now = said.get(key, [])
        theirs = self._candidate.look()
        if theirs is not None and theirs.answered:
            said = _by_sequence(theirs.drafts)
            for key in self._asked_candidate:
                if (pair := self._pairs.get(key)) is not None:
                    pair.new = said.get(key, [])
        self._judge(_Pair.is_known)
        return ready

    def _judge(self, known: Callable[[_Pair], bool]) -> None:
        for key, pair in list(self._pairs.items()):
            gone = pair.went_elsewhere()
            if not gone and not known(pair):
                continue
            del self._pairs[key]
            if not gone and pair.now is not None and pair.new is not None:
                self._compared += 1
                self._stood += pair.stood(pair.now)
                self._stood_new += pair.stood(pair.new)
        if self._compared < COMPARED or self._candidate is None:
            return
        if self._stood_new >= AS_GOOD * self._stood:
            self._take_over(self._candidate)
        else:
            # It may still be learning: what was counts half.
            self._compared, self._stood, self._stood_new = 0, self._stood // 2, self._stood_new // 2


def _key(ask: DraftAsk) -> Key:
    return ask.sequence.id, ask.length + len(ask.ahead)


def _by_sequence(drafts: list[DraftItem]) -> dict[Key, list[int]]:
    return {(draft.sequence_id, draft.committed): draft.tokens for draft in drafts}
