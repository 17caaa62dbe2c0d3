"""Noise as a pure function of integers: the randomness of sampling and of verification.

There is no generator and no state, so a token doesn't depend on its batch, on what was drafted, or on how
often a step was repeated. README.md beside this file is the specification.
"""

from __future__ import annotations

import torch

from kernels.verify.numbers import ln

MASK_32 = 0xFFFFFFFF
WEYL = 0x9E3779B9
MIX_1 = 0x21F0AAAD
MIX_2 = 0xD35A2D97


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Philox4x32-10: four random 32-bit words for a counter under a key."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        high_0, low_0 = divmod(0xD2511F53 * c0, 1 << 32)
        high_1, low_1 = divmod(0xCD9E8D57 * c2, 1 << 32)
        c0, c1, c2, c3 = high_1 ^ c1 ^ k0, low_1, high_0 ^ c3 ^ k1, low_0
        k0, k1 = (k0 + WEYL) & MASK_32, (k1 + 0xBB67AE85) & MASK_32
    return c0, c1, c2, c3


def row_key(seed: int, position: int) -> tuple[int, int, int]:
    """The three words that make the hash of a row its own. Seeds count modulo 2**64."""
    return _words(seed, position, 0)[:3]


def uniform(seed: int, position: int, index: int) -> float:
    """In (0, 1), for judging drafted token `index` (from 1, of its sequence's draft) in the step whose root is at
    this position."""
    return (_words(seed, position, index)[0] + 0.5) * 2.0**-32


def _words(seed: int, position: int, stream: int) -> tuple[int, int, int, int]:
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
