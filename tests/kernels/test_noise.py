"""The noise is a function, and it is Gumbel's."""

from __future__ import annotations

import math

import pytest
import torch

from kernels.sample.noise import _gumbel_of, _ln, contenders, gumbel, nearly, philox, row_key

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


def test_an_id_has_the_same_noise_in_whatever_set_it_is_asked_for() -> None:
    whole = gumbel(5, 6, EVERY)
    some = torch.tensor([49151, 7, 7, 33000])
    assert torch.equal(gumbel(5, 6, some), whole[some])
    assert torch.equal(gumbel(5, 6, torch.arange(100_000))[:49152], whole)


def test_plain_floats_give_nearly_the_same() -> None:
    ids = [0, 5, 49151, 12345, 32768]
    for seed in range(50):
        exact = gumbel(seed, seed * 7, torch.tensor(ids)).tolist()
        assert nearly(seed, seed * 7, ids) == pytest.approx(exact, abs=1e-4)


def test_the_smallest_and_largest_hash_words_give_finite_noise_of_the_right_size() -> None:
    words = [0, 1, 2, 3, 127, 128, 1 << 8, 1 << 20, (1 << 31) - 1, 1 << 31, SMALLEST - 512, SMALLEST - 1]
    signed = torch.tensor([word - (word >> 31 << 32) for word in words], dtype=torch.int32)
    noise = _gumbel_of(signed)
    assert torch.isfinite(noise).all()
    for word, value in zip(words, noise.tolist(), strict=True):
        w = min(((word >> 1) + 0.5) / 2**31, 1 - 2.0**-24)
        # Where w is next to 1 its own rounding shows; noise that small never wins.
        allowed = 3e-6 if w < 0.999 else 1e-3
        assert value == pytest.approx(-math.log(-math.log1p(-w)), abs=allowed)
    assert (noise[1:] <= noise[:-1]).all(), "the noise falls as the word grows"


def test_the_logarithm_is_as_good_as_float32_can_hold_it() -> None:
    x = torch.cat([torch.logspace(-10, 1.3, 100_000, dtype=torch.float32), torch.tensor([1.0, 0.99999994, 1.0000001])])
    true = x.double().log()
    assert ((_ln(x).double() - true).abs() / (true.abs() + 1)).max() < 1.5e-7
    assert _ln(torch.tensor([1.0])).item() == 0.0


def test_the_noise_is_distributed_as_gumbels() -> None:
    noise = torch.cat([gumbel(seed, 3, EVERY) for seed in range(40)]).double()
    assert noise.mean().item() == pytest.approx(0.5772156649, abs=0.004)
    assert noise.var().item() == pytest.approx(math.pi**2 / 6, abs=0.01)
    # Kolmogorov-Smirnov: e^-e^-x is the distribution function; 1.95 / sqrt(n) is passed once in a thousand.
    ranks = (torch.arange(len(noise), dtype=torch.float64) + 0.5) / len(noise)
    distance = (torch.exp(-torch.exp(-noise.sort().values)) - ranks).abs().max()
    assert distance < 1.95 / math.sqrt(len(noise))


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


def test_seeds_and_positions_do_not_stand_in_for_each_other() -> None:
    keys = {row_key(seed, position) for seed in range(60) for position in range(60)}
    assert len(keys) == 3600
    assert row_key(1, 0) != row_key(0, 1) != row_key(1 << 32, 0)
    assert row_key(-1, 0) == row_key((1 << 64) - 1, 0)


def test_contenders_are_all_who_can_win_and_few_more() -> None:
    generator = torch.Generator().manual_seed(1)
    for seed in range(40):
        scores = torch.randn(49152, generator=generator) * (seed % 8)
        scores -= scores.max()
        noisy = scores + gumbel(seed, seed, EVERY)
        least = noisy[scores.argmax()].item()
        found = contenders(scores, seed, seed, least)
        assert set((noisy >= least).nonzero().view(-1).tolist()) <= set(found.tolist())
        reaching = int((noisy >= least - 0.01).sum())
        assert len(found) <= reaching * 1.5 + 5
