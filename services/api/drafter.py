"""The one seam behind which every drafter is built, in the proposer process and inside the worker alike, and the one
type that a draft has from there to its verification.

    text ──▶ Drafter.draft ──▶ Draft ──▶ verification ──▶ Drafter.commit

A drafter sees committed text (and, where it asks for them, what the target model computed for it) and guesses what
follows. It knows no sockets, no scheduler and no other drafter. A draft is advice: whatever a drafter does costs speed,
never a request and never a token of its text. How drafts travel: services/api/drafts.py.
"""

from __future__ import annotations

import enum
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import msgspec

# No draft is longer, whatever was asked for.
MAX_DRAFT_TOKENS = 64


class Draft(msgspec.Struct, frozen=True, gc=False):
    """A guess for the tokens that follow a text.

    `parents` is empty for a chain; for a tree parents[i] is the index of the token before tokens[i], -1 at the root.
    confidence[i] is how probable the drafter finds it that tokens[i] is accepted when all before it are; empty: it
    doesn't say. `probs` are the distributions the tokens were drawn from, float32 [len(tokens), vocabulary], a numpy
    array from another process and a tensor from a drafter on the device; None: the drafter could have said nothing else
    (one-hot). `source` names who guessed, `match_length` is on how many tokens of context.
    """

    tokens: list[int] = []
    source: str = ""
    match_length: int = 0
    parents: list[int] = []
    confidence: list[float] = []
    probs: Any = None


NO_DRAFT = Draft()


class Needs(enum.Enum):
    """What a drafter reads. Those that read features run in the worker, beside the model."""

    TOKENS = "tokens"
    FEATURES = "features"


@dataclass(slots=True)
class Text:
    """One sequence as a drafter may see it. `tokens` only ever grows at its end and isn't the drafter's to change;
    `sequence_id` is never used again for another text."""

    sequence_id: int
    tokens: array[int]
    prompt_tokens: int = 0
    # What the caller expects the answer to be like.
    prediction: array[int] = field(default_factory=lambda: array("i"))
    # Whose texts it may be guessed from, and who may learn from its output; "": nobody.
    namespace: str = ""
    corpora: list[str] | None = None
    learn: bool = True


class DraftRequest(msgspec.Struct, frozen=True, gc=False):
    """A draft of at most `budget` tokens is wanted behind the text and `ahead`, which is assumed to follow it. Where
    `tree` says so it may be a tree, and then have more tokens than that, but no more of them one behind the other.
    `temperature` and `seed` are for drafters that draw; 0: the likeliest token."""

    text: Text
    budget: int
    ahead: Sequence[int] = ()
    tree: bool = False
    temperature: float = 0.0
    seed: int = 0


class Committed(msgspec.Struct, frozen=True, gc=False):
    """What a step made part of a text: the target model computed `tokens`, which stand at positions start.. of it.
    `following` is the token behind them, known but not computed yet; -1: the text's next chunk follows. Of the last
    draft `accepted` tokens are among them. `features` are what the model computed for `tokens`, [len(tokens), width],
    for drafters that need them."""

    sequence_id: int
    start: int
    tokens: list[int]
    following: int = -1
    accepted: int = 0
    features: Any = None


class Drafter(Protocol):
    # As requests and drafts name it.
    name: ClassVar[str]
    needs: ClassVar[Needs]
    # Whether drafts carry the distributions they were drawn from.
    gives_probs: ClassVar[bool]

    def draft(self, requests: Sequence[DraftRequest]) -> Sequence[Draft]:
        """One draft for each, of at most its budget; NO_DRAFT where there is nothing to say. Called with a whole batch,
        and must not wait for anything. A text that wasn't seen before starts a sequence."""
        ...

    def commit(self, results: Sequence[Committed]) -> None:
        """What became part of the texts. Drafters that read tokens only see it in the text of the next request, and
        need not be told."""
        ...

    def forget(self, sequence_ids: Sequence[int]) -> None:
        """These sequences have ended: free what is held for them. Unknown ids are fine."""
        ...
