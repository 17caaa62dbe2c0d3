"""The words of a call, which every compiled loop is given the address of; what is known of the row at hand; and how
the functions are compiled that only other compiled ones call."""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

# What Python would call them through takes longer to compile than most of them.
inner = numba.njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
inlined = numba.njit(inline="always")

# Of numba's own type of integer: a function that is given a plain 0 or True is compiled once more for it.
NO, YES = np.int64(0), np.int64(1)

# Ids of a block: what is skipped or looked at together.
BLOCK = 64

# 0 is the address of what isn't there.
(
    LOGITS, STRIDE, BFLOAT16, VOCABULARY, BLOCKS,
    # Memory for one row: a copy of it, the highest of every block, fractions of the likeliest, what lies near an edge.
    COPY, MAXIMA, FRACTIONS, NEAR_IDS, NEAR_VALUES, NEAR_WEIGHTS,
    # Where the scores of the row at hand are: in the copy, or in the logits themselves.
    SCORES,
    SEQUENCES, RULES, BEGINS, DRAFTED, PARENTS,
    SEEN_BEGINS, SEEN_IDS, SEEN_COUNTS, BIAS_BEGINS, BIAS_IDS, BIAS_VALUES, FORBIDDEN_BEGINS, FORBIDDEN_IDS,
    MASK_BITS, MASK_STRIDE, MASK_OF_ROW, PROBS, PROBS_STRIDE, PROBS_OF_ROW,
    TOKENS, ROWS, ACCEPTED, FAILED,
    ASKED, ASKED_ROWS, ASKED_TOKENS, ASKED_COUNT, OWN_VALUES, BEST_IDS, BEST_VALUES,
    CALL_WORDS,
) = range(43)  # fmt: skip


class Row(NamedTuple):
    """What one row says. Its scores are where the call says, until the next row is taken.

    What top_k, top_p and min_p leave is always the beginning of the order "likeliest first, equal ones by id": up
    to and with `edge_id`, whose z is `edge`, and not further below the top than `floor`.
    """

    valid: int  # else nothing may be chosen from it
    inverse: np.float32  # z = score * inverse
    top: np.float32  # z of the likeliest
    first: int  # the likeliest id
    edge: np.float32
    edge_id: int
    floor: np.float32
    total: int  # of all masses; 0 where nobody asks
    k0: int  # key of the noise
    k1: int
    k2: int
