"""Whether a draft can be verified at all: what else is wrong with it costs speed and no more. Its drafter may be in
another process, or in this worker. Knows no sequence.

What can't be seen here is a draft whose probabilities are a distribution, but not the one that its tokens were drawn
from: rejection sampling then keeps no distribution (docs/internals/verify.md).
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import Any

import numpy as np

from services.api import draft_tree as tree
from services.api.drafter import Draft

# How far from 1 the sum of a float32 distribution may be.
SUM_ERROR = 1e-4


def is_valid(draft: Draft, vocab_size: int) -> bool:
    tokens = draft.tokens
    if not tokens or min(tokens) < 0 or max(tokens) >= vocab_size:
        return False
    if draft.parents:
        # Nobody reads probabilities of a tree (prepared.py).
        return tree.possible(tokens, draft.parents)
    return draft.probs is None or are_distributions(draft.probs, tokens, vocab_size)


def are_distributions(probs: Any, tokens: Items[int], vocab_size: int) -> bool:
    """Whether each row is a distribution over the vocabulary from which its token can have been drawn. `probs` is an
    array, or a tensor on any device."""
    if tuple(probs.shape) != (len(tokens), vocab_size):
        return False
    # Comparisons with NaN are false.
    with np.errstate(invalid="ignore", over="ignore"):
        sums: list[float] = probs.sum(-1).tolist()
        drawn: list[float] = probs[list(range(len(tokens))), list(tokens)].tolist()
        return all(abs(each - 1.0) <= SUM_ERROR for each in sums) and min(drawn) > 0.0 and float(probs.min()) >= 0.0
