"""Chooses the sequences that run, their pages, and what a step computes of each. Knows no events and no answers.

The first in order always gets its rows and pages, so no sequence starves. When pages run out, cached pages are evicted
first; then the last in order is preempted. Its full pages stay in the cache as long as there is room; the rest is
computed again. So is the last of the API key that has the most running, when no place is free and another key has less
than half of an equal share.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Mapping

import msgspec

from services.api import draft_tree as tree
from services.api.drafter import NO_DRAFT, Draft
from services.worker.cache.snapshots import Snapshots
from services.worker.running.work import NO_TOKENS, DraftBudget, SequenceWork
from services.worker.scheduling.limits import Limits
from services.worker.scheduling.pace import LEAST, Pace
from services.worker.scheduling.prefix import Found, Sharing
from services.worker.scheduling.rows import enough_for_a_step, most_for_drafts, share_chunks, wanted_rows
from services.worker.scheduling.sequence import Sequence, SequenceState
from services.worker.scheduling.waiting import Waiting

NO_BUDGET = DraftBudget(0)
NO_BUDGETS: Mapping[int, DraftBudget] = {}
# Most waiting requests looked at before a step. More than one only if the first ones wait for a shared prefix.
LOOKED_AT = 64


class Planned(msgspec.Struct, gc=False):
    """One sequence's part of a step: the next `count` tokens of its text. With `verify` these reach the end of the
    text, and the step gives at least one token. `drafts`: it may have a draft."""

    sequence: Sequence
    count: int
    verify: bool
    drafts: bool

    @property
    def start(self) -> int:
        """Position of the first one, until the step's result is taken."""
        return self.sequence.computed


class Plan(msgspec.Struct):
    """A step without drafts, and the rows left for them. `copies` (source, target) of pages come first. `joined`: some
    of its sequences did not run before."""

    items: list[Planned]
    draft_rows: int
    copies: list[tuple[int, int]]
    joined: bool = False

    @property
    def grammar_drafts(self) -> dict[int, int]:
        """By sequence that has a grammar, or a limit of its reasoning, the longest draft."""
        return {
            item.sequence.sequence_id: item.sequence.longest_draft
            for item in self.items
            if item.sequence.forces_text and item.drafts
        }


class Planner:
    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.sharing = Sharing(
            limits.pages, limits.page_tokens, limits.prefix_cache, limits.secret,
            Snapshots(limits.first_snapshot, limits.snapshots) if limits.snapshots else None,
        )  # fmt: skip
        self.pages = self.sharing.pages
        self.held = self.sharing.held
        self.waiting = Waiting()
        self.running: list[Sequence] = []  # by order
        self._places: Counter[str] = Counter()  # how many of them are of each API key
        self._state_places = list(range(limits.max_running))  # that none of them has
        self.preemptions = 0
        # Those that were let in before the step that is planned.
        self._joined: list[Sequence] = []
        # Rows of drafts in the last step.
        self._drafted = 0
        self.pace = Pace(limits.longest_step) if limits.longest_step else None

    # Coming and going -----------------------------------------------------------------------------------

    def admit(self, gives_way: bool = True) -> list[tuple[int, int]]:
        """Let waiting sequences run, in their order (waiting.py). One that lacks pages holds up those behind it, so
        that large ones don't starve. `gives_way`: whether one that runs may give way to them. Returns the pages to be
        copied before the next step."""
        copies: list[tuple[int, int]] = []
        new: list[Sequence] = []
        for _ in range(LOOKED_AT):
            sequence, giving = self._next()
            if sequence is None or giving in new or (giving is not None and not gives_way):
                break
            found = self.sharing.look(sequence)
            if found.leader is not None:
                self.waiting.step_behind(sequence, found.leader, found.needed)
                continue
            if giving is not None:
                if self._left_after(sequence, found) + self.pages.alone(giving.pages) < len(self.running) - 1:
                    break
                self.preempt(giving)
            pages = self._pages_for(sequence, found)
            if pages is None:
                if not self.running and self.held.release_all():
                    # It would wait for ever for those that wait behind it.
                    continue
                break
            if found.copied is not None:
                copies.append((found.copied, pages[len(found.pages)]))
            new.append(sequence)
            self.waiting.admit(sequence, found.computed)
            sequence.waiting_to_running(pages, self.limits.page_tokens, found.computed)
            bisect.insort(self.running, sequence, key=_by_order)
            self._places[sequence.generate.caller] += 1
            sequence.state_place = self._state_places.pop()
            self.sharing.joined(sequence, found)
            self.held.release(sequence.sequence_id)
        self._joined = new
        return copies

    def may_admit(self) -> bool:
        """Whether one that waits may run in the next step, if it finds pages."""
        return bool(self.waiting) and self._next()[0] is not None

    def may_replace(self) -> bool:
        """Whether one that runs gives way to it."""
        return bool(self.waiting) and None not in self._next()

    def _next(self) -> tuple[Sequence | None, Sequence | None]:
        """The next one to run, and the one that gives way to it where no place is free: the last one of the key that
        has the most. One that has given way returns once no other key has less than its part."""
        if len(self.running) < self.limits.max_running:
            first = self.waiting.first()
            if first is None or first.charged is None or not self.running:
                return first, None
            return self._of_less(first.generate.caller) or first, None
        greedy, _ = self._places.most_common(1)[0]
        sequence = self._of_less(greedy, 1)
        return sequence, next(each for each in reversed(self.running) if each.generate.caller == greedy)

    def _of_less(self, key: str, more: int = 0) -> Sequence | None:
        """The next one of a key that has less than its part of the places, and less than this one."""
        for sequence in self.waiting.first_of_keys():
            own = self._places[sequence.generate.caller]
            part = max(1, self.limits.max_running // (2 * (len(self._places) + (not own))))
            if own < min(part, self._places[key] - more):
                return sequence
        return None

    def _new_pages(self, sequence: Sequence, found: Found) -> int:
        need = -(-(sequence.length + 1) // self.limits.page_tokens)
        return min(need, self.pages.total) - len(found.pages)

    def _left_after(self, sequence: Sequence, found: Found) -> int:
        """Pages that can be taken once this one has its own."""
        return self.pages.available - self.pages.idle(found.pages) - self._new_pages(sequence, found)

    def _pages_for(self, sequence: Sequence, found: Found) -> list[int] | None:
        """The shared pages, then new ones for the rest of the text and the next token; None if it must wait.

        One page for each running sequence stays free, or the new sequence would be preempted at once.
        """
        if self._left_after(sequence, found) < len(self.running):
            return None
        new = self._new_pages(sequence, found)
        # First, so that taking the rest can't evict them.
        self.pages.share(found.pages)
        taken = self.pages.take(new)
        assert taken is not None
        return found.pages + taken

    def advanced(self, sequence: Sequence) -> None:
        """More of its text has been computed. Of an answer most steps end before anybody has to hear of it."""
        if sequence.computed < sequence.milestone:
            return
        self.sharing.advanced(sequence)
        self.waiting.leader_is_at(sequence, sequence.computed)
        if sequence.length >= sequence.charge_at:
            self.waiting.charge_answer(sequence)
        if sequence.computed >= sequence.arrival_length - 1:
            page_end = sequence.computed - sequence.computed % self.limits.page_tokens + self.limits.page_tokens
            sequence.milestone = min(page_end, sequence.charge_at - 1)

    def preempt(self, sequence: Sequence) -> None:
        self._stop_running(sequence)
        self.pages.release(sequence.running_to_waiting())
        self.waiting.put(sequence)
        self.preemptions += 1

    def end(self, sequence: Sequence) -> None:
        if sequence.state is SequenceState.WAITING:
            self.waiting.remove(sequence)
        else:
            self._stop_running(sequence)
        self.waiting.ended(sequence)
        self.pages.release(sequence.to_ended())
        self.held.release(sequence.sequence_id)

    def _stop_running(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._state_places.append(sequence.state_place)
        caller = sequence.generate.caller
        self._places[caller] -= 1
        if not self._places[caller]:
            del self._places[caller]
        self.sharing.leaving(sequence)
        self.waiting.leader_left(sequence)

    # A step ---------------------------------------------------------------------------------------------

    def plan(self, copies: list[tuple[int, int]]) -> Plan:
        rows = self.limits.max_step_tokens
        prompts = [sequence for sequence in self.running if sequence.missing > 1]
        draft_rows = rows - len(self.running)
        chunks: dict[int, int] = {}
        if prompts:
            draft_rows = min(draft_rows, most_for_drafts(rows, len(self.running)))
            # The drafts aren't known yet: assume as many rows as in the last step, and one more each.
            drafting = sum(sequence.wants_draft for sequence in self.running)
            chunks = self._chunks(prompts, min(draft_rows, self._drafted + drafting) if drafting else 0)
        items: list[Planned] = []
        free = rows
        # In order: a sequence can take pages only from those behind it, which aren't planned yet; preempted ones leave
        # the end of the list.
        for sequence in self.running:
            item = _planned(sequence, 1 + chunks.get(sequence.sequence_id, 0) if chunks else 1)
            end = sequence.computed + item.count
            if end <= sequence.room or self.make_room(sequence, end):
                items.append(item)
                free -= item.count
        joined, self._joined = self._joined, []
        return Plan(items, min(draft_rows, free), copies, bool(joined))

    def plan_beside(self) -> Plan:
        """Those that wait and find a place and pages, in a step in which all others have one row each."""
        copies = self.admit(gives_way=False)
        joined, self._joined = self._joined, []
        prompts = [sequence for sequence in joined if sequence.missing > 1]
        chunks = self._chunks(prompts, 0) if prompts else {}
        # They have pages for their whole text.
        items = [_planned(each, 1 + chunks.get(each.sequence_id, 0)) for each in joined]
        return Plan(items, 0, copies, bool(joined))

    def _chunks(self, prompts: list[Sequence], drafts: int) -> dict[int, int]:
        """By sequence, the rows of its prompt behind the first one. `drafts`: rows that are kept for drafts."""
        rows, running = self.limits.max_step_tokens, len(self.running)
        wanted = wanted_rows(prompts, self.limits.scored_rows)
        # A prompt whose rows have logits doesn't end with the most that it may have.
        ends = self.limits.rows_cost and not any(sequence.scores for sequence in prompts)
        return share_chunks(
            wanted, self._for_prompts(rows - running - drafts), enough_for_a_step(running) if ends else None
        )

    def _for_prompts(self, rows: int) -> int:
        """Of so many that there are beside drafts and a row of each sequence."""
        if self.pace is None:
            return rows
        beside = self.limits.max_step_tokens - rows
        return min(rows, max(LEAST, self.pace.rows - beside))

    def make_room(self, sequence: Sequence, end: int) -> bool:
        """Get pages for the first `end` tokens, preempting from the end of the order; False: the sequence itself was
        preempted."""
        page_tokens = self.limits.page_tokens
        needed = -(-end // page_tokens) - len(sequence.pages)
        while (pages := self.pages.take(needed)) is None:
            if self.held.release_all():
                continue
            last = self.running[-1]
            self.preempt(last)
            if last is sequence:
                return False
        sequence.give_pages(pages, page_tokens)
        return True

    def place(
        self, plan: Plan, drafts: Mapping[int, Draft], budgets: Mapping[int, DraftBudget] = NO_BUDGETS
    ) -> list[SequenceWork]:
        """The plan with its drafts, as far as there are rows and free pages for them; and the budgets of the worker's
        head, whose layers need pages for what it will draft. Neither preempts a sequence."""
        rows, branch_pages = plan.draft_rows, self.limits.branch_pages
        work: list[SequenceWork] = []
        self._drafted = 0
        for item in plan.items:
            sequence = item.sequence
            start = sequence.computed
            sequence_id, end = sequence.sequence_id, start + item.count
            draft = drafts.get(sequence_id, NO_DRAFT) if item.drafts else NO_DRAFT
            if draft.parents:
                draft, taken = tree.fitting(tree.cut(draft, rows), start, self.limits.page_tokens, branch_pages)
                branch_pages -= taken
                reach = min(tree.reach(draft), sequence.longest_draft)
                draft = tree.cut_to_reach(draft, self._room_for(sequence, end, reach))
            elif draft.tokens:
                reach = min(len(draft.tokens), rows, sequence.longest_draft)
                if end + reach > sequence.room:
                    reach = self._room_for(sequence, end, reach)
                if reach < len(draft.tokens):
                    draft = tree.cut(draft, reach)
            drafted = len(draft.tokens)
            rows -= drafted
            self._drafted += drafted
            budget, floor = budgets.get(sequence_id, NO_BUDGET) if budgets else NO_BUDGET
            if budget:
                # After the draft and the token behind it.
                reach = tree.reach(draft) + 1 if draft.tokens else 1
                budget = max(0, self._room_for(sequence, end, reach + budget) - reach)
            work.append(_work(item, draft, budget, floor))
        return work

    def place_beside(self, plan: Plan) -> list[SequenceWork]:
        return [_work(item) for item in plan.items]

    def _room_for(self, sequence: Sequence, end: int, reach: int) -> int:
        """How many of the `reach` tokens after `end` have pages."""
        page_tokens = self.limits.page_tokens
        if end + reach > sequence.room:
            wanted = -(-(end + reach) // page_tokens) - len(sequence.pages)
            pages = self.pages.take(min(wanted, self.pages.available))
            assert pages is not None
            sequence.give_pages(pages, page_tokens)
        return min(reach, sequence.room - end)

    def check_idle(self) -> None:
        assert not self.running and not self._places and len(self._state_places) == self.limits.max_running
        self.waiting.check_empty()
        self.sharing.check_idle()


def _planned(sequence: Sequence, count: int) -> Planned:
    if sequence.keep_at:
        count = min(count, sequence.keep_at[0] - sequence.computed)
    verify = sequence.computed + count == len(sequence.token_ids)
    return Planned(sequence, count, verify, verify and count == 1 and sequence.wants_draft)


def _work(item: Planned, draft: Draft = NO_DRAFT, budget: int = 0, floor: float = 0.0) -> SequenceWork:
    sequence, start = item.sequence, item.start
    end = start + item.count
    scored, pooled = NO_TOKENS, 0
    if start < sequence.prompt_tokens:
        scored, pooled = sequence.to_score(start, end), sequence.to_pool(start, end)
    return SequenceWork(
        sequence.sequence_id, sequence.token_ids[start:end], start, sequence.pages, item.verify, draft, budget, floor,
        scored, pooled, sequence.state_place,
    )  # fmt: skip


def _by_order(sequence: Sequence) -> tuple[float, int]:
    return sequence.order
