"""One request in a worker: its text, how much of it is computed, its pages, and its end.

States; each transition is a method named for both ends:

    waiting ──▶ running ──▶ (ended)
       ▲           │
       └───────────┘  preempted: the text stays, the pages go

Knows no other sequence and no batch.
"""

from __future__ import annotations

import enum
from array import array

from services.api import draft_tree as tree
from services.api.drafter import NO_DRAFT, Draft
from services.api.messages import FinishReason, Generate, Run, SpeculationStats, TokenLogprob, Tokens, TopToken
from services.api.pooling import LAST, MEAN
from services.api.prompt_columns import PromptColumns
from services.api.prompt_logprobs import parts, tokens_in
from services.api.strategies import Verification
from services.worker.running.positions import Positions
from services.worker.running.work import Logprob, Verdict

# Of a step without a draft.
OWN_TOKEN = Run(length=1, drafted=0, accepted=0)


def no_pages() -> array[int]:
    return array("i")


class SequenceState(enum.Enum):
    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


class Tally:
    """Counts of verify steps, shared by all sequences of one proposer and strategy, since the start."""

    __slots__ = ("accepted", "accepted_at", "drafted", "drafts", "empty")

    def __init__(self) -> None:
        # Steps without and with a draft.
        self.empty = 0
        self.drafts = 0
        self.drafted = 0
        self.accepted = 0
        self.accepted_at = Positions()

    @property
    def steps(self) -> int:
        return self.empty + self.drafts


class Sequence:
    # Python is slow with the attributes of an object that has more than thirty of them in a dictionary.
    __slots__ = (
        "accepted", "accepted_at", "arrival_length", "attempt", "cached_tokens", "charge_at", "charged",
        "computed", "deadline", "draft_length", "drafted", "drafted_at", "drafter", "drafts", "embedding",
        "empty_steps", "end_reason", "entered", "forces_text", "found_tokens", "generate", "introduced",
        "keep_at", "keys", "lent", "limit", "method", "milestone", "min_length", "order", "pages", "pool_from",
        "pooling", "prompt_key", "prompt_offered", "prompt_tokens", "request_id", "room", "sampling",
        "scored", "sequence_id", "shows_rejected", "state", "state_place", "stop_ids", "stop_token", "tally",
        "token_ids", "trees", "verification", "verifying",
    )  # fmt: skip

    def __init__(
        self,
        *,
        sequence_id: int,
        generate: Generate,
        deadline: float | None,
        due: float,
        max_length: int,
        stop_ids: frozenset[int],
        method: str,
        verification: Verification,
        draft_length: int,
        tally: Tally,
        trees: bool = False,
        drafter: str = "",
        cached: int | None = None,
        lent: bool = False,
    ) -> None:
        self.sequence_id = sequence_id
        self.generate = generate
        self.request_id = generate.request_id
        self.attempt = generate.attempt
        self.sampling = generate.sampling
        self.prompt_tokens = generate.prompt_tokens
        self.deadline = deadline
        # Sort key: by due time, then by arrival.
        self.order = (due, sequence_id)
        self.state = SequenceState.WAITING
        # Tokens that its API key was charged since it was first admitted, the part of its text that was found then, and
        # the length at which more are charged.
        self.charged: int | None = None
        self.found_tokens = 0
        self.charge_at = 0
        # Computed tokens at which its next page is full, or more are charged; 0 as long as its prompt is computed.
        self.milestone = 0
        self.token_ids: list[int] = list(generate.token_ids)
        # Tokens whose keys and values are in `pages`; always fewer than the text has.
        self.computed = 0
        # Never changed, but replaced: each step's work has it. An array, because a step needs a flat table of all.
        self.pages = no_pages()
        self.room = 0  # tokens that fit into `pages`
        # While it runs: a number that no other running sequence has, for a model that keeps states beside pages.
        self.state_place = -1
        # For prefix.py: keys of the text's prefixes (the root, then one for each full page), the number of pages that
        # others can find, the key of the text on arrival without its last token, and whether that can be copied.
        self.arrival_length = len(self.token_ids)
        self.keys: list[bytes] = []
        self.entered = 0
        self.prompt_key = b""
        # Of a model with states: computed tokens at which steps end, so that the state there can be kept.
        self.keep_at: list[int] = []
        self.prompt_offered = False
        # Prompt tokens found in the cache for this attempt, here or at the worker that handed over pages; None until it
        # runs.
        self.cached_tokens = cached
        # Whether another worker gets its pages, and goes on with its text.
        self.lent = lent
        # The text never grows beyond `limit`, and no stop id counts before `min_length`.
        self.limit = min(self.prompt_tokens + self.sampling.max_tokens, max_length)
        # With a grammar such an id comes only where nothing else may.
        self.min_length = self.prompt_tokens + (0 if self.sampling.grammar else self.sampling.min_tokens)
        # Whether the runner may know what follows its text.
        self.forces_text = bool(self.sampling.grammar) or self.sampling.reasoning is not None
        # The next prompt token whose log-probability is wanted (the first has none); prompt_tokens: none any more.
        self.scored = 1 if self.sampling.prompt_logprobs >= 0 else self.prompt_tokens
        # How its prompt becomes an embedding ("": it doesn't), the next token whose hidden state is pooled, and the
        # embedding.
        self.pooling = generate.pooling
        self.pool_from = {"": self.prompt_tokens, LAST: self.prompt_tokens - 1, MEAN: 0}[generate.pooling]
        self.embedding = b""
        self.stop_ids = stop_ids
        self.stop_token: int | None = None
        self.end_reason: FinishReason | None = None
        # Speculation.
        self.shows_rejected = generate.speculation.return_drafts
        self.method = method
        self.verification = verification
        self.draft_length = draft_length
        self.trees = trees
        # The drafter in the worker that drafts for it; "": the proposer.
        self.drafter = drafter
        self.tally = tally
        self.empty_steps = 0
        self.drafts = 0
        self.drafted = 0
        self.accepted = 0
        self.accepted_at = Positions()
        self.drafted_at = Positions()
        # False until the first token of an attempt, which comes from the prompt and not from a verify step.
        self.verifying = False
        # Whether the runner knows it.
        self.introduced = False

    @property
    def length(self) -> int:
        return len(self.token_ids)

    @property
    def generated(self) -> int:
        return len(self.token_ids) - self.prompt_tokens

    @property
    def missing(self) -> int:
        """Tokens of the text that aren't computed yet."""
        return len(self.token_ids) - self.computed

    @property
    def scores(self) -> bool:
        """Whether log-probabilities of its prompt have yet to be computed."""
        return self.scored < self.prompt_tokens

    @property
    def first_wanted(self) -> int:
        """The first token of the prompt whose row gives more than keys and values, the last one aside."""
        return min(self.scored - 1, self.pool_from)

    @property
    def wants_rows(self) -> bool:
        """Whether there is one."""
        return self.scores or self.pool_from < self.prompt_tokens - 1

    @property
    def longest_chunk(self) -> int:
        """Most tokens of its text that a step may compute. While its prompt is scored all rows of a chunk have logits,
        but for the last one if it verifies: what comes behind the prompt waits."""
        if not self.scores:
            return len(self.token_ids) - self.computed
        return self.prompt_tokens - (len(self.token_ids) > self.prompt_tokens) - self.computed

    def to_score(self, start: int, end: int) -> list[int]:
        """The prompt tokens to be scored by the rows of positions start..end-1: each gives the token behind it."""
        return self.token_ids[max(start + 1, self.scored) : min(end + 1, self.prompt_tokens)]

    def to_pool(self, start: int, end: int) -> int:
        """How many of the last rows of positions start..end-1 are pooled."""
        return max(0, end - max(start, self.pool_from)) if self.pooling else 0

    @property
    def wants_draft(self) -> bool:
        """Whether its next step verifies, with room for a draft and the token after it."""
        return self.draft_length > 0 and self.verifying and self.limit - len(self.token_ids) > 1

    @property
    def longest_draft(self) -> int:
        """One less than the tokens left: the last token of a text is always the target model's own."""
        return min(self.draft_length, self.limit - len(self.token_ids) - 1)

    # Transitions ----------------------------------------------------------------------------------------

    def waiting_to_running(self, pages: list[int], page_tokens: int, computed: int) -> None:
        assert self.state is SequenceState.WAITING and not self.pages and computed < len(self.token_ids)
        self.state = SequenceState.RUNNING
        self.computed, self.milestone = computed, 0
        self.give_pages(pages, page_tokens)

    def give_pages(self, pages: list[int], page_tokens: int) -> None:
        self.pages = self.pages + array("i", pages)
        self.room += len(pages) * page_tokens

    def running_to_waiting(self) -> array[int]:
        """Preempted. Returns its pages; its text will be computed again."""
        assert self.state is SequenceState.RUNNING
        self.state = SequenceState.WAITING
        self.computed = 0
        self.verifying = False
        return self._take_pages()

    def to_ended(self) -> array[int]:
        """Returns its pages."""
        self.state = SequenceState.ENDED
        return self._take_pages()

    def _take_pages(self) -> array[int]:
        pages, self.pages, self.room = self.pages, no_pages(), 0
        return pages

    # A step's result -----------------------------------------------------------------------------------

    def computed_chunk(self, count: int) -> None:
        """A chunk of the prompt was computed."""
        self.computed += count
        self.pool_from = max(self.pool_from, self.computed)

    def told_of_prompt(self, columns: PromptColumns) -> list[Tokens]:
        """Log-probabilities of the prompt were computed. Returns them as messages."""
        assert columns.begin == self.scored, "none is sent twice, also after a preemption"
        self.scored += tokens_in(columns)
        return [
            Tokens(
                request_id=self.request_id, attempt=self.attempt, seq=self.generated, ids=[], prompt_logprobs=part
            )
            for part in parts(columns)
        ]  # fmt: skip

    def commit(self, verdict: Verdict, draft: Draft = NO_DRAFT) -> Tokens | None:
        """Append a verdict's tokens. Returns the tokens to send, or None if there are none. Sets `end_reason`.

        The tokens are cut where decoding without drafts would have ended: at the limit, and at a stop id, which is not
        sent. Rejected drafts are rolled back here, and only here: `computed` becomes one less than the text.
        """
        tokens = verdict.tokens
        text = self.token_ids
        before = len(text)
        if len(tokens) >= self.limit - before:
            tokens = tokens[: self.limit - before]
            self.end_reason = "length"
        seen = len(tokens)
        if not self.stop_ids.isdisjoint(tokens):
            tokens = self._until_stop(tokens, before)
            seen = len(tokens) + (self.stop_token is not None)
        if draft.tokens:
            # Draft tokens after the cut don't count as accepted.
            self._count(draft, min(verdict.accepted, seen))
        elif self.verifying:
            self.empty_steps += 1
            self.tally.empty += 1
        self.verifying = True
        text += tokens
        self.computed = len(text) - 1
        if not tokens:
            return None
        logprobs = verdict.logprobs
        return Tokens(
            request_id=self.request_id,
            attempt=self.attempt,
            seq=before - self.prompt_tokens,
            ids=tokens,
            runs=[self._run(tokens, draft, verdict.accepted) if draft.tokens else OWN_TOKEN],
            logprobs=None if logprobs is None else [_sent(each) for each in logprobs[: len(tokens)]],
        )

    def _run(self, tokens: list[int], draft: Draft, accepted: int) -> Run:
        accepted = min(accepted, len(tokens))
        return Run(
            length=len(tokens),
            drafted=len(draft.tokens),
            accepted=accepted,
            source=draft.source,
            match_length=draft.match_length,
            rejected=_rejected(draft, tokens[:accepted]) if self.shows_rejected else [],
        )

    def _until_stop(self, tokens: list[int], before: int) -> list[int]:
        for index, token in enumerate(tokens):
            if token in self.stop_ids and before + index >= self.min_length:
                self.stop_token = token
                self.end_reason = "stop"
                return tokens[:index]
        return tokens

    def _count(self, draft: Draft, accepted: int) -> None:
        """One more verified draft."""
        tally, drafted = self.tally, len(draft.tokens)
        self.drafts += 1
        tally.drafts += 1
        tally.drafted += drafted
        tally.accepted += accepted
        self.drafted += drafted
        self.accepted += accepted
        self.accepted_at.reach(accepted)
        tally.accepted_at.reach(accepted)
        if not draft.parents:
            self.drafted_at.reach(drafted)
            return
        # The position of a tree's token is its depth, so several tokens may share one.
        for depth in tree.depths(drafted, draft.parents):
            self.drafted_at.add(depth)

    def stats(self) -> SpeculationStats:
        return SpeculationStats(
            method=self.method,
            verify_strategy=self.verification.strategy,
            steps=self.empty_steps + self.drafts,
            empty=self.empty_steps,
            drafted=self.drafted,
            accepted=self.accepted,
            accepted_per_position=self.accepted_at.counts(),
            drafted_per_position=self.drafted_at.counts(),
            lossless=self.verification.lossless,
        )


def _sent(each: Logprob) -> TokenLogprob:
    return TokenLogprob(logprob=each.logprob, top=[TopToken(id=id, logprob=value) for id, value in each.top])


def _rejected(draft: Draft, accepted: list[int]) -> list[int]:
    if not draft.parents:
        return draft.tokens[len(accepted) :]
    path = set(tree.walk(draft.tokens, draft.parents, accepted))
    return [token for place, token in enumerate(draft.tokens) if place not in path]
