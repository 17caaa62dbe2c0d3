"""The drafting state of one running sequence: its prepared draft, what is known of its drafts' acceptance, and what
drafts have brought it."""

from __future__ import annotations

from math import prod

from services.api.drafter import MAX_DRAFT_TOKENS, Draft
from services.worker.scheduling.sequence import Sequence
from services.worker.speculation.acceptance import Acceptance
from services.worker.speculation.benefit import Benefit, Worth
from services.worker.speculation.draft_length import cumulated
from services.worker.speculation.draft_rows import candidate_of
from services.worker.speculation.merging import can_be_merged
from services.worker.speculation.prepared import Prepared, Way
from services.worker.speculation.repeats import Repeats

# Answers in vain, one after the other, after which a text that repeats itself promises nothing.
MOST_IN_VAIN = 16


class Speculating:
    """`acceptance` is None if its drafts have a fixed length."""

    __slots__ = ("acceptance", "all_accepted", "asked_at", "benefit", "head_draft", "head_lost", "in_vain", "missed",
                 "prepared", "read", "repeats", "sequence", "text_value", "unweighed", "weighed", "worth")  # fmt: skip

    def __init__(self, sequence: Sequence, acceptance: Acceptance | None) -> None:
        self.sequence = sequence
        self.acceptance = acceptance
        self.benefit = {} if acceptance is None else {way: Benefit(each) for way, each in acceptance.benefit.items()}
        self.worth = Worth(self._worth_of_others)
        self.prepared: Prepared | None = None
        # Whether the worker's head ran for it after the last step.
        self.head_draft = False
        # It has missed a part of the text, and drafts for it no more.
        self.head_lost = False
        # Tokens of a draft of its that wasn't weighed against text drafts yet; and those expected of text alone.
        self.unweighed: int | None = None
        self.text_value = 0.0
        # Its length, and what it adds to text drafts, until the step that verifies it is over.
        self.weighed: tuple[int, float] | None = None
        # Tokens of the text that it has read, and seconds that it would have saved since then.
        self.read = sequence.cached_tokens or 0
        self.missed = 0.0
        # Length of the text when a text draft was last asked for that a step waits for.
        self.asked_at = 0
        self.repeats = Repeats()
        # Answers, one after the other, that brought nothing.
        self.in_vain = 0
        # Whether all of the last draft was accepted.
        self.all_accepted = True

    @property
    def _worth_of_others(self) -> Worth | None:
        if self.acceptance is None:
            return None
        of_all = self.acceptance.of_all
        return of_all.worth_in_grammars if self.sequence.forces_text else of_all.worth

    @property
    def asks(self) -> bool:
        """Whether the proposer is asked for its drafts; with the head's method it isn't."""
        return self.acceptance is not None or not self.sequence.drafter

    @property
    def lacks_text(self) -> bool:
        """Whether there is no text draft, and none was asked for."""
        lacking = self.prepared is None or self.prepared.way == "head"
        return self.asks and lacking and self.asked_at < len(self.sequence.token_ids)

    @property
    def promises(self) -> bool:
        """Whether its text says that a draft may pay now, whatever the last ones brought."""
        return self.in_vain < MOST_IN_VAIN and self.repeats.look(self.sequence.token_ids)

    def readable(self, draft: Draft) -> Draft:
        """With `auto` how much of a draft is verified depends on its tokens: what is left isn't distributed as it was
        drawn. Verified as certain, the text keeps its distribution however tokens were chosen."""
        return draft if self.acceptance is None or draft.probs is None else draft._replace(probs=None)

    def expected(self, prepared: Prepared) -> float:
        """Tokens of a draft that are accepted on average; 0 with a fixed method, which weighs nothing."""
        if self.acceptance is None:
            return 0.0
        return sum(candidate_of(prepared, self.acceptance, self.sequence.longest_draft).values)

    def merges(self, prepared: Prepared) -> bool:
        """Whether this draft and the one that it has become one tree: one of them of text, the other of the head."""
        old = self.prepared
        if old is None or self.acceptance is None or not self.sequence.trees:
            return False
        of_head, old_is_of_head = prepared.way == "head", old.way == "head"
        return (of_head != old_is_of_head or (not of_head and bool(old.sources))) and can_be_merged(old, prepared)

    def better(self, prepared: Prepared, old: Prepared) -> bool:
        """Whether this draft takes the place of the one that it has: if more of it is expected to be accepted, or,
        among drafts of text, if it is as long."""
        if "head" in (old.way, prepared.way) and self.acceptance is not None:
            return self.expected(prepared) > self.expected(old)
        return old.left <= prepared.left

    def gain(self, drafted: int) -> float | None:
        """Tokens of a draft of the head that are expected to be accepted after the step, beyond those of the
        rest of the prepared draft, of whose first path the step verifies `drafted`. None: not known yet."""
        worth, prepared = self.worth.expected, self.prepared
        if worth is None or prepared is None or self.acceptance is None:
            return worth
        chances = self.acceptance.chances(prepared)
        path = [chances[place] for place in prepared.first_path()]
        # There is a rest if the step's draft is accepted and the token after it is as prepared.
        survives, rest = prod(path[: drafted + 1]), path[drafted + 1 :][: self.sequence.longest_draft]
        return worth - survives * min(worth, sum(cumulated(rest)))

    @property
    def enough(self) -> int:
        """Tokens of a draft that a step waits for."""
        return MAX_DRAFT_TOKENS if self.acceptance is None else self.acceptance.enough

    @property
    def unread(self) -> int:
        return len(self.sequence.token_ids) - self.read

    def weigh(self) -> None:
        """What the last draft of the head adds to text drafts, before the step that verifies them."""
        if self.unweighed is None or self.acceptance is None:
            return
        drafted, self.unweighed = self.unweighed, None
        prepared = self.prepared
        has_head = prepared is not None and (prepared.way == "head" or bool(prepared.sources))
        adds = max(0.0, self.expected(prepared) - self.text_value) if has_head and prepared is not None else 0.0
        self.weighed = drafted, adds

    def learn_worth(self, *, forced: bool) -> None:
        """Behind that step. `forced`: a grammar left one text, so the head's draft wasn't needed."""
        if self.weighed is None:
            return
        (drafted, adds), self.weighed = self.weighed, None
        for worth in (self.worth, self._worth_of_others):
            if worth is not None:
                worth.learn(0 if forced else drafted, 0.0 if forced else adds)

    def learn_benefit(self, way: Way, seconds: float) -> None:
        self.in_vain = 0 if seconds > 0 else self.in_vain + 1
        if self.acceptance is not None and way in self.benefit:
            self.benefit[way].learn(seconds)
            self.acceptance.benefit[way].learn(seconds)
