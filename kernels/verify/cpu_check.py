"""What a compiled loop would follow out of its arrays, looked for before it runs."""

from __future__ import annotations

import numpy as np

from kernels import cpu_vectors as v
from kernels.cpu_program import compiled
from kernels.verify.cpu_words import (
    BEGINS,
    BIAS_BEGINS,
    BIAS_IDS,
    FORBIDDEN_BEGINS,
    FORBIDDEN_IDS,
    SEEN_BEGINS,
    SEEN_IDS,
    SEQUENCES,
    VOCABULARY,
    inner,
)


@compiled
def first_wrong(call):
    """Of a call with edits: -1, or the place of an id to edit that is none."""
    sequences = v.word(call, SEQUENCES)
    rows = np.int64(v.load_i32(v.word(call, BEGINS), sequences))
    found = _first_outside(call, SEEN_BEGINS, SEEN_IDS, sequences)
    if found < 0:
        found = _first_outside(call, BIAS_BEGINS, BIAS_IDS, sequences)
    return found if found >= 0 else _first_outside(call, FORBIDDEN_BEGINS, FORBIDDEN_IDS, rows)


@inner
def _first_outside(call, begins, ids, lists):
    vocabulary = v.word(call, VOCABULARY)
    first = np.int64(v.load_i32(v.word(call, begins), 0))
    for i in range(first, np.int64(v.load_i32(v.word(call, begins), lists))):
        token = np.int64(v.load_i32(v.word(call, ids), i))
        if token < 0 or token >= vocabulary:
            return i
    return -1
