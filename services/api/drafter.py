"""The interface of every drafter, in the proposer process and in the worker, and the type of a draft from there to its
verification.

    text ──▶ Drafter.draft ──▶ Draft ──▶ verification ──▶ Drafter.commit

A drafter sees committed text (and, if it declares so, features that the target model computed for it) and guesses what
follows. It knows no sockets and no scheduler. A draft is advice: a drafter's mistake costs speed, never a request and
never a token of its text. services/api/drafts.py encodes drafts for the wire.
"""

from __future__ import annotations

import enum
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol

# The longest draft, whatever a request asks for.
MAX_DRAFT_TOKENS = 64


# Of all drafts without any: nobody changes it.
NOTHING: list[Any] = []


class Draft(NamedTuple):
    """A guess for the tokens that follow a text.

    `parents` is empty for a chain; for a tree parents[i] is the index of the token before tokens[i], -1 at the root.
    confidence[i] is the drafter's probability that tokens[i] is accepted if all before it are; empty: unknown. `probs`
    are the distributions the tokens were drawn from, float32 [len(tokens), vocabulary], a numpy array from another
    process and a tensor from a drafter on the device; None: each token was certain (one-hot). Only a chain has them. A
    row that is no distribution, or that gives its token no chance, is seen, and the draft refused. A distribution that
    the token wasn't drawn from can't be seen by anyone: with it `rejection` and `block` change the text's distribution.
    `source` names where the draft came from, `match_length` the tokens of context it matched.
    """

    tokens: list[int] = NOTHING
    source: str = ""
    match_length: int = 0
    parents: list[int] = NOTHING
    confidence: list[float] = NOTHING
    probs: Any = None


NO_DRAFT = Draft()


class Needs(enum.Enum):
    """What a drafter reads. Those that read features run in the worker, beside the model."""

    TOKENS = "tokens"
    FEATURES = "features"


@dataclass(slots=True)
class Text:
    """One sequence as a drafter sees it. `tokens` only grows at its end, and a drafter must not change it. `text_id` is
    never reused for another text: in a worker it is the sequence_id, and in a proposer a number of its own, because
    different workers have sequences of the same number."""

    text_id: int
    tokens: array[int]
    prompt_tokens: int = 0
    # The answer that the caller expects.
    prediction: array[int] = field(default_factory=lambda: array("i"))
    # Drafts come from texts of this namespace, and its output is learned there; "": neither.
    namespace: str = ""
    corpora: list[str] | None = None
    learn: bool = True


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """A request for a draft of at most `budget` tokens after the text and `ahead`, which is assumed to follow it. With
    `tree` it may be a tree, whose depth is at most `budget`. `temperature` and `seed` are for drafters that sample;
    temperature 0: the most probable token. A drafter that computes each token stops where the product of its
    confidences falls below `floor`."""

    text: Text
    budget: int
    ahead: Sequence[int] = ()
    tree: bool = False
    temperature: float = 0.0
    seed: int = 0
    floor: float = 0.0


class Features(NamedTuple):
    """The model's features of some rows. They stay valid, and are gathered only where they are read."""

    gather: Callable[[list[int] | slice], Any]
    rows: list[int] | slice

    def read(self) -> Any:
        return self.gather(self.rows)


@dataclass(frozen=True, slots=True)
class Committed:
    """What a step added to a text: the target model computed `tokens`, at positions start.. of it. `following` is the
    next token, known but not computed yet; `asked` says whether a draft behind it will be asked for. `accepted` of the
    tokens come from the last draft. `step` has the model's features of `tokens`, for drafters that need them. `pages`
    are those of the text, for drafters with layers of their own, with room for the draft if one will be asked for.
    `lent`: another worker gets these pages after the step, so they have to be complete."""

    text_id: int
    start: int
    tokens: list[int]
    following: int = -1
    accepted: int = 0
    asked: bool = False
    step: Features | None = None
    pages: Sequence[int] = ()
    lent: bool = False

    @property
    def features(self) -> Any:
        """[len(tokens), width]; None where no drafter reads any."""
        return None if self.step is None else self.step.read()


class Drafter(Protocol):
    @property
    def name(self) -> str:
        """In requests and drafts."""
        ...

    needs: ClassVar[Needs]
    # Whether drafts carry the distributions they were drawn from.
    gives_probs: ClassVar[bool]

    def draft(self, requests: Sequence[DraftRequest]) -> Sequence[Draft]:
        """One draft for each request, of at most its budget, or NO_DRAFT. Called with a whole batch; must not wait for
        anything. A text with a new id starts a sequence."""
        ...

    def commit(self, results: Sequence[Committed]) -> None:
        """What became part of the texts. Drafters that read only tokens see it in the text of the next request
        instead."""
        ...

    def forget(self, text_ids: Sequence[int]) -> None:
        """These texts have ended: free what is held for them. Unknown ids are fine."""
        ...
