"""Rows turned and kept by the fused kernel, against plain torch."""

from __future__ import annotations

import pytest
import torch

from kernels.gemm.ending import whole
from kernels.gemm.ranges import Ranges
from kernels.kv_store import fused, reference
from kernels.testing import TOLERANCE, assert_close, assert_same_bits, device, poisoned, random

# heads, kv_heads, D, width, page_tokens, interleaved, normed
SIZES = [
    (9, 3, 64, 64, 16, False, False),
    (4, 4, 128, 128, 32, False, True),
    (8, 1, 80, 32, 16, False, True),
    (6, 2, 96, 96, 16, True, False),
    (3, 1, 24, 8, 4, True, True),
]


def tables(width: int) -> tuple[torch.Tensor, torch.Tensor]:
    angles = torch.arange(200.0)[:, None] / 100.0 ** (torch.arange(width // 2) / width)
    return angles.cos().to(device()), angles.sin().to(device())


def stored(size: tuple, dtype: torch.dtype, second: tuple[torch.Tensor, torch.Tensor] | None = None) -> list[tuple]:
    """Keys, values and queries of five rows: those of the kernel, then those of plain torch."""
    heads, kv_heads, head_dim, width, page_tokens, interleaved, normed = size
    slots = torch.tensor([5, 77, -1, 40, 0], device=device())
    positions = torch.tensor([199, 0, 3, 17, 64], dtype=torch.int32, device=device())
    qkv = random(5, (heads + 2 * kv_heads) * head_dim, dtype=dtype)
    weights = (random(head_dim, dtype=dtype, seed=1), random(head_dim, dtype=dtype, seed=2)) if normed else (None, None)
    made = []
    for run in (fused, reference):
        keys, values = (poisoned(20, kv_heads, page_tokens, head_dim, dtype=dtype) for _ in range(2))
        queries = poisoned(5, heads, head_dim, dtype=dtype)
        run.rotate_and_store(
            qkv, keys, values, slots, positions, *tables(width), queries, *weights, 1e-5, interleaved, second
        )
        made.append((keys, values, queries))
    return made


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_rows_are_turned_and_kept_as_in_plain_torch(size: tuple, dtype: torch.dtype) -> None:
    made = stored(size, dtype)
    for ours, theirs in zip(*made, strict=True):
        assert torch.equal(ours.isnan(), theirs.isnan())
        assert_close(ours.nan_to_num(9.0), theirs.nan_to_num(9.0))
    assert not made[0][2].isnan().any()


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("interleaved", [False, True])
def test_a_latent_is_normed_and_kept_beside_its_turned_key(dtype: torch.dtype, interleaved: bool) -> None:
    rows, heads, nope, rope, latent = 4, 5, 24, 16, 48
    slots = torch.tensor([9, -1, 30, 2], device=device())
    positions = torch.tensor([9, 0, 150, 2], dtype=torch.int32, device=device())
    q, kv = random(rows, heads, nope + rope, dtype=dtype), random(rows, latent + rope, dtype=dtype, seed=1)
    weight = random(latent, dtype=dtype, seed=2)
    made = []
    for run in (fused, reference):
        latents = poisoned(4, 8, latent + rope, dtype=dtype)
        queries = poisoned(rows, heads, latent + rope, dtype=dtype)
        run.rotate_and_store_latent(q, kv, weight, 1e-6, latents, slots, positions, *tables(rope), queries, interleaved)
        made.append((latents, queries))
    for ours, theirs in zip(*made, strict=True):
        assert torch.equal(ours.isnan(), theirs.isnan())
        assert_close(ours.nan_to_num(9.0), theirs.nan_to_num(9.0))
    assert made[0][1][..., :latent].isnan().all() and not made[0][1][..., latent:].isnan().any()


# Of five rows: the first in two more slots, the third, which is padding, and the last in one.
ALSO = [0, 2, 2, 2, 2, 3], [60, 93, 12]


def also() -> tuple[torch.Tensor, torch.Tensor]:
    """With room for more slots than are used."""
    begins, slots = ALSO
    return torch.tensor(begins, dtype=torch.int32, device=device()), torch.tensor([*slots, 3, 3], device=device())


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("size", SIZES[:3], ids=str)
def test_rows_with_second_slots_are_stored_there_too_with_the_same_bits(size: tuple, dtype: torch.dtype) -> None:
    page_tokens = size[4]
    made = [(keys, values) for keys, values, _ in stored(size, dtype, also())]
    for ours, theirs in zip(*made, strict=True):
        assert torch.equal(ours.isnan(), theirs.isnan())
        assert_close(ours.nan_to_num(9.0), theirs.nan_to_num(9.0))
        at = lambda slot: ours[slot // page_tokens, :, slot % page_tokens]  # noqa: B023, E731
        for slot, other in ((5, 60), (5, 93), (0, 12)):
            assert_same_bits(at(other), at(slot))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_a_latent_with_second_slots_is_stored_there_too_with_the_same_bits(dtype: torch.dtype) -> None:
    rows, heads, nope, rope, latent = 5, 3, 8, 16, 48
    slots = torch.tensor([5, 77, -1, 40, 0], device=device())
    positions = torch.tensor([9, 0, 150, 2, 7], dtype=torch.int32, device=device())
    q, kv = random(rows, heads, nope + rope, dtype=dtype), random(rows, latent + rope, dtype=dtype, seed=1)
    weight = random(latent, dtype=dtype, seed=2)
    made = []
    for run in (fused, reference):
        latents = poisoned(12, 8, latent + rope, dtype=dtype)
        queries = poisoned(rows, heads, latent + rope, dtype=dtype)
        run.rotate_and_store_latent(
            q, kv, weight, 1e-6, latents, slots, positions, *tables(rope), queries, also=also()
        )
        made.append(latents)
    ours, theirs = made
    assert torch.equal(ours.isnan(), theirs.isnan())
    assert_close(ours.nan_to_num(9.0), theirs.nan_to_num(9.0))
    for slot, other in ((5, 60), (5, 93), (0, 12)):
        assert_same_bits(ours.flatten(0, 1)[other], ours.flatten(0, 1)[slot])


def test_a_row_alone_has_the_bits_it_has_among_others() -> None:
    heads, kv_heads, head_dim, width, page_tokens, _, _ = SIZES[1]
    qkv = random(6, (heads + 2 * kv_heads) * head_dim, dtype=torch.float32)
    slots, positions = torch.arange(6, device=device()), torch.arange(6, dtype=torch.int32, device=device())
    weight = random(head_dim, dtype=torch.float32, seed=1)

    def run(rows: slice, qkv: torch.Tensor = qkv) -> tuple[torch.Tensor, ...]:
        keys, values = (poisoned(1, kv_heads, page_tokens, head_dim, dtype=torch.float32) for _ in range(2))
        queries = poisoned(len(qkv[rows]), heads, head_dim, dtype=torch.float32)
        fused.rotate_and_store(
            qkv[rows], keys, values, slots[rows], positions[rows], *tables(width), queries, weight, weight, 1e-5
        )
        return queries, keys[:, :, slots[rows]], values[:, :, slots[rows]]

    together, alone = run(slice(0, 6)), run(slice(4, 5))
    assert_same_bits(alone[0], together[0][4:5])
    assert_same_bits(alone[1], together[1][:, :, 4:5])
    assert_same_bits(alone[2], together[2][:, :, 4:5])
    # Rows that are further apart than they are wide.
    beside = torch.cat([qkv, poisoned(6, 24, dtype=torch.float32)], dim=1)
    for ours, theirs in zip(run(slice(0, 6), beside[:, : qkv.shape[1]]), together, strict=True):
        assert_same_bits(ours, theirs)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("size", "biased"), [(SIZES[0], False), (SIZES[2], True), (SIZES[4], False)], ids=str)
def test_a_product_in_ranges_is_turned_and_kept_with_the_bits_of_their_sum(
    size: tuple, biased: bool, dtype: torch.dtype
) -> None:
    heads, kv_heads, head_dim, width, page_tokens, interleaved, normed = size
    columns = (heads + 2 * kv_heads) * head_dim
    slots = torch.tensor([5, -1, 40], device=device())
    positions = torch.tensor([199, 3, 17], dtype=torch.int32, device=device())
    weights = [random(head_dim, dtype=dtype, seed=1)] * 2 if normed else [None, None]
    bias = random(columns, dtype=dtype, seed=2) if biased else None
    qkv = Ranges(random(3, 3, columns, dtype=torch.float32), bias, dtype)
    second = torch.tensor([0, 1, 1, 1], dtype=torch.int32, device=device()), torch.tensor([60], device=device())
    made = []
    for given in (qkv, whole(qkv)):
        keys, values = (torch.zeros(20, kv_heads, page_tokens, head_dim, dtype=dtype, device=device()) for _ in "kv")
        queries = torch.zeros(3, heads, head_dim, dtype=dtype, device=device())
        fused.rotate_and_store(
            given, keys, values, slots, positions, *tables(width), queries, *weights, 1e-5, interleaved, second
        )
        made.append((keys, values, queries))
    assert all(each.count_nonzero() for each in made[0])
    for ours, theirs in zip(*made, strict=True):
        assert_same_bits(ours, theirs)


def test_a_latent_may_be_in_ranges_with_the_bits_of_their_sum() -> None:
    rows, heads, nope, rope, latent = 5, 3, 8, 16, 48
    slots = torch.tensor([5, 77, -1, 40, 0], device=device())
    positions = torch.tensor([9, 0, 150, 2, 7], dtype=torch.int32, device=device())
    q, bias = random(rows, heads, nope + rope, dtype=torch.bfloat16), random(latent + rope, dtype=torch.bfloat16)
    kv = Ranges(random(3, rows, latent + rope, dtype=torch.float32, seed=1), bias, torch.bfloat16)
    made = []
    for given in (kv, whole(kv)):
        latents = torch.zeros(12, 8, latent + rope, dtype=q.dtype, device=device())
        queries = torch.zeros(rows, heads, latent + rope, dtype=q.dtype, device=device())
        fused.rotate_and_store_latent(
            q, given, random(latent, dtype=q.dtype, seed=2), 1e-6, latents, slots, positions, *tables(rope), queries,
            also=also(),
        )  # fmt: skip
        made.append((latents, queries))
    assert all(each.count_nonzero() for each in made[0])
    for ours, theirs in zip(*made, strict=True):
        assert_same_bits(ours, theirs)


@pytest.mark.parametrize("size", SIZES[:3], ids=str)
def test_pages_of_bytes_keep_e4m3_as_torch_rounds_it(size: tuple) -> None:
    """What is stored is exactly torch's rounding of what pages of float32 would hold; too large is the largest."""
    heads, kv_heads, head_dim, width, page_tokens, interleaved, _ = size
    slots = torch.tensor([5, 77, -1, 40, 0], device=device())
    positions = torch.zeros(5, dtype=torch.int32, device=device())  # Not turned: the same products in both.
    qkv = random(5, (heads + 2 * kv_heads) * head_dim, dtype=torch.float32) * 3
    qkv[0, -1], qkv[1, -2], qkv[3, -3], qkv[4, -4] = 1000.0, -1e6, float("nan"), 0.001
    for run in (fused, reference):
        wide = [torch.zeros(20, kv_heads, page_tokens, head_dim, device=device()) for _ in range(2)]
        bytes_ = [torch.zeros(each.shape, dtype=torch.uint8, device=device()) for each in wide]
        for keys, values in (wide, bytes_):
            queries = torch.zeros(5, heads, head_dim, device=device())
            run.rotate_and_store(qkv, keys, values, slots, positions, *tables(width), queries, interleaved=interleaved)
        for numbers, kept in zip(wide, bytes_, strict=True):
            expected = numbers.clamp(-448, 448).to(torch.float8_e4m3fn)
            assert torch.equal(reference.from_kept(kept).nan_to_num(7.0), expected.float().nan_to_num(7.0))
        assert reference.from_kept(bytes_[1]).abs().nan_to_num(0).max() == 448 and bytes_[1].count_nonzero() > 100
