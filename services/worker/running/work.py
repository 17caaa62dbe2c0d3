"""The input and output of a step as plain values, which can be sent to other ranks, or written to a file and run again
(running/replay.py). No live objects, no torch, and nothing that a machine with torch alone doesn't have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from models.branches import branches_of
from services.api.drafter import NO_DRAFT, Draft
from services.api.prompt_columns import PromptColumns
from services.api.sampling import Sampling
from services.api.strategies import Verification


@dataclass(slots=True)
class NewSequence:
    """A sequence that is new to the runner: how its tokens are chosen, and its text so far, of which the first
    `prompt_tokens` are the prompt. From here on the runner knows the text from its own verdicts. `drafter` names the
    drafter in the worker that drafts for it; "": none. `trees`: whether its drafts may be trees. `lent`: another worker
    gets its pages, with what the drafter keeps in them. `weighed`: how much of a draft is verified depends on its
    tokens (method auto), so they are verified as certain and not as sampled. `pooling`: how the hidden states of its
    prompt become an embedding; "": they don't."""

    sequence_id: int
    sampling: Sampling
    verification: Verification
    prompt_tokens: int
    text: list[int]
    drafter: str = ""
    trees: bool = False
    lent: bool = False
    weighed: bool = False
    pooling: str = ""


# Of all work without any: nobody changes it.
NO_TOKENS: list[int] = []
# In place of one that isn't known.
NO_TOKEN: list[int] = [0]


class SequenceWork(NamedTuple):
    """One sequence's rows of a step: `tokens` of the text, at positions start.., then its draft. Keys and values go to
    `pages`, which cover all positions up to the last one that can be accepted.

        text         . . . . . . . . .|
        tokens              [. . . . .]
                            start      [d d d]  draft: verified by the rows from the one before it

    `verify` is False for a chunk that ends before the text does: it gives no token. `next_budget` asks the worker's
    drafter for a draft of at most that many tokens after this step; it ends where the product of confidences falls
    below `next_floor`. `scored` are tokens of the prompt whose log-probabilities are wanted; each is given by the row
    before it, and these rows are the last ones before the row that verifies, if there is one. `pooled`: how many of
    the last tokens have hidden states that are pooled; such a sequence has no draft and no logits, and the step with
    the last of its prompt (`verify`) gives its embedding and no token. `state`: which of the states that a model may
    keep beside pages is its (Facts.states).
    """

    sequence_id: int
    tokens: list[int]
    start: int
    pages: Sequence[int]
    verify: bool
    draft: Draft = NO_DRAFT
    next_budget: int = 0
    next_floor: float = 0.0
    scored: list[int] = NO_TOKENS
    pooled: int = 0
    state: int = 0

    @property
    def rows(self) -> int:
        return len(self.tokens) + len(self.draft.tokens)

    @property
    def position(self) -> int:
        """Index in the text of the first token that the step gives."""
        return self.start + len(self.tokens)

    @property
    def chooses(self) -> bool:
        """Whether the step gives a token."""
        return self.verify and not self.pooled

    @property
    def logits_from(self) -> int:
        """The first of `tokens` whose row has logits, or is pooled; their number: only rows of the draft have some, or
        none."""
        return len(self.tokens) - (self.pooled or len(self.scored) + self.verify)


class DraftBudget(NamedTuple):
    """`next_budget` and `next_floor` of a sequence's work."""

    tokens: int
    floor: float = 0.0


@dataclass(slots=True)
class Work:
    """A step. The runner first adds the `new` sequences, forgets the `ended` ones, copies pages and `states` (source,
    target) one after the other, then computes and verifies the rows of `items`. `fed` is for a step that is
    launched before the last one is finished: the tokens of its first items aren't known then. For each of them it has
    the index of the last step's item that gives its token. The other items have their tokens. Else it is empty."""

    items: list[SequenceWork] = field(default_factory=list)
    new: list[NewSequence] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    states: list[tuple[int, int]] = field(default_factory=list)
    fed: list[int] = field(default_factory=list)

    def known(self, before: Result) -> Work:
        """A step that is fed, with its tokens. `before`: the result of the step before it."""
        given = (before.verdicts[place] for place in self.fed)
        tokens = [NO_TOKEN if verdict is None else verdict.tokens[:1] or NO_TOKEN for verdict in given]
        items = [item._replace(tokens=each) for item, each in zip(self.items, tokens, strict=False)]
        return replace(self, items=items + self.items[len(items) :], fed=[])


class TopId(NamedTuple):
    id: int
    logprob: float


class Logprob(NamedTuple):
    """Of a token, and the most probable ids at its place."""

    logprob: float
    top: list[TopId]


@dataclass(slots=True)
class Verdict:
    """The accepted part of a draft (for a tree, a path from the root), then one token of the target model's own.
    `failure`: the sequence has failed, and there are no tokens; `reason` as in Failed."""

    tokens: list[int]
    accepted: int
    logprobs: list[Logprob] | None = None
    failure: str = ""
    reason: str = "engine"


@dataclass(slots=True)
class Result:
    """For each item its verdict, None if nothing was verified; that of an embedding has no tokens. `seconds` is the
    time of the step; 0: unknown. `prompt_logprobs`: by sequence, those of the tokens to be scored. `embeddings`: by
    sequence, of those whose prompt is complete and that have `pooling`; float32."""

    verdicts: list[Verdict | None]
    seconds: float = 0.0
    prompt_logprobs: dict[int, PromptColumns] = field(default_factory=dict)
    embeddings: dict[int, bytes] = field(default_factory=dict)


@dataclass(slots=True)
class Drafted:
    """What the worker's head made behind a step: for each item its next draft (empty list: none asked for one).
    Of its `seconds` it spent `reading_seconds` on the step's tokens, and the rest on drafts. For sequences that are
    `lost` it drafts no more."""

    drafts: list[Draft] = field(default_factory=list)
    seconds: float = 0.0
    reading_seconds: float = 0.0
    lost: list[int] = field(default_factory=list)


class Size(NamedTuple):
    """Rows of a step, and its context: the tokens that its sequences attend to, once more for each branch of a tree."""

    rows: int
    context: int


def size_of(items: list[SequenceWork]) -> Size:
    rows = context = 0
    for item in items:
        draft = item.draft
        count = len(item.tokens) + len(draft.tokens)
        rows += count
        text = item.start + count
        context += text * len(branches_of(draft.parents)) if draft.parents else text
    return Size(rows, context)
