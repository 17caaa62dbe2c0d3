"""Who runs, with which pages, and what of each is computed in a step. Knows no events and no answers.

The first in order always gets its rows and its pages. When pages run out, cached text goes first, then the last in
order gives up its own: what it computed stays in the cache as long as there is room, the rest is computed again.
So everyone's turn comes.
"""

from __future__ import annotations

import bisect

from services.worker.running.runner import StepWork
from services.worker.scheduling.events import CopyPage, is_replay
from services.worker.scheduling.limits import Limits
from services.worker.scheduling.prefix import Found, Sharing
from services.worker.scheduling.rows import Rows, most_for_sure
from services.worker.scheduling.sequence import NO_DRAFT, Sequence, State
from services.worker.scheduling.waiting import Waiting
from services.worker.speculation import tree
from services.worker.speculation.tree import CHAIN

# Waiting requests looked at before a step: more than one only where the first ones wait for each other's texts.
LOOKED_AT = 64
# Rows of a replay's step: a live request that comes meanwhile waits for its end.
REPLAY_ROWS = 64
# Pages are taken ahead as long as so many are free for each sequence of a step.
PLENTY = 4


class Planner:
    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.sharing = Sharing(limits.pages, limits.page_tokens, limits.prefix_cache)
        self.pages = self.sharing.pages
        self.waiting = Waiting()
        self.running: list[Sequence] = []  # by order
        self.preemptions = 0
        # What is left of them in the step that is planned.
        self._branch_pages = 0

    # Coming and going -----------------------------------------------------------------------------------

    def admit(self) -> list[CopyPage]:
        """Let the waiting run, in order; none passes another that could run but for its pages, so the large ones'
        turn comes, too. What is to be copied before the next step."""
        copies: list[CopyPage] = []
        for _ in range(LOOKED_AT):
            sequence = self.waiting.first()
            if sequence is None or len(self.running) >= self.limits.max_running:
                break
            found = self.sharing.look(sequence)
            if found.leader is not None:
                self.waiting.step_behind(sequence, found.leader, found.needed)
                continue
            pages = self._pages_for(sequence, found)
            if pages is None:
                break
            if found.copied is not None:
                copies.append(CopyPage(found.copied, pages[len(found.pages)]))
            self.waiting.remove(sequence)
            sequence.waiting_to_running(pages, self.limits.page_tokens, found.computed)
            bisect.insort(self.running, sequence, key=_by_order)
            self.sharing.joined(sequence, found)
        return copies

    def _pages_for(self, sequence: Sequence, found: Found) -> list[int] | None:
        """The shared ones, then new ones for the whole text and the next token; None when it must wait.

        Pages that runners need soon aren't given away, or the newcomer would be preempted at once.
        """
        pages = self.pages
        need = -(-(sequence.length + 1) // self.limits.page_tokens)
        new = min(need, pages.total) - len(found.pages)
        left = pages.available - pages.idle(found.pages) - new
        if left < (len(self.running) if self.running else 0):
            return None
        # Held first: nothing that was found may be evicted for the rest.
        pages.share(found.pages)
        taken = pages.take(new)
        assert taken is not None
        return found.pages + taken

    def advanced(self, sequence: Sequence) -> None:
        """More of its text is computed."""
        self.sharing.advanced(sequence)
        self.waiting.leader_is_at(sequence, sequence.computed)

    def preempt(self, sequence: Sequence) -> None:
        self._stop_running(sequence)
        self.pages.release(sequence.running_to_waiting())
        self.waiting.put(sequence)
        self.preemptions += 1

    def end(self, sequence: Sequence) -> None:
        if sequence.state is State.WAITING:
            self.waiting.remove(sequence)
        else:
            self._stop_running(sequence)
        self.pages.release(sequence.to_ended())

    def _stop_running(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.sharing.leaving(sequence)
        self.waiting.leader_left(sequence)

    def lose_pages(self) -> None:
        """Nothing that was computed is there any more."""
        self.sharing.cache.clear()
        for sequence in list(self.running):
            self.preempt(sequence)

    # A step ---------------------------------------------------------------------------------------------

    def plan(self) -> list[StepWork]:
        rows = self._shared_out()
        self._branch_pages = self.limits.branch_pages
        work: list[StepWork] = []
        # The first in order first; only those behind it may lose their pages to it, and they aren't planned yet.
        index = 0
        while index < len(self.running):
            sequence = self.running[index]
            index += 1
            item = self._plan_one(sequence, rows)
            if item is not None:
                work.append(item)
        return work

    def _shared_out(self) -> Rows | None:
        """The step's rows; None where they needn't be shared out: nobody computes more than a token and a draft, and
        all drafts fit."""
        total = 0
        for sequence in self.running:
            if len(sequence.token_ids) - sequence.computed > 1:
                break
            total += 1 + len(sequence.draft)
        else:
            if total <= self.limits.max_step_tokens:
                return None
        wanted = [len(s.draft) for s in self.running if s.draft]
        return Rows(self.running, wanted, self.limits.max_step_tokens)

    def _plan_one(self, sequence: Sequence, rows: Rows | None) -> StepWork | None:
        text = sequence.token_ids
        start = sequence.computed
        missing = len(text) - start
        draft, parents = sequence.draft, sequence.draft_parents
        sequence.draft, sequence.draft_parents = NO_DRAFT, CHAIN
        if missing > 1:
            draft, parents = NO_DRAFT, CHAIN
            assert rows is not None
            chunk = rows.for_chunk(sequence)
            if is_replay(sequence.stream):
                chunk = min(chunk, REPLAY_ROWS)
        else:
            chunk = 1
            if draft and rows is not None:
                given = rows.for_draft(len(draft))
                draft, parents = draft[:given], parents[:given]
            if parents:
                page_tokens = self.limits.page_tokens
                draft, parents, taken = tree.fitting(draft, parents, start, page_tokens, self._branch_pages)
                self._branch_pages -= taken
        reach = tree.reach(draft, parents) if parents else len(draft)
        end = start + chunk + reach
        if end > sequence.room:
            end = self._make_room(sequence, start + chunk, end)
            if sequence.state is not State.RUNNING:
                return None
            given = end - start - chunk
            if given < reach:
                # So many tokens reach no further than that.
                draft, parents = draft[:given], parents[:given]
        tokens = text[start : start + chunk]
        return StepWork(sequence, tokens + draft if draft else tokens, start, draft, chunk == missing, parents)

    def _make_room(self, sequence: Sequence, least: int, wanted: int) -> int:
        """Pages for `wanted` tokens if they are there, for `least` whoever must go for it; how many fit."""
        page_tokens = self.limits.page_tokens
        pages = self.pages.take(-(-wanted // page_tokens) - len(sequence.pages))
        if pages is None:
            # A draft isn't worth a running sequence's pages.
            wanted = max(least, min(wanted, sequence.room + self.pages.available * page_tokens))
            needed = max(0, -(-wanted // page_tokens) - len(sequence.pages))
            while (pages := self.pages.take(needed)) is None:
                last = self.running[-1]
                # What it has computed up to the last step is to be found again.
                self.advanced(last)
                self.preempt(last)
                if last is sequence:
                    return 0
        sequence.give_pages(pages, page_tokens)
        return wanted

    def take_ahead(self, work: list[StepWork]) -> None:
        """While a step runs elsewhere: the pages that its sequences will want for the next one, if its drafts stand and
        the next are as long, or as drafts are of late. Only as long as plenty are free: nothing that is cached goes for
        it."""
        page_tokens = self.limits.page_tokens
        for item in work:
            sequence = item.sequence
            drafted = len(item.draft)
            following = drafted if sequence.record is None else max(drafted, sequence.record.enough)
            wanted = min(sequence.limit, len(sequence.token_ids) + drafted + following + 2)
            if wanted <= sequence.room or sequence.state is not State.RUNNING:
                continue
            count = -(-wanted // page_tokens) - len(sequence.pages)
            if self.pages.free < count + PLENTY * len(work):
                return
            pages = self.pages.take(count)
            assert pages is not None
            sequence.give_pages(pages, page_tokens)

    def draft_share(self, budgets: list[int]) -> int:
        """Rows that each of so many drafts may have in the next step, as far as can be known now."""
        rows = self.limits.max_step_tokens
        if sum(budgets) <= most_for_sure(rows, len(self.running)):
            return max(budgets, default=0)
        return Rows(self.running, budgets, rows).share

    def check_idle(self) -> None:
        assert not self.running
        self.waiting.check_empty()
        self.sharing.check_idle()


def _by_order(sequence: Sequence) -> tuple[float, int]:
    return sequence.order
