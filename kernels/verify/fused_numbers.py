"""numbers.py and noise.py in Triton, operation by operation. Kernels that use them are compiled without fused
multiply-add (launch(..., fp_fusion=False)), and divide with `div_rn`: both would round otherwise than the truth.

Also how a row is read: the rest of this operation's kernels see a row as blocks of (score, id).
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.verify import questions

INVERSE = tl.constexpr(questions.word_of("inverse"))
SEED = tl.constexpr(questions.word_of("seed"))
POSITION = tl.constexpr(questions.word_of("position"))
NONE_YET = tl.constexpr(2**31 - 1)  # an id behind all others
ID_BITS = tl.constexpr(20)
MINUS_INFINITY = tl.constexpr(-8388608)  # its bits
LOWEST_KEY = tl.constexpr(-2139095041)  # of -inf, see `key_of`
HIGHEST_CHANCE = tl.constexpr(1.0 - 2.0**-24)
ONE_UNIT = tl.constexpr(2.0**-40)  # of mass, as a fraction

# What is kept of a row, in words of 32 bits.
SEQUENCE = tl.constexpr(0)  # -1: nobody's row
DEPTH = tl.constexpr(1)
ENTRIES = tl.constexpr(2)  # where its edited scores begin
ENTRY_COUNT = tl.constexpr(3)  # -1: there was no room for them
TOP = tl.constexpr(4)  # f32, the highest z
FIRST = tl.constexpr(5)  # its lowest id; -1: the row can't be trusted
BAR_KEY = tl.constexpr(6)  # the last one inside of top_k and top_p, by key and id
BAR_ID = tl.constexpr(7)
CUT = tl.constexpr(8)  # the key down to which ids were collected to find that one
FOUND = tl.constexpr(9)  # how many were
FOUND_LATER = tl.constexpr(10)  # how many were after more steps of the search; -1: the first ones are enough
REACHED = tl.constexpr(11)  # key of the best z + noise that any program of the row has seen
MEASURED = tl.constexpr(12)  # whether the short list said all that would be read from the row again
ROW = tl.constexpr(13)  # words in all


@triton.jit
def as_float(bits):
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def as_bits(x):
    return x.to(tl.int32, bitcast=True)


@triton.jit
def ln(x):
    bits = as_bits(x)
    exponent = (bits - 0x3F3504F3) >> 23
    m = as_float(bits - (exponent << 23))
    s = tl.div_rn(m - 1.0, m + 1.0)
    z = s * s
    t = ((z * 0.29590693 + 0.39988395) * z + 0.66666688) * z * s
    return t + s + s + exponent.to(tl.float32) * 0.6931471805599453


@triton.jit
def exp(x):
    n = (x * 1.4426950408889634 + 12582912.0) - 12582912.0
    r = (x - n * 0.693359375) - n * -2.12194440e-4
    p = r * 1.9875691500e-4 + 1.3981999507e-3
    p = p * r + 8.3334519073e-3
    p = p * r + 4.1665795894e-2
    p = p * r + 1.6666665459e-1
    p = p * r + 5.0000001201e-1
    p = p * (r * r) + r + 1.0
    return as_float(as_bits(p) + (n.to(tl.int32) << 23))


@triton.jit
def as_mass(fraction):
    return (fraction * 1099511627776.0).to(tl.int64)


@triton.jit
def mass(below):
    near = below >= -28.0
    return tl.where(near, as_mass(exp(tl.where(near, below, 0.0))), 0)


@triton.jit
def key_of(z):
    """An int32 that sorts as z does; both zeros are one."""
    bits = as_bits(tl.where(z == 0.0, 0.0, z))
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def z_of(key):
    """What `key_of` made a key of, but for the sign of zero."""
    return as_float(key ^ ((key >> 31) & 0x7FFFFFFF))


@triton.jit
def philox(c0, c1, c2, k0, k1):
    c3 = c2 * 0
    for _ in tl.static_range(10):
        one = c0.to(tl.uint64) * 0xD2511F53
        two = c2.to(tl.uint64) * 0xCD9E8D57
        c0, c1, c2, c3 = (
            (two >> 32).to(tl.uint32) ^ c1 ^ k0, two.to(tl.uint32),
            (one >> 32).to(tl.uint32) ^ c3 ^ k1, one.to(tl.uint32),
        )  # fmt: skip
        k0 = k0 + 0x9E3779B9
        k1 = k1 + 0xBB67AE85
    return c0, c1, c2


@triton.jit
def random_words(rule, place, stream):
    """Of the position `place` behind the root's."""
    k0 = tl.load(rule + SEED).to(tl.uint32, bitcast=True)
    k1 = tl.load(rule + SEED + 1).to(tl.uint32, bitcast=True)
    low = tl.load(rule + POSITION).to(tl.uint32, bitcast=True).to(tl.uint64)
    high = tl.load(rule + POSITION + 1).to(tl.uint32, bitcast=True).to(tl.uint64)
    position = (low | (high << 32)) + place.to(tl.uint64)
    return philox(position.to(tl.uint32), (position >> 32).to(tl.uint32), stream.to(tl.uint32), k0, k1)


@triton.jit
def uniform(rule, index):
    """float64, for judging the drafted token of the row that is `index` behind the root's."""
    word, _, _ = random_words(rule, index * 0, index)
    return (word.to(tl.float64) + 0.5) * 2.3283064365386963e-10


@triton.jit
def mix(x):
    x = mix_but_last(x)
    return x ^ (x >> 15)


@triton.jit
def mix_but_last(x):
    x = (x ^ (x >> 16)) * 0x21F0AAAD
    return (x ^ (x >> 15)) * 0xD35A2D97


@triton.jit
def unfinished(ids, k0, k1):
    """All of a hash but what `finished` does."""
    x = mix(ids.to(tl.uint32) * 0x9E3779B9)
    return mix_but_last((x ^ k0) * (k1 | 1))


@triton.jit
def finished(x, k2):
    return x ^ (x >> 15) ^ k2


@triton.jit
def chance_of(hashed):
    """What the noise is made of: in (0, 1), and the smaller, the larger the noise. It rises with the hash."""
    w = ((hashed >> 1).to(tl.int32).to(tl.float32) + 0.5) * 4.656612873077393e-10
    return tl.minimum(w, HIGHEST_CHANCE)


@triton.jit
def chances(ids, k0, k1, k2):
    return chance_of(finished(unfinished(ids, k0, k1), k2))


@triton.jit
def gumbel(w):
    """The noise, from its chance."""
    rest = 1.0 - w
    lost = tl.div_rn(w - (1.0 - rest), rest)
    return -ln(lost - ln(rest))


@triton.jit
def may_reach(z, w, best):
    """False only where z + gumbel(w) is surely under `best`, and the noise need not be computed: noise above d takes
    a chance under exp(-d). That is taken a thousandth and what adding may round higher, as a power of two whose
    fraction is its mantissa: at most 6% too high, never too low."""
    best = tl.maximum(best, -3e38)
    short = z - best + (1e-3 + tl.abs(best) * 4.76837158203125e-07)
    power = tl.minimum(tl.maximum(short, -64.0), 64.0) * 1.4426950408889634
    return w <= as_float(((power + 127.0) * 8388608.0).to(tl.int32))


@triton.jit
def some(flags):
    """Whether any is set."""
    every = tl.reshape(flags, [flags.numel])
    return tl.max(every.to(tl.int32), axis=0) > 0


@triton.jit
def keep(best, at, values, ids):
    """Lane by lane the better of two; equal ones by id."""
    better = (values > best) | ((values == best) & (ids < at))
    return tl.where(better, values, best), tl.where(better, ids, at)


@triton.jit
def best_with_noise(z, ids, k0, k1, k2, own, own_at, reached, TOGETHER: tl.constexpr):
    """The best z + noise of a block and (`own`, `own_at`), without what is surely under `reached`, a score that the row
    has.

    Most blocks end with their first look: the higher z and the lower the hash, the sooner `may_reach` says yes, so an
    id can only pass where the highest z and a lower bound of the hashes of the TOGETHER ids beside it do. Of those that
    pass, noise is computed for one of each group at a time, which mostly is all, and there is a better `reached` for
    the rest.
    """
    shape: tl.constexpr = [z.numel // TOGETHER, TOGETHER]
    z = tl.reshape(z, shape)
    ids = tl.reshape(ids, shape)
    x = tl.reshape(unfinished(ids, k0, k1), shape)
    # What isn't finished has the upper 15 bits already.
    least = (tl.min(x ^ k2, axis=1) >> 17) << 17
    if some(may_reach(tl.max(z, axis=1), chance_of(least), reached)):
        w = chance_of(finished(x, k2))
        near = may_reach(z, w, reached)
        while some(near):
            first = tl.min(tl.where(near, ids, NONE_YET), axis=1)
            near = near & (ids != first[:, None])
            taken = ids == first[:, None]
            its_z = tl.max(tl.where(taken, z, float("-inf")), axis=1)
            noise = gumbel(tl.min(tl.where(taken, w, HIGHEST_CHANCE), axis=1))
            highest, its_id = lowest_of_best(tl.where(first < NONE_YET, its_z + noise, float("-inf")), first)
            own, own_at = keep(own, own_at, highest, its_id)
            reached = tl.maximum(reached, own)
            near = near & may_reach(z, w, reached)
    return own, own_at


@triton.jit
def lowest_of_best(values, ids):
    """The highest of a block and its lowest id."""
    best = tl.max(values, axis=0)
    return best, tl.min(tl.where(values == best, ids, NONE_YET), axis=0)


@triton.jit
def inverse_of(rule):
    """1 / temperature, 1 where it is 0; and whether it is."""
    inverse = as_float(tl.load(rule + INVERSE))
    return tl.where(inverse == 0.0, 1.0, inverse), inverse == 0.0


@triton.jit
def blocks_of(table, V: tl.constexpr, BLOCK: tl.constexpr, HAS_EDITS: tl.constexpr):
    """How many blocks a row is read in: its vocabulary, then its edited scores."""
    blocks = tl.cdiv(V, BLOCK)
    if HAS_EDITS:
        blocks += tl.cdiv(tl.load(table + ENTRY_COUNT), BLOCK)
    return blocks


@triton.jit
def read(source, table, block, V: tl.constexpr, BLOCK: tl.constexpr, HAS_EDITS: tl.constexpr, HAS_MASKS: tl.constexpr):
    """One block of a row: scores, -inf for what can't be, and ids. Where a score was edited the vocabulary has a hole
    (-inf), and the score lies in a block of its own behind it.

    A row's `source` is (its logits, entry_ids, entry_values, bits, its mask); `table` points to the row."""
    logits, entry_ids, entry_values, bits, bits_row = source
    lanes = tl.arange(0, BLOCK)
    ids = block * BLOCK + lanes
    if HAS_EDITS:
        if block < tl.cdiv(V, BLOCK):
            scores = tl.load(logits + ids, mask=ids < V, other=float("-inf")).to(tl.float32)
        else:
            at = ids - tl.cdiv(V, BLOCK) * BLOCK
            there = at < tl.load(table + ENTRY_COUNT)
            begin = tl.load(table + ENTRIES)
            scores = tl.load(entry_values + begin + at, mask=there, other=float("-inf"))
            ids = tl.load(entry_ids + begin + at, mask=there, other=V)
    else:
        scores = tl.load(logits + ids, mask=ids < V, other=float("-inf")).to(tl.float32)
    if HAS_MASKS and bits_row >= 0:
        word = tl.load(bits + bits_row.to(tl.int64) * ((V + 31) // 32) + ids // 32, mask=ids < V, other=0)
        scores = tl.where(((word >> (ids % 32)) & 1) != 0, scores, float("-inf"))
    return scores, ids


@triton.jit
def score_of(source, table, token, V: tl.constexpr, HAS_EDITS: tl.constexpr, HAS_MASKS: tl.constexpr):
    """The score of one token of the vocabulary."""
    logits, entry_ids, entry_values, bits, bits_row = source
    score = tl.load(logits + token).to(tl.float32)
    if HAS_EDITS:
        lanes = tl.arange(0, 128)
        begin = tl.load(table + ENTRIES)
        count = tl.load(table + ENTRY_COUNT)
        for at in range(0, count, 128):
            there = at + lanes < count
            found = tl.load(entry_ids + begin + at + lanes, mask=there, other=V) == token
            if tl.max(found.to(tl.int32), axis=0) > 0:
                values = tl.load(entry_values + begin + at + lanes, mask=found, other=0.0)
                # One lane holds it; the others add nothing.
                score = tl.sum(tl.where(found, values, 0.0), axis=0)
    if HAS_MASKS and bits_row >= 0:
        word = tl.load(bits + bits_row.to(tl.int64) * ((V + 31) // 32) + token // 32)
        score = tl.where(((word >> (token % 32)) & 1) != 0, score, float("-inf"))
    return score
