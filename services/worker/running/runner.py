"""The seam between the step loop and whatever computes tokens: a model, or the mock. Knows no torch."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Items
from typing import TYPE_CHECKING, Protocol

import msgspec

from kernels.waiting import Waiting
from models.branches import branches_of
from services.api.messages import TokenLogprob

if TYPE_CHECKING:
    from services.worker.scheduling.sequence import Sequence


class Facts(Protocol):
    """What a runner knows of its model once it is loaded (services/worker/running/torch_model.py: ModelFacts)."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def max_context(self) -> int: ...
    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...
    @property
    def page_tokens(self) -> int: ...
    @property
    def pages(self) -> int: ...
    @property
    def branch_pages(self) -> int:
        """For all branches of a step's drafts; 0: drafts are chains."""
        ...
    @property
    def path(self) -> str: ...
    @property
    def strict(self) -> bool: ...
    @property
    def vocabulary(self) -> str:
        """Names what token ids mean: models with the same one may learn from each other. "": nobody knows."""
        ...


class StepWork(msgspec.Struct, gc=False):
    """One sequence's part of a step: `tokens` stand at positions start..start + len - 1, the last
    len(draft) of them are the draft, and keys and values go to the sequence's pages.

        committed text . . . . . . . . .|
        tokens               [. . . . . . d d d]
                             start       └ draft: rows from the one before it are verified

    With `parents` the draft is a tree: parents[i] is the drafted token that draft[i] follows, -1 for the text; its
    rows need pages for as many tokens as can stand, and its branches some that the runner has of its own
    (models/branches.py), `Facts.branch_pages` in all.

    `verify` is False for a chunk of a prompt that ends before the text does: it gives no token.
    """

    sequence: Sequence  # read by runners, changed by the scheduler alone
    tokens: list[int]
    start: int
    draft: list[int]
    verify: bool
    parents: list[int] = []


def size_of(work: Items[StepWork]) -> tuple[int, int]:
    """Rows of a step, and the context that they look back on; each branch of a tree looks at the text anew."""
    rows = context = 0
    for item in work:
        count = len(item.tokens)
        rows += count
        text = item.start + count
        context += text * len(branches_of(item.parents)) if item.parents else text
    return rows, context


class Verdict(msgspec.Struct, gc=False):
    """The accepted part of the draft (of a tree, a path from the text on), then one token of the target's own.
    `failure`: this sequence can't go on, and there are no tokens."""

    tokens: list[int]
    accepted: int
    logprobs: list[TokenLogprob] | None = None
    failure: str = ""


# What can be done while a step runs. It is told whether that runs elsewhere meanwhile (on a GPU), so that the thread
# has nothing better to do than to wait a little; else it is called before anything is computed. What it gives back is
# for a runner that can say when all of the step is on its way.
Meanwhile = Callable[[bool], Waiting | None]


def nothing_meanwhile(elsewhere: bool) -> None:
    """For who has nothing to do."""


class Runner(Protocol):
    @property
    def facts(self) -> Facts: ...

    def step(self, work: Items[StepWork], meanwhile: Meanwhile = nothing_meanwhile) -> list[Verdict | None]:
        """Compute one step. A verdict for each work that has `verify`, in order, None for the others.

        Called from one thread. `meanwhile` is called once, as early as the step is on its way. What fails for one
        sequence alone is said in its verdict; an exception means that nothing of the step can be trusted. The same
        text gives the same token whatever else is in the step, whatever was drafted and however often it was computed.
        """
        ...

    def copy_page(self, source: int, target: int) -> None:
        """What page `source` holds, `target` holds afterwards, too. Called between steps, from their thread."""
        ...
