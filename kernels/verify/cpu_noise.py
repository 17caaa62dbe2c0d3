"""The keys and uniform numbers of noise.py, for compiled CPU loops. Words of 32 bits in an int64 each."""

from __future__ import annotations

import numpy as np

from kernels.verify.cpu_words import inner
from kernels.verify.noise import MASK_32, WEYL


@inner
def row_key(seed, position):
    """The three words that make the hash of a row its own."""
    k0, k1, k2, _ = _philox(seed, position, 0)
    return k0, k1, k2


@inner
def uniform(seed, position, index):
    return (np.float64(_philox(seed, position, index)[0]) + 0.5) * 2.0**-32


@inner
def _philox(seed, position, stream):
    c0, c1, c2, c3 = position & MASK_32, (position >> 32) & MASK_32, stream & MASK_32, np.int64(0)
    k0, k1 = seed & MASK_32, (seed >> 32) & MASK_32
    for _ in range(10):
        # A product of two words fills all 64 bits: as a number it may be negative, its words are right.
        a, b = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = ((b >> 32) & MASK_32) ^ c1 ^ k0, b & MASK_32, ((a >> 32) & MASK_32) ^ c3 ^ k1, a & MASK_32
        k0, k1 = (k0 + WEYL) & MASK_32, (k1 + 0xBB67AE85) & MASK_32
    return c0, c1, c2, c3
