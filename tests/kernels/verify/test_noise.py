"""The noise is a function; it is Gumbel's, and the numbers that judge drafts are uniform and nobody else's."""

from __future__ import annotations

import math

import pytest
import torch

from kernels.verify.noise import MASK_32, MIX_1, MIX_2, WEYL, gumbel, philox, row_key, uniform

EVERY = torch.arange(49152)
SMALLEST = 1 << 32


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_answers(
    counter: tuple[int, int, int, int], key: tuple[int, int], words: tuple[int, ...]
) -> None:
    assert philox(counter, key) == words


def test_the_noise_has_these_bits_for_ever() -> None:
    """Known answers: a seeded request must give the same text after an upgrade, and on every device."""
    ids = torch.tensor([0, 1, 2, 1000, 49151])
    bits = {
        (0, 0): [-1091212216, 1049784921, 1062391985, 1073091008, -1076137051],
        (1234, 77): [-1085448033, 1061072645, -1079739930, 1075598018, -1097371200],
        (-1, 1 << 40): [1058001350, 1043598160, 1063277736, 1069662618, -1080373170],
    }
    for (seed, position), expected in bits.items():
        assert gumbel(seed, position, ids).view(torch.int32).tolist() == expected


def test_the_numbers_that_judge_drafts_have_these_bits_for_ever() -> None:
    words = {
        (0, 0, 1): 0x844515E1,
        (1234, 77, 1): 0x09B5B2DE,
        (1234, 77, 3): 0xA48DB5B0,
        (-1, 1 << 40, 64): 0xC87681F7,
    }
    found = {key: int(uniform(*key) * 2**32 - 0.5) for key in words}
    assert found == words
    assert uniform(1234, 77, 1) == (words[1234, 77, 1] + 0.5) / 2**32, "exactly, in float64"


def test_an_id_has_the_same_noise_in_whatever_set_it_is_asked_for() -> None:
    whole = gumbel(5, 6, EVERY)
    some = torch.tensor([49151, 7, 7, 33000])
    assert torch.equal(gumbel(5, 6, some), whole[some])
    assert torch.equal(gumbel(5, 6, torch.arange(100_000))[:49152], whole)


def hashed_to(word: int, key: tuple[int, int, int]) -> int:
    """The id (of 32 bits) with this hash: every step of the hash can be undone."""
    x = unmixed(word ^ key[2]) * pow(key[1] | 1, -1, 1 << 32) & MASK_32
    return unmixed(x ^ key[0]) * pow(WEYL, -1, 1 << 32) & MASK_32


def unmixed(x: int) -> int:
    for shift, factor in ((15, MIX_2), (15, MIX_1), (16, 1)):
        x ^= x >> shift ^ (x >> 2 * shift)
        x = x * pow(factor, -1, 1 << 32) & MASK_32
    return x


def test_the_smallest_and_largest_hash_words_give_finite_noise_of_the_right_size() -> None:
    words = [0, 1, 2, 3, 127, 128, 1 << 8, 1 << 20, (1 << 31) - 1, 1 << 31, SMALLEST - 512, SMALLEST - 1]
    ids = torch.tensor([hashed_to(word, row_key(17, 4)) for word in words])
    noise = gumbel(17, 4, ids)
    assert torch.isfinite(noise).all()
    for word, value in zip(words, noise.tolist(), strict=True):
        w = min(((word >> 1) + 0.5) / 2**31, 1 - 2.0**-24)
        # Where w is next to 1 its own rounding shows; noise that small never wins.
        allowed = 3e-6 if w < 0.999 else 1e-3
        assert value == pytest.approx(-math.log(-math.log1p(-w)), abs=allowed)
    assert (noise[1:] <= noise[:-1]).all(), "the noise falls as the word grows"


def kolmogorov_smirnov(ranks_of_sorted: torch.Tensor) -> float:
    """Distance from a uniform distribution, times sqrt(n): 1.95 is passed once in a thousand."""
    size = len(ranks_of_sorted)
    even = (torch.arange(size, dtype=torch.float64) + 0.5) / size
    return float((ranks_of_sorted - even).abs().max()) * math.sqrt(size)


def test_the_noise_is_distributed_as_gumbels() -> None:
    noise = torch.cat([gumbel(seed, 3, EVERY) for seed in range(40)]).double()
    assert noise.mean().item() == pytest.approx(0.5772156649, abs=0.004)
    assert noise.var().item() == pytest.approx(math.pi**2 / 6, abs=0.01)
    # e^-e^-x is the distribution function.
    assert kolmogorov_smirnov(torch.exp(-torch.exp(-noise.sort().values))) < 1.95


def test_the_numbers_that_judge_drafts_are_uniform() -> None:
    found = [uniform(seed, position, index) for seed in range(20) for position in range(60) for index in range(1, 17)]
    assert min(found) > 0 and max(found) < 1
    assert kolmogorov_smirnov(torch.tensor(found, dtype=torch.float64).sort().values) < 1.95


@pytest.mark.parametrize("what", ["seed", "position", "id"])
def test_neighbours_are_independent(what: str) -> None:
    """Rows of neighbouring seeds and positions, and neighbouring ids within rows, don't go together."""
    if what == "seed":
        rows = torch.stack([gumbel(seed, 9, EVERY) for seed in range(30)])
    elif what == "position":
        rows = torch.stack([gumbel(9, position, EVERY) for position in range(30)])
    else:
        rows = torch.stack([gumbel(9, position, EVERY) for position in range(16)])
        rows = torch.stack([rows[:, shift : 49152 - 64 + shift].reshape(-1) for shift in (0, 1, 2, 3, 8, 16, 32, 64)])
    matrix = torch.corrcoef(rows.double())
    apart = matrix[~torch.eye(len(matrix), dtype=torch.bool)]
    # The largest of some hundred correlations of this many pairs.
    assert apart.abs().max() < 4.5 / math.sqrt(rows.shape[1])


def test_what_judges_a_draft_is_independent_of_its_neighbours_and_of_the_noise_there() -> None:
    """Seeds are the samples: position 7's numbers for three drafted tokens, those of 8 and 9, and the noise."""
    seeds = range(4000)
    places = [(7, 1), (7, 2), (7, 3), (8, 1), (8, 2), (9, 1)]
    rows = [[uniform(seed, *place) for seed in seeds] for place in places]
    noise = torch.stack([gumbel(seed, 7, torch.arange(4)) for seed in seeds]).T
    matrix = torch.corrcoef(torch.cat([torch.tensor(rows, dtype=torch.float64), noise.double()]))
    apart = matrix[~torch.eye(len(matrix), dtype=torch.bool)]
    assert apart.abs().max() < 4.5 / math.sqrt(len(seeds))


def test_seeds_and_positions_do_not_stand_in_for_each_other() -> None:
    keys = {row_key(seed, position) for seed in range(60) for position in range(60)}
    assert len(keys) == 3600
    assert row_key(1, 0) != row_key(0, 1) != row_key(1 << 32, 0)
    assert row_key(-1, 0) == row_key((1 << 64) - 1, 0)
    assert row_key(3, 5) != row_key(3, 5 + (1 << 32)), "positions have 64 bits"


def test_every_drafted_token_has_a_number_of_its_own() -> None:
    """A step is its seed and the position of its root; within it, drafted tokens are counted."""
    found = {uniform(seed, position, index) for seed in range(9) for position in range(99) for index in range(1, 65)}
    assert len(found) >= 9 * 99 * 64 - 3, "but for what 2**32 values share by chance"
    first_words = {(row_key(seed, position)[0] + 0.5) / 2**32 for seed in range(9) for position in range(99)}
    assert not found & first_words, "nor one that keys the noise"
