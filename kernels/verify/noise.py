"""Noise as a pure function of integers: the randomness of sampling and of verification.

There is no generator and no state, so a token doesn't depend on its batch, on what was drafted, or on how
often a step was repeated. README.md beside this file is the specification.
"""

from __future__ import annotations

import torch

from kernels.cpu_program import shared
from kernels.verify.numbers import ln

MASK_32 = 0xFFFFFFFF
WEYL = 0x9E3779B9
MIX_1 = 0x21F0AAAD
MIX_2 = 0xD35A2D97


@shared
def philox(counter, key):
    """Philox4x32-10: four random 32-bit words for a counter of four under a key of two."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        # Compiled, a product of two words may be negative: its two words are the same.
        a, b = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = b >> 32 & MASK_32 ^ c1 ^ k0, b & MASK_32, a >> 32 & MASK_32 ^ c3 ^ k1, a & MASK_32
        k0, k1 = (k0 + WEYL) & MASK_32, (k1 + 0xBB67AE85) & MASK_32
    return c0, c1, c2, c3


@shared
def row_key(seed, position):
    """The three words that make the hash of a row its own. Seeds count modulo 2**64."""
    k0, k1, k2, _ = _words(seed, position, 0)
    return k0, k1, k2


@shared
def uniform(seed, position, index):
    """In (0, 1): verifies draft token `index` (from 1, of its sequence) in the step whose root is at this position."""
    return (_words(seed, position, index)[0] + 0.5) * 2.0**-32


@shared
def _words(seed, position, stream):
    counter = (position & MASK_32, position >> 32 & MASK_32, stream, 0)
    return philox(counter, (seed & MASK_32, seed >> 32 & MASK_32))


def gumbel(seed: int, position: int, token_ids: torch.Tensor) -> torch.Tensor:
    """Noise (float32) of one row for these token ids (int64, any subset of the vocabulary, any order)."""
    k0, k1, k2 = row_key(seed, position)
    x = _mix(token_ids * WEYL & MASK_32)
    x = _mix(_times(x ^ k0, k1 | 1)) ^ k2
    # -ln(-ln(1 - w)), w the upper 31 bits on (0, 1): fine steps where the noise is large.
    w = (((x >> 1).to(torch.float32) + 0.5) * 2.0**-31).clamp(max=1.0 - 2.0**-24)
    # 1 - w is rounded; what the rounding lost comes back as the second term.
    rest = 1.0 - w
    lost = (w - (1.0 - rest)) / rest
    return -ln(lost - ln(rest))


def _mix(x: torch.Tensor) -> torch.Tensor:
    x = _times(x ^ x >> 16, MIX_1)
    x = _times(x ^ x >> 15, MIX_2)
    return x ^ x >> 15


def _times(x: torch.Tensor, factor: int) -> torch.Tensor:
    """Unsigned 32-bit words, kept in int64: a product wraps there, which doesn't touch its lower half."""
    return x * factor & MASK_32
