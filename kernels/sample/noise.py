"""Gumbel noise as a pure function of (seed, position, token id): the randomness of every sampled token.

There is no generator and no state, so a token doesn't depend on its batch, on what was drafted, or on how
often a step was repeated. Every operation is a 32-bit integer one or a single IEEE float32 add, multiply or
divide, so any device can give the same bits; README.md beside this file is the specification.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch

MASK_32 = 0xFFFFFFFF
WEYL = 0x9E3779B9
MIX_1 = 0x21F0AAAD
MIX_2 = 0xD35A2D97
# Torch shares out larger tensors among its threads; waking them costs ten times what one operation here does.
ONE_THREAD = 24576


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
    words = philox(
        (position & MASK_32, position >> 32 & MASK_32, 0, 0),
        (seed & MASK_32, seed >> 32 & MASK_32),
    )
    return words[0], words[1], words[2]


def gumbel(seed: int, position: int, token_ids: torch.Tensor) -> torch.Tensor:
    """Noise of one row for these token ids (int64, any subset of the vocabulary, any order)."""
    key = row_key(seed, position)
    noise = torch.empty(token_ids.shape[0], dtype=torch.float32)
    block = block_size(token_ids.shape[0])
    for begin in range(0, token_ids.shape[0], block):
        ids = token_ids[begin : begin + block]
        noise[begin : begin + block] = _gumbel_of(_hash(_spread(ids), key))
    return noise


def nearly(seed: int, position: int, token_ids: list[int]) -> list[float]:
    """`gumbel` to within 1e-4, for a few ids: a hundred small tensor operations cost more than plain floats."""
    key = row_key(seed, position)
    noise = []
    for token in token_ids:
        word = _mix_word(token * WEYL & MASK_32)
        word = _mix_word((word ^ key[0]) * (key[1] | 1) & MASK_32) ^ key[2]
        w = min(((word >> 1) + 0.5) * 2.0**-31, 1.0 - 2.0**-24)
        noise.append(-math.log(-math.log1p(-w)))
    return noise


def _mix_word(x: int) -> int:
    x = (x ^ x >> 16) * MIX_1 & MASK_32
    x = (x ^ x >> 15) * MIX_2 & MASK_32
    return x ^ x >> 15


def contenders(scores: torch.Tensor, seed: int, position: int, least: float) -> torch.Tensor:
    """Ids (ascending) among which every one lies whose score + noise reaches `least`; few others are.

    Most of the noise of a row is never looked at: score + noise >= least needs w <= exp(score - least),
    which is tested on the hash alone. The margin is far wider than float32's rounding of scores near `least`.
    """
    key = row_key(seed, position)
    spread = _spread_all(scores.shape[0])
    found = []
    block = block_size(scores.shape[0])
    for begin in range(0, scores.shape[0], block):
        words = _hash(spread[begin : begin + block], key)
        w = words.bitwise_right_shift_(1).bitwise_and_(0x7FFFFFFF).to(torch.float32)
        # Clamped below the smallest w there is: the exponential of less is slow, and denormal.
        reach = (scores[begin : begin + block] - (least - 0.001)).clamp_(min=-23.0).exp_().mul_(2.0**31).add_(1.0)
        found.append(_not_negative(reach.sub_(w)).add_(begin))
    return torch.cat(found)


def block_size(size: int) -> int:
    """How many elements to treat at once, so that no thread is woken."""
    return size if torch.get_num_threads() == 1 else ONE_THREAD


def _not_negative(values: torch.Tensor) -> torch.Tensor:
    """Places of the few values >= 0. Looking at the maxima of lines first is half the work."""
    width = 256
    if values.shape[0] % width:
        return (values >= 0).nonzero().view(-1)
    lines = values.view(-1, width)
    rows = (lines.amax(-1) >= 0).nonzero().view(-1)
    inner = (lines[rows] >= 0).nonzero()
    return rows[inner[:, 0]] * width + inner[:, 1]


@lru_cache(maxsize=4)
def _spread_all(vocabulary: int) -> torch.Tensor:
    return _spread(torch.arange(vocabulary, dtype=torch.int64))


def _spread(token_ids: torch.Tensor) -> torch.Tensor:
    """Ids strewn over all 32 bits: the part of the hash that needs no key."""
    words = token_ids * WEYL & MASK_32
    # The int32 of the same bits.
    x = (words - (words >> 31 << 32)).to(torch.int32)
    _mix(x, torch.empty_like(x))
    return x


def _signed(word: int) -> int:
    return word - (word >> 31 << 32)


def _hash(spread: torch.Tensor, key: tuple[int, int, int]) -> torch.Tensor:
    """Int32 arithmetic wraps, which is what is wanted."""
    x = spread ^ _signed(key[0])
    x *= _signed(key[1] | 1)
    _mix(x, torch.empty_like(x))
    x ^= _signed(key[2])
    return x


def _mix(x: torch.Tensor, scratch: torch.Tensor) -> None:
    for shift, factor in ((16, MIX_1), (15, MIX_2), (15, 0)):
        torch.bitwise_right_shift(x, shift, out=scratch)
        # The shift of an int32 copies the sign; the mask makes it a logical one.
        scratch &= MASK_32 >> shift
        x ^= scratch
        if factor:
            x *= _signed(factor)


def _gumbel_of(words: torch.Tensor) -> torch.Tensor:
    """-ln(-ln(1 - w)), w the upper 31 bits of a word on (0, 1): fine steps where the noise is large."""
    w = (words >> 1).bitwise_and_(0x7FFFFFFF).to(torch.float32)
    w.add_(0.5).mul_(2.0**-31).clamp_(max=1.0 - 2.0**-24)
    # 1 - w is rounded; what the rounding lost comes back as the second term.
    rest = 1.0 - w
    lost = (w - (1.0 - rest)).div_(rest)
    exponential = lost.sub_(_ln(rest))
    return _ln(exponential).neg_()


def _ln(x: torch.Tensor) -> torch.Tensor:
    """Natural logarithm of positive normal float32, in operations whose bits are the same everywhere.

    x = m * 2**e with m in [0.7071, 1.4142); s = (m - 1) / (m + 1); ln m = 2s + s**3 * (2/3 + ...).
    """
    bits = x.view(torch.int32)
    exponent = (bits - 0x3F3504F3).bitwise_right_shift_(23)
    m = (bits - (exponent << 23)).view(torch.float32)
    s = (m - 1.0).div_(m.add_(1.0))
    z = s * s
    tail = z * 0.29590693
    tail.add_(0.39988395).mul_(z).add_(0.66666688).mul_(z).mul_(s)
    tail.add_(s).add_(s)
    return tail.add_(exponent.to(torch.float32).mul_(0.6931471805599453))
