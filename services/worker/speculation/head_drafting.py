"""When the worker's head runs, and for which sequences. Its drafts are weighed as all others are, by the
controller."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from services.api import draft_tree as tree
from services.api.drafter import MAX_DRAFT_TOKENS, NO_DRAFT, Draft
from services.api.methods import METHODS
from services.worker.running.work import DraftBudget, Drafted, Work
from services.worker.scheduling.limits import Limits
from services.worker.speculation.head_costs import HeadCosts
from services.worker.speculation.probes import Probes
from services.worker.speculation.speculating import Speculating

# It isn't run for less than this many tokens of a sequence, and always drafts a token whose chance is greater than
# MOST_FLOOR.
LEAST_GAIN, MOST_FLOOR = 0.05, 0.5
# It has to save this multiple of what it costs: both are estimates.
MARGIN = 1.2
# And before it reads a text it must have missed this multiple of what the reading costs.
MISSED = 3.0


class HeadDrafting:
    def __init__(self, limits: Limits, probes: Probes) -> None:
        self.costs = HeadCosts()
        self._limits, self._probes = limits, probes

    def budgets(
        self, with_head: list[Speculating], drafts: Mapping[int, Draft], steps: int, token_seconds: float,
        row_seconds: float,
    ) -> dict[int, DraftBudget]:  # fmt: skip
        """What it is to draft after the step, by sequence. With `auto` only if it pays, and only where the rest of a
        prepared draft isn't as good; a token is drafted as long as its chance is worth a pass and a row. `steps`: since
        this was decided last."""
        most = self._limits.model_steps or MAX_DRAFT_TOKENS
        budgets = {
            each.sequence.sequence_id: DraftBudget(min(most, each.sequence.longest_draft))
            for each in with_head
            if each.acceptance is None
        }
        weighed = [each for each in with_head if each.acceptance is not None]
        worth = self._worth_drafting(weighed, drafts, bool(budgets), steps, token_seconds, row_seconds)
        if worth:
            cost = self.costs.pass_seconds / len(worth) + row_seconds
            floor = min(MOST_FLOOR, cost / token_seconds) if token_seconds else 0.0
            for each in worth:
                longest = self._limits.model_steps or 2 * METHODS[each.sequence.drafter].length
                budgets[each.sequence.sequence_id] = DraftBudget(min(each.sequence.longest_draft, longest), floor)
        for each in with_head:
            each.head_draft &= each.sequence.sequence_id in budgets
        return budgets

    def drafted(
        self, work: Work, drafted: Drafted, known: Mapping[int, Speculating]
    ) -> Iterator[tuple[Speculating, Draft]]:
        """The drafts that it has made, and what they cost."""
        longest = asked = unread = 0
        for item, draft in zip(work.items, drafted.drafts, strict=False):
            each = known.get(item.sequence_id)
            if each is None:
                continue
            if not item.next_budget:
                each.head_draft = False
                continue
            longest, asked = max(longest, tree.reach(draft)), asked + 1
            unread += 0 if each.head_draft else each.unread
            each.head_draft, each.read, each.missed = True, len(each.sequence.token_ids), 0.0
            each.unweighed, each.text_value = len(draft.tokens), 0.0
            yield each, draft
        if asked:
            self.costs.learn(asked, unread, longest, drafted.seconds, drafted.reading_seconds)

    def _worth_drafting(
        self,
        known: list[Speculating],
        drafts: Mapping[int, Draft],
        asked_anyway: bool,
        steps: int,
        token_seconds: float,
        row_seconds: float,
    ) -> list[Speculating]:
        """Those for whom it is to run. It begins to read a text when it would have saved a multiple of what the reading
        costs: what follows may be easier for text drafts."""
        worth: list[Speculating] = []
        brings = 0.0
        for each in known:
            drafted = drafts.get(each.sequence.sequence_id, NO_DRAFT)
            gain = each.gain(len(tree.first_path(drafted.tokens, drafted.parents)))
            if gain is None:
                asked_anyway = True
                worth.append(each)
            elif gain > LEAST_GAIN:
                saves = gain * token_seconds - each.worth.drafted * row_seconds
                each.missed += steps * max(0.0, saves)
                if each.head_draft or each.missed > MISSED * each.unread * self.costs.row_seconds:
                    brings += saves
                    worth.append(each)
        if asked_anyway or brings > MARGIN * self.costs.draft(len(worth)):
            return worth
        return self._probed(known)

    def _probed(self, known: list[Speculating]) -> list[Speculating]:
        """The one that costs least, now and then."""
        one = min(known, key=lambda each: each.unread, default=None)
        if one is None:
            return []
        seconds = self.costs.draft(1) + one.unread * self.costs.row_seconds
        return [one] if self._probes.due("head", seconds) else []
