"""The seam every proposer is built behind, in the proposer process and inside the target alike.

A proposer sees committed text and guesses what follows. It knows no sockets, no scheduler and no other
proposer, and nothing it does can fail a request: a draft is advice.
"""

from __future__ import annotations

import enum
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import msgspec

from services.proposer.draft import Draft


class Needs(enum.Enum):
    """What a proposer must be given. Those that need more than tokens run inside the target."""

    TOKENS = "tokens"
    HIDDEN_STATES = "hidden_states"
    TARGET_LOGITS = "target_logits"


@dataclass(slots=True)
class View:
    """One sequence as a proposer may see it. `tokens` only ever grows at its end, and is not the proposer's
    to change; `sequence_id` is never used again for another text."""

    sequence_id: int
    tokens: array[int]
    prompt_tokens: int = 0
    # What the caller expects the answer to be like.
    prediction: array[int] = field(default_factory=lambda: array("i"))
    # Whose text it may be guessed from, and who may learn from its output; "": nobody.
    namespace: str = ""
    corpora: list[str] | None = None
    learn: bool = True


class Ask(msgspec.Struct, frozen=True, gc=False):
    """A draft of at most `budget` tokens is wanted behind the text and `ahead`, which is assumed to follow it. It may
    be a tree where `trees` says so, and then have more tokens than that, no more of them one behind the other. `soon`:
    somebody waits for it, and what is new of the text may be learned when he has it."""

    view: View
    budget: int
    ahead: Sequence[int] = ()
    trees: bool = False
    soon: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a draft: of `drafted` tokens the first `accepted` were kept."""

    sequence_id: int
    drafted: int
    accepted: int
    source: str = ""


class Proposer(Protocol):
    needs: ClassVar[Needs]
    # Whether drafts carry the probabilities they were drawn with.
    gives_probs: ClassVar[bool]

    def propose(self, asks: Sequence[Ask]) -> Sequence[Draft]:
        """One draft for each, of at most its budget of tokens; empty where there is nothing to say.
        Called with a whole batch, and must not wait for anything. A view that wasn't seen before starts a
        sequence; one seen before has grown, or not."""
        ...

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Verdicts on earlier drafts, for proposers that learn from them. May come late, or never."""
        ...

    def forget(self, sequence_id: int) -> None:
        """The sequence has ended: free what is held for it. Unknown ids are fine."""
        ...

    def held_bytes(self) -> int:
        """About how much memory is held, for the metrics."""
        ...
