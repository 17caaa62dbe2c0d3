"""Which drafts are verified, how much of each, and whether to ask for more. Knows no pages and no sockets.

    draft       take the answer to what was asked ahead; for sequences without a draft wait once, if that pays; put as
                many tokens of each prepared draft into the step as pay (draft_rows.py)
    ask_ahead   while the step runs, ask for what follows if its drafts are accepted
    commit      move prepared drafts along the text, or drop them; learn acceptance and benefits
    learn       the step's cost, and counts of its drafts
    ask_beside  for sequences that the worker's head is about to draft for, ask for text drafts, too
    take_head   the drafts of the worker's head

Where nothing is prepared and nothing is asked, the next few steps don't look either (rest.py): with many sequences the
look itself would cost a share of the step. On a GPU, where steps are short, they rest also where drafts bring less than
the looks cost (comparison.py).

Costs and benefits are weighed for the method auto only. With another method a request gets drafts of the length it
asked for, and the proposer is asked whenever it has none.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Items

from services.api import draft_tree as tree
from services.api.drafter import MAX_DRAFT_TOKENS, NO_DRAFT, Draft
from services.api.methods import AUTO
from services.worker.grammar.drafting import SOURCE as GRAMMAR
from services.worker.running.work import DraftBudget, Drafted, Result, Size, Verdict, Work
from services.worker.scheduling.limits import Limits
from services.worker.scheduling.planning import Plan, Planned
from services.worker.scheduling.sequence import Sequence
from services.worker.speculation.acceptance import Acceptance, AcceptanceTable, buckets_of
from services.worker.speculation.benefit import upper_of_all
from services.worker.speculation.comparison import Comparison
from services.worker.speculation.cost_model import StepTime
from services.worker.speculation.counts import SpeculationCounts
from services.worker.speculation.draft_length import modest
from services.worker.speculation.draft_rows import Candidate, Costs, candidate_of, choose, costs_of
from services.worker.speculation.head_drafting import HeadDrafting
from services.worker.speculation.merging import merge
from services.worker.speculation.prepared import Prepared, Way, prepare
from services.worker.speculation.probes import Probes
from services.worker.speculation.remote.client import Answer, Ask
from services.worker.speculation.remote.proposers import Proposers
from services.worker.speculation.rest import LEAST_SEQUENCES, Rest
from services.worker.speculation.speculating import Speculating
from services.worker.speculation.validity import is_valid

# Ask for a new draft if fewer tokens than this are left after the step's draft.
FEW_LEFT = 4
# Longest wait for drafts: this share of the step's time, and this multiple of the mean time of asking.
WAIT_SHARE = 0.25
WAIT_LONGER = 8.0
# Tokens that a draft may save of which nothing is known yet: with many sequences they are a small part of a step.
HOPED_TOKENS = 4
# What asking costs, as a share of a step, from which it is dear.
DEAR = 0.02
# What the host adds to longer steps is a small share of them.
SHORT_STEP = 0.005
# Assumed seconds of a request before any was measured, and the window of the mean.
FIRST_COSTS: dict[Way, float] = {"ahead": 1e-4, "waited": 2.5e-4}
COST_WINDOW = 16


class Controller:
    def __init__(
        self,
        limits: Limits,
        client: Proposers,
        answered: Callable[[Answer, dict[int, int]], None] = lambda answer, tokens: None,
        now: Callable[[], float] = lambda: 0.0,
        rests_from: int = LEAST_SEQUENCES,
    ) -> None:
        """`answered` gets each answer, and the number of drafted tokens by sequence. `now`: what is done here to ask
        and to take an answer costs time, too. `rests_from`: sequences of which not all steps look for drafts."""
        self.client = client
        self.cost_model = StepTime()
        self.acceptance = AcceptanceTable()
        self.counts = SpeculationCounts()
        self.asking_seconds = dict(FIRST_COSTS)
        self._limits = limits
        self._answered = answered
        self._now = now
        self._known: dict[int, Speculating] = {}
        self._probes = Probes()
        self.head = HeadDrafting(limits, self._probes)
        # Of the last step, and of a row of a step.
        self._step_seconds = 0.0
        self._row_seconds = 0.0
        self._rest = Rest(rests_from)
        # Whether the running step rests; and whether drafts were left where they are.
        self._rests = self._left_behind = False
        self._comparison = Comparison() if rests_from < LEAST_SEQUENCES else None
        # Seconds that it took to make the request that is open.
        self._making = 0.0
        # Whether text drafts were asked for while the worker's head drafted.
        self._asked_beside = False
        # What texts said of chains, not yet learned: no place of theirs changes.
        self._compared: list[tuple[Acceptance, Prepared, tuple[Items[int], Items[int]]]] = []
        # Costs of the running step, and the weighed drafts that it verifies, until they are counted.
        self._costs = Costs(0, True, [])
        self._chosen: list[tuple[str, Candidate, Items[int]]] = []

    def check_idle(self) -> None:
        assert not self._known, "no drafts are prepared for sequences that have ended"
        if self._comparison is not None:
            self._comparison.pause()

    def forget(self, sequence: Sequence, learn: bool) -> None:
        """The sequence has ended."""
        known = self._known.pop(sequence.sequence_id, None)
        if known is not None:
            self._drop(known)
            if known.asks:
                self.client.forget(sequence, learn)

    # Before a step --------------------------------------------------------------------------------------

    def rest(self) -> bool:
        """Whether the next step needs no drafts, if no sequence joins. Then `draft` isn't called."""
        return self._rest.goes_on()

    def draft(self, plan: Plan) -> tuple[dict[int, Draft], dict[int, DraftBudget]]:
        """Drafts by sequence, and by sequence the budget of the worker's head after the step."""
        if plan.joined:
            self.joined(plan.items, len(plan.items))
        if self._rest.goes_on():
            return {}, {}
        steps = self._rest.looked()
        if self._left_behind:
            self._begin_again()
        self._take_all(self.client.look())
        known = {
            sequence.sequence_id: self._of(sequence)
            for sequence in (item.sequence for item in plan.items)
            if sequence.draft_length
        }
        drafting = [known[item.sequence.sequence_id] for item in plan.items if item.drafts]
        self._wait_for(drafting)
        for each in drafting:
            if each.unweighed is not None:
                each.weigh()
        drafts = self._choose(drafting, plan)
        with_head = [known[item.sequence.sequence_id] for item in plan.items if item.verify and item.sequence.drafter]
        with_head = [each for each in with_head if each.sequence.longest_draft > 0 and not each.head_lost]
        budgets = self.head.budgets(with_head, drafts, steps, self._costs.token_seconds, self._row_seconds)
        if budgets or len(drafting) < len(known) or any(each.prepared is not None for each in drafting):
            self._rest.prevent()
        return drafts, budgets

    def joined(self, items: list[Planned], count: int) -> None:
        """Sequences have joined the batch. `items` are theirs, perhaps with those of others; the step has `count`."""
        drafting = [item.sequence for item in items if item.sequence.draft_length]
        if not drafting:
            return
        if all(sequence.method == AUTO for sequence in drafting):
            self._rest.join(count, self._step_seconds)
        else:
            self._rest.end()

    def _begin_again(self) -> None:
        """Behind a rest that began while there were drafts: the texts have left them behind."""
        self._left_behind = False
        for each in self._known.values():
            if each.prepared is not None:
                each.prepared.excused = True
            self._drop(each)
            each.weighed = each.unweighed = None
            each.head_draft = False

    def _of(self, sequence: Sequence) -> Speculating:
        known = self._known.get(sequence.sequence_id)
        if known is None:
            acceptance = self.acceptance.of(sequence.generate.namespace) if sequence.method == AUTO else None
            known = self._known[sequence.sequence_id] = Speculating(sequence, acceptance)
        return known

    def _wait_for(self, drafting: list[Speculating]) -> None:
        """Ask for text drafts of the sequences that have none, and wait, if that pays."""
        if self._asked_beside:
            self._asked_beside = False
            self._take_all(self.client.collect())
        if self._ask_now(drafting):
            self._take_all(self.client.collect())

    def _ask_now(self, known: list[Speculating]) -> bool:
        """Ask for text drafts of those that have none, if that pays. Returns whether an answer is to be waited for."""
        began = self._now()
        lacking = [each for each in known if each.lacks_text and each.sequence.longest_draft > 0]
        if not lacking or not self.client.listens():
            return False
        fixed = [each for each in lacking if each.acceptance is None]
        weighed = [each for each in lacking if each.acceptance is not None]
        asked = fixed + self._worth_asking("waited", weighed, bool(fixed))
        if not asked:
            return False
        for each in asked:
            each.asked_at = len(each.sequence.token_ids)
        asks = [Ask(each.sequence, min(each.sequence.longest_draft, each.enough)) for each in asked]
        # For drafts of fixed length wait up to the deadline; for auto the wait has to pay, too.
        wait = WAIT_LONGER * self.asking_seconds["waited"]
        if self._costs.step_seconds:
            wait = min(wait, WAIT_SHARE * self._costs.step_seconds)
        self._rest.prevent()
        self._making = self._now() - began
        return self.client.ask(asks, 0.0 if fixed else wait)

    def _worth_asking(self, way: Way, known: list[Speculating], asked_anyway: bool) -> list[Speculating]:
        """All of them or none, since one more sequence in a request costs almost nothing; but where only those pay of
        which nothing is known yet, these alone."""
        if not known:
            return []
        unknown = [each for each in known if each.benefit[way].mean is None]
        gain = upper_of_all(each.benefit[way] for each in known if each.benefit[way].mean is not None) or 0.0
        cost = self.asking_seconds[way]
        if asked_anyway or gain > cost or self._probes.due(way, cost):
            return known
        token_seconds = self._costs.token_seconds
        if way == "ahead" and cost > DEAR * self._costs.step_seconds:
            # It can't be tried every few tokens, so the texts themselves say where.
            unknown += [each for each in known if each.benefit[way].mean is not None and each.promises]
        hope = gain + len(unknown) * HOPED_TOKENS * token_seconds
        return unknown if hope > cost or not token_seconds else []

    def _choose(self, drafting: list[Speculating], plan: Plan) -> dict[int, Draft]:
        """The part of each prepared draft that the step verifies."""
        drafts: dict[int, Draft] = {}
        fixed: list[tuple[Speculating, Prepared]] = []
        weighed: list[tuple[Speculating, Acceptance]] = []
        candidates: list[Candidate] = []
        for each in drafting:
            if (prepared := each.prepared) is None:
                continue
            if each.acceptance is None:
                fixed.append((each, prepared))
            else:
                weighed.append((each, each.acceptance))
                candidates.append(candidate_of(prepared, each.acceptance, each.sequence.longest_draft))
        for (each, prepared), longest in zip(fixed, self._fixed_lengths(fixed, plan.draft_rows), strict=True):
            drafts[each.sequence.sequence_id] = self._use(prepared, _first(prepared, longest))
        if any(each.acceptance is not None for each in self._known.values()):
            wanted = sum(min(len(each.prepared.tokens) - each.prepared.at, each.longest) for each in candidates)
            fixed_rows = sum(len(draft.tokens) for draft in drafts.values())
            with_head = sum(each.head_draft for each in drafting)
            beside = self.head.costs.draft(with_head) if with_head else 0.0
            self._costs = costs_of(plan, wanted, fixed_rows, self.cost_model, beside)
        places = choose(candidates, sum(item.verify for item in plan.items), self._costs)
        total = sum(map(len, places))
        seconds = self._costs.seconds
        a_row = (seconds[total] - seconds[0]) / total if seconds and total else 0.0
        if total:
            self._row_seconds = a_row
        for (each, acceptance), candidate, chosen in zip(weighed, candidates, places, strict=True):
            prepared = candidate.prepared
            draft = prepared.branched(chosen) if prepared.parents else prepared.chain(len(chosen))
            prepared.cost = a_row * prepared.of_text(chosen)
            prepared.excused |= candidate.longest <= 0 or self._costs.unknown
            drafts[each.sequence.sequence_id] = self._use(prepared, draft)
            if chosen:
                acceptance.drafted(len(chosen))
                self._chosen.append((draft.source, candidate, chosen))
        self.counts.ways["none"] += len(drafting) - len(drafts)
        return drafts

    def _fixed_lengths(self, fixed: list[tuple[Speculating, Prepared]], rows: int) -> list[int]:
        return modest([min(prepared.left, each.sequence.longest_draft) for each, prepared in fixed], rows)

    def _use(self, prepared: Prepared, draft: Draft) -> Draft:
        if not draft.tokens:
            self.counts.ways["none"] += 1
            return draft
        self.counts.ways["kept" if prepared.used else prepared.way] += 1
        prepared.used = True
        return draft

    # While a step runs ----------------------------------------------------------------------------------

    def ask_ahead(self, work: Work) -> None:
        """Ask for what follows if all of the step's drafts are accepted; for a tree, its first path."""
        self._rest.launched()
        for each in self._chosen:
            self.counts.expected(*each)
        self._chosen.clear()
        self._rests = self._rest.rests
        if not self._rests and self._loses():
            return
        if self._rest.rests or not self._known or not self.client.listens():
            self._rest.begin(len(work.items), bool(self._known), self._step_seconds)
            return
        began = self._now()
        asks: list[Ask] = []
        weighed: list[tuple[Speculating, Ask]] = []
        for item in work.items:
            known = self._known.get(item.sequence_id)
            if known is None or not item.verify or not known.asks:
                continue
            sequence, prepared = known.sequence, known.prepared
            ahead = tree.first_path(item.draft.tokens, item.draft.parents)
            # After this draft and the token behind it; the last token of a text is always the target model's own.
            room = sequence.limit - len(sequence.token_ids) - len(ahead) - 2
            left = 0 if prepared is None else prepared.left - len(ahead) - 1
            if room <= 0:
                continue
            if known.acceptance is None:
                # The answer is of use only if this draft is accepted: assume so if the last one was.
                wanted = min(sequence.draft_length, room)
                if ahead and known.all_accepted and left < wanted:
                    asks.append(Ask(sequence, wanted + 1, ahead))
            elif left < max(FEW_LEFT, len(ahead)):
                weighed.append((known, Ask(sequence, min(MAX_DRAFT_TOKENS, room + 1), ahead)))
        worth = self._worth_asking("ahead", [known for known, _ in weighed], bool(asks))
        if len(worth) == len(weighed):
            asks += [ask for _, ask in weighed]
        elif worth:
            chosen = set(map(id, worth))
            asks += [ask for known, ask in weighed if id(known) in chosen]
        if asks:
            self._making = self._now() - began
            self.client.ask_ahead(asks)
        else:
            self._rest.begin(len(work.items), True, self._step_seconds)

    def _loses(self) -> bool:
        """Whether to rest, though there may be drafts. Those of a fixed length were asked for, whether they pay or
        not."""
        steps = 0 if self._comparison is None else self._comparison.rest()
        if not steps or any(each.acceptance is None for each in self._known.values()):
            return False
        self._rest.force(steps)
        self._left_behind = True
        return True

    # Answers --------------------------------------------------------------------------------------------

    def _take_all(self, answers: list[Answer]) -> None:
        for answer in answers:
            self._take(answer)

    def _take(self, answer: Answer) -> None:
        began = self._now()
        way: Way = "ahead" if answer.ahead else "waited"
        empty = dict(answer.asked)
        tokens = {each: 0 for each in answer.asked if each in self._known}
        for sequence_id, length, draft in answer.drafts:
            known = self._known.get(sequence_id)
            if known is None or sequence_id not in answer.asked:
                continue
            tokens[sequence_id] = len(draft.tokens)
            if not is_valid(draft, self._limits.vocab_size):
                self.counts.refused += 1
                continue
            _, ahead = answer.asked[sequence_id]
            prepared = prepare(known.readable(draft), length - len(ahead), ahead, known.sequence.token_ids, way)
            if prepared is None:
                self.counts.late += 1
            elif self._prepare(known, prepared):
                empty.pop(sequence_id, None)
        for sequence_id in empty:
            if (known := self._known.get(sequence_id)) is not None:
                known.learn_benefit(way, 0.0)
        self._answered(answer, tokens)
        seconds = self._making + answer.seconds + self._now() - began
        self.asking_seconds[way] += (seconds - self.asking_seconds[way]) / COST_WINDOW
        self.counts.asking_seconds[way] += seconds

    def _prepare(self, known: Speculating, prepared: Prepared) -> bool:
        """Whether this draft is used: instead of the one that the sequence has, or merged with it."""
        if known.acceptance is not None:
            beside = tree.besides(prepared.parents) if prepared.parents else ()
            prepared.buckets = buckets_of(prepared.confidence, beside)
        old = known.prepared
        if known.merges(prepared):
            self._merge(known, prepared)
        elif old is None or known.better(prepared, old):
            self._drop(known)
            known.prepared = prepared
        else:
            return False
        return True

    def _merge(self, known: Speculating, prepared: Prepared) -> None:
        old, acceptance = known.prepared, known.acceptance
        assert old is not None and acceptance is not None
        known.text_value = known.expected(old if prepared.way == "head" else prepared)
        both = [(each, acceptance.chances(each)) for each in (old, prepared)]
        if prepared.way == "head":
            known.prepared = merge(*both[0], *both[1])
        else:
            # Of a merged one the older text draft ends here.
            self._drop(known)
            known.prepared = merge(*both[1], *both[0])

    # After a step ---------------------------------------------------------------------------------------

    def commit(self, work: Work, result: Result) -> None:
        """The texts contain the step's tokens already."""
        if self._rest.rests:
            return
        find = self._known.get
        for item, verdict in zip(work.items, result.verdicts, strict=True):
            known = find(item.sequence_id)
            if known is not None and verdict is not None and verdict.tokens:
                self._follow(known, item.draft, verdict)

    def learn(self, work: Work, result: Result, size: Size) -> None:
        """What the step cost, and what came of its drafts. Called behind `commit`, perhaps while the next step runs."""
        for acceptance, prepared, compared in self._compared:
            acceptance.learn(prepared, *compared)
        self._compared.clear()
        # With one row each there are no drafts.
        drafted = size.rows > len(work.items)
        for item, verdict in zip(work.items, result.verdicts, strict=True) if drafted else ():
            if item.draft.tokens and verdict is not None and verdict.tokens:
                self.counts.verified(item.draft, verdict.accepted)
        if result.seconds > 0:
            # Rows of a prompt that is scored cost more than others.
            if not result.prompt_logprobs:
                self.cost_model.learn(*size, result.seconds)
            self._probes.passed(result.seconds)
            self._step_seconds = result.seconds
            self._compare(work, result, size)
            if drafted:
                self.counts.took(work.items, result, self.cost_model)

    def _compare(self, work: Work, result: Result, size: Size) -> None:
        count = len(work.items)
        if self._comparison is None or not count or result.seconds > SHORT_STEP:
            return
        drafted = accepted = 0
        for item, verdict in zip(work.items, result.verdicts, strict=True) if size.rows > count else ():
            drafted += len(item.draft.tokens)
            accepted += 0 if verdict is None else verdict.accepted
        self._comparison.passed(
            self._now(), count, count + accepted, rested=self._rests, prompts=size.rows > count + drafted
        )

    def ask_beside(self, work: Work) -> None:
        """The worker's head is about to draft: ask for text drafts of the same sequences now, and not when the
        next step has to wait for them."""
        known = [self._known.get(item.sequence_id) for item in work.items if item.next_budget]
        self._take_all(self.client.look())
        weighed = [each for each in known if each is not None and each.acceptance is not None]
        self._asked_beside = self._ask_now(weighed)

    def take_head(self, work: Work, drafted: Drafted) -> None:
        """The drafts of the worker's head."""
        for known, draft in self.head.drafted(work, drafted, self._known):
            if not draft.tokens:
                continue
            if not is_valid(draft, self._limits.vocab_size):
                self.counts.refused += 1
                continue
            text = known.sequence.token_ids
            prepared = prepare(known.readable(draft), len(text), [], text, "head")
            if prepared is not None:
                self._prepare(known, prepared)
        self.counts.asking_seconds["head"] += drafted.seconds

    def lose_head(self, sequence_ids: list[int]) -> None:
        """The worker's head drafts for these no more."""
        for each in sequence_ids:
            if (known := self._known.get(each)) is not None:
                known.head_lost = True

    def _follow(self, known: Speculating, drafted: Draft, verdict: Verdict) -> None:
        tokens, accepted, prepared = verdict.tokens, verdict.accepted, known.prepared
        # What a grammar forces is known without a drafter: who drafted it, too, earns nothing by it.
        forced = drafted.source == GRAMMAR
        if known.weighed is not None:
            known.learn_worth(forced=forced)
        if drafted.tokens:
            first = tree.first_places(drafted.parents) if drafted.parents else drafted.tokens
            known.all_accepted = accepted >= len(first)
        if prepared is None:
            return
        path = prepared.path(tokens)
        compared = prepared.compared(tokens, path)
        if known.acceptance is not None and not forced:
            if drafted.tokens:
                prepared.brought += prepared.of_text(path[:accepted]) * self._costs.token_seconds - prepared.cost
            if prepared.parents:
                known.acceptance.learn(prepared, *compared)
            else:
                self._compared.append((known.acceptance, prepared, compared))
        if not prepared.follow(tokens, path):
            self.counts.dropped += bool(compared[1])
            self._drop(known)

    def _drop(self, known: Speculating) -> None:
        """Forget the prepared draft, and learn what it brought."""
        prepared, known.prepared = known.prepared, None
        if prepared is not None and (prepared.used or not prepared.excused):
            known.learn_benefit(prepared.way, prepared.brought)


def _first(prepared: Prepared, longest: int) -> Draft:
    """A draft of fixed length; for a tree, its most probable tokens."""
    if longest <= 0:
        return NO_DRAFT
    if not prepared.parents:
        return prepared.chain(longest)
    return prepared.branched(prepared.best(prepared.cumulated(prepared.confidence), longest, longest))
