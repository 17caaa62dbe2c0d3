"""Log-probabilities of a few rows: the model's own, of the logits as they came."""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.dependent import wait_for_kernel_before
from kernels.verify.fused_rows import place_of

BEFORE_ALL = tl.constexpr(-(2**62))


@triton.jit(do_not_specialize=["count"])
def logprobs_kernel(
    logits, rows, tokens, own, top_ids, top_values, count,
    V: tl.constexpr, STRIDE: tl.constexpr, BLOCK: tl.constexpr, COLUMN: tl.constexpr,
):  # fmt: skip
    """Program i: of tokens[i] in rows[i], and of the `count` likeliest there.

    Every lane keeps the best of the ids it has seen (one in BLOCK of all, a column). The best of all lanes is the
    likeliest id; its lane then looks through its column for what comes next, and so on.
    """
    wait_for_kernel_before()
    i = tl.program_id(0).to(tl.int64)
    logits += tl.load(rows + i).to(tl.int64) * STRIDE
    lanes = tl.arange(0, BLOCK)
    best = tl.zeros([BLOCK], tl.int64) + BEFORE_ALL
    highest = tl.full([BLOCK], float("-inf"), tl.float32)
    for at in range(0, V, BLOCK):
        ids = at + lanes
        x = tl.load(logits + ids, mask=ids < V, other=float("-inf")).to(tl.float32)
        best = tl.maximum(best, tl.where(ids < V, place_of(x, ids), BEFORE_ALL))
        highest = tl.maximum(highest, x)
    top = tl.max(highest, axis=0)
    sums = tl.zeros([BLOCK], tl.float32)
    for at in range(0, V, BLOCK):
        ids = at + lanes
        x = tl.load(logits + ids, mask=ids < V, other=float("-inf")).to(tl.float32)
        sums += tl.exp(x - top)
    whole = top + tl.log(tl.sum(sums, axis=0))
    tl.store(own + i, tl.load(logits + tl.load(tokens + i)).to(tl.float32) - whole)
    for nth in range(0, count):
        place = tl.max(best, axis=0)
        token = ((place & 0xFFFFF) ^ 0xFFFFF).to(tl.int32)
        tl.store(top_ids + i * count + nth, token)
        tl.store(top_values + i * count + nth, tl.load(logits + token).to(tl.float32) - whole)
        column = token % BLOCK + tl.arange(0, COLUMN) * BLOCK
        x = tl.load(logits + column, mask=column < V, other=float("-inf")).to(tl.float32)
        places = place_of(x, column)
        following = tl.max(tl.where((column < V) & (places < place), places, BEFORE_ALL), axis=0)
        best = tl.where(lanes == token % BLOCK, following, best)
