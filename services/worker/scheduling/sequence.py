"""One request at work in a target: its text, how much of it is computed, its pages, and how it ends.

Its life, each step of which is a method named for both ends:

    waiting ──▶ running ──▶ (ended)
       ▲           │
       └───────────┘  preempted: the text stays, the pages go

Knows no other sequence and no batch.
"""

from __future__ import annotations

import enum

from services.api.messages import FinishReason, Generate, Run, SpeculationStats, Tokens
from services.worker.running.positions import Positions
from services.worker.running.runner import Verdict
from services.worker.speculation import tree
from services.worker.speculation.lease import Lease
from services.worker.speculation.tree import CHAIN
from services.worker.speculation.trust import Record, Worth
from services.worker.verify.policy import Verification

NO_DRAFT: list[int] = []


class State(enum.Enum):
    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


class Tally:
    """Counts of verify steps, shared by all sequences of one proposer and strategy, since the start."""

    __slots__ = ("accepted", "accepted_at", "drafted", "drafts", "empty", "steps")

    def __init__(self) -> None:
        self.steps = 0
        self.empty = 0
        self.drafts = 0
        self.drafted = 0
        self.accepted = 0
        self.accepted_at = Positions()


class Sequence:
    __slots__ = (
        "accepted",
        "accepted_at",
        "arrival_length",
        "attempt",
        "cached_tokens",
        "computed",
        "deadline",
        "draft",
        "draft_length",
        "draft_parents",
        "drafted",
        "drafted_at",
        "empty_steps",
        "end_reason",
        "entered",
        "generate",
        "id",
        "keys",
        "lease",
        "limit",
        "match_length",
        "method",
        "min_length",
        "order",
        "pages",
        "prompt_key",
        "prompt_offered",
        "prompt_tokens",
        "record",
        "request_id",
        "room",
        "sampler",
        "sampling",
        "shows_rejected",
        "source",
        "state",
        "steps",
        "stood_whole",
        "stop_ids",
        "stop_token",
        "stream",
        "tally",
        "token_ids",
        "trees",
        "uncounted",
        "verification",
        "verifying",
        "worth",
    )

    def __init__(
        self,
        *,
        id: int,
        stream: int,
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
    ) -> None:
        self.id = id
        self.stream = stream
        self.generate = generate
        self.request_id = generate.request_id
        self.attempt = generate.attempt
        self.sampling = generate.sampling
        self.prompt_tokens = generate.prompt_tokens
        self.deadline = deadline
        # Ahead of others that are due later; of those due at one time, ahead of those that arrived later.
        self.order = (due, id)
        self.state = State.WAITING
        self.token_ids: list[int] = list(generate.token_ids)
        # Tokens whose keys and values lie in `pages`: at least one less than the text when running.
        self.computed = 0
        self.pages: list[int] = []
        self.room = 0  # tokens that fit into `pages`
        # For prefix.py: names of the text's beginnings (the root, then one a full page), how many
        # pages others can find, the name of all that arrived but its last token, and whether that can be copied.
        self.arrival_length = len(self.token_ids)
        self.keys: list[bytes] = []
        self.entered = 0
        self.prompt_key = b""
        self.prompt_offered = False
        # Prompt tokens that weren't computed for this attempt; None until it runs.
        self.cached_tokens: int | None = None
        # The text never grows beyond `limit`, and no stop id counts before `min_length`.
        self.limit = min(self.prompt_tokens + self.sampling.max_tokens, max_length)
        self.min_length = self.prompt_tokens + self.sampling.min_tokens
        self.stop_ids = stop_ids
        self.stop_token: int | None = None
        self.end_reason: FinishReason | None = None
        # Speculation.
        self.shows_rejected = generate.speculation.return_drafts
        self.method = method
        self.verification = verification
        self.draft_length = draft_length
        self.trees = trees
        # What may be verified next comes from the lease; the draft is what will be.
        self.lease: Lease | None = None
        self.draft: list[int] = NO_DRAFT
        self.draft_parents: list[int] = CHAIN
        # Whether all of the last draft stood.
        self.stood_whole = True
        # For drafting.py: what its namespace knows of drafts, and what questions bring here. None
        # where drafts are of fixed length.
        self.record: Record | None = None
        self.worth: dict[str, Worth] = {}
        self.source = ""
        self.match_length = 0
        self.tally = tally
        self.steps = 0
        self.empty_steps = 0
        self.drafted = 0
        self.accepted = 0
        self.accepted_at = Positions()
        self.drafted_at = Positions()
        # What the last verify step brought, until `count` puts it to the rest: drafted, accepted, the draft's parents.
        self.uncounted: tuple[int, int, list[int]] | None = None
        # The first token of an attempt comes out of its prompt, not out of a verify step.
        self.verifying = False
        # A runner's own notes on how this sequence is sampled; None until it first looks.
        self.sampler: object = None

    @property
    def length(self) -> int:
        return len(self.token_ids)

    @property
    def generated(self) -> int:
        return len(self.token_ids) - self.prompt_tokens

    @property
    def wants_draft(self) -> bool:
        """Whether its next step verifies, with room for a draft and the token after it."""
        return self.draft_length > 0 and self.verifying and self.limit - len(self.token_ids) > 1

    @property
    def longest_draft(self) -> int:
        """The last token of a text is always the target's own."""
        return min(self.draft_length, self.limit - len(self.token_ids) - 1)

    # Transitions ----------------------------------------------------------------------------------------

    def waiting_to_running(self, pages: list[int], page_tokens: int, computed: int) -> None:
        assert self.state is State.WAITING and not self.pages and computed < len(self.token_ids)
        self.state = State.RUNNING
        self.computed = computed
        self.give_pages(pages, page_tokens)

    def give_pages(self, pages: list[int], page_tokens: int) -> None:
        self.pages += pages
        self.room += len(pages) * page_tokens

    def running_to_waiting(self) -> list[int]:
        """Preempted: the pages it held. Its text will be computed again."""
        assert self.state is State.RUNNING
        self.state = State.WAITING
        self.draft, self.draft_parents = NO_DRAFT, CHAIN
        self.computed = 0
        self.verifying = False
        return self._take_pages()

    def to_ended(self) -> list[int]:
        """The pages it held."""
        self.state = State.ENDED
        return self._take_pages()

    def _take_pages(self) -> list[int]:
        pages, self.pages, self.room = self.pages, [], 0
        return pages

    # A step's result -----------------------------------------------------------------------------------

    def computed_chunk(self, count: int) -> None:
        """A part of the text was computed and gave no token."""
        self.computed += count

    def commit(self, verdict: Verdict, draft: list[int] = NO_DRAFT, parents: list[int] = CHAIN) -> Tokens | None:
        """Take a verdict on a draft (with `parents` a tree): the tokens to send, or None when there are none to see.
        Sets `end_reason`.

        What stands is cut where naive decoding would have ended: at the limit, and at a stop id, which is
        not shown. Rejected drafts are rolled back here, and only here: `computed` is one less than the text.
        """
        drafted = len(draft)
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
        # Drafts behind the cut were never reached.
        accepted = min(verdict.accepted, seen)
        if self.verifying:
            self.count()
            self.uncounted = drafted, accepted, parents
        self.verifying = True
        text += tokens
        self.computed = len(text) - 1
        if not tokens:
            return None
        logprobs = verdict.logprobs
        accepted = min(accepted, len(tokens))
        return Tokens(
            request_id=self.request_id,
            attempt=self.attempt,
            seq=before - self.prompt_tokens,
            ids=tokens,
            runs=[
                Run(
                    length=len(tokens),
                    drafted=drafted,
                    accepted=accepted,
                    source=self.source if drafted else "",
                    match_length=self.match_length if drafted else 0,
                    rejected=self._rejected(draft, parents, tokens[:accepted]) if self.shows_rejected else NO_DRAFT,
                )
            ],
            logprobs=None if logprobs is None else logprobs[: len(tokens)],
        )

    def _rejected(self, draft: list[int], parents: list[int], accepted: list[int]) -> list[int]:
        if not parents:
            return draft[len(accepted) :]
        path = set(tree.walk(draft, parents, accepted))
        return [token for place, token in enumerate(draft) if place not in path]

    def _until_stop(self, tokens: list[int], before: int) -> list[int]:
        for index, token in enumerate(tokens):
            if token in self.stop_ids and before + index >= self.min_length:
                self.stop_token = token
                self.end_reason = "stop"
                return tokens[:index]
        return tokens

    def count(self) -> None:
        """What the last step brought is counted: when there is time, and before anyone is told."""
        if self.uncounted is None:
            return
        drafted, accepted, parents = self.uncounted
        self.uncounted = None
        tally = self.tally
        self.steps += 1
        tally.steps += 1
        if drafted == 0:
            self.empty_steps += 1
            tally.empty += 1
            return
        tally.drafts += 1
        tally.drafted += drafted
        tally.accepted += accepted
        self.drafted += drafted
        self.accepted += accepted
        self.accepted_at.reach(accepted)
        tally.accepted_at.reach(accepted)
        if not parents:
            self.drafted_at.reach(drafted)
            return
        # A position is how many drafted tokens stand up to there: of a tree it may have several.
        for depth in tree.depths(drafted, parents):
            self.drafted_at.add(depth)

    def stats(self) -> SpeculationStats:
        self.count()
        return SpeculationStats(
            method=self.method,
            verify_strategy=self.verification.strategy,
            steps=self.steps,
            empty=self.empty_steps,
            drafted=self.drafted,
            accepted=self.accepted,
            accepted_per_position=self.accepted_at.counts(),
            drafted_per_position=self.drafted_at.counts(),
            lossless=self.verification.lossless,
        )
