"""Absorbed attention over the latents gives what keys and values of every head give."""

from __future__ import annotations

import torch

from kernels.mla_attention.reference import absorb, attend, attend_naive, expand, split_up, store

HEADS, NOPE, ROPE, VALUE, LATENT, PAGE_TOKENS = 3, 6, 4, 5, 8, 4
SCALE = 0.3


def make_pages(spans: list[tuple[int, int]], noise: torch.Generator) -> tuple[torch.Tensor, ...]:
    """spans: (first position, rows) of each sequence. Pages are dealt from the end; what is unwritten is NaN."""
    lengths = [first + rows for first, rows in spans]
    width = max(-(-length // PAGE_TOKENS) for length in lengths)
    tables = torch.zeros(len(spans), width, dtype=torch.int32)
    free = list(range(40))
    latents = torch.full((40, PAGE_TOKENS, LATENT + ROPE), torch.nan)
    for sequence, length in enumerate(lengths):
        pages = torch.tensor([free.pop() for _ in range(-(-length // PAGE_TOKENS))])
        tables[sequence, : len(pages)] = pages
        at = torch.arange(length)
        store(
            torch.randn(length, LATENT + ROPE, generator=noise),
            latents,
            pages[at // PAGE_TOKENS] * PAGE_TOKENS + at % PAGE_TOKENS,
        )
    starts = torch.tensor([0, *(rows for _, rows in spans)]).cumsum(0).to(torch.int32)
    positions = torch.cat([torch.arange(first, first + rows) for first, rows in spans]).to(torch.int32)
    return latents, tables, starts, positions


def test_absorbed_and_naive_agree_for_query_lengths_of_every_kind() -> None:
    noise = torch.Generator().manual_seed(0)
    latents, tables, starts, positions = make_pages([(0, 9), (13, 1), (0, 1), (7, 5), (3, 1)], noise)
    q = torch.randn(len(positions), HEADS, NOPE + ROPE, generator=noise)
    key_up, value_up = split_up(torch.randn(HEADS * (NOPE + VALUE), LATENT, generator=noise), HEADS, NOPE)

    absorbed = attend(absorb(q, key_up), latents, tables, starts, positions, SCALE, LATENT)
    naive = attend_naive(q, latents, tables, starts, positions, SCALE, key_up, value_up)

    assert naive.isfinite().all()
    assert (expand(absorbed, value_up) - naive).abs().max() <= 1e-5 * naive.abs().max()


def test_naive_is_attention_over_made_keys_and_values() -> None:
    """Against torch's own attention, for one sequence."""
    noise = torch.Generator().manual_seed(1)
    latents, tables, starts, positions = make_pages([(0, 11)], noise)
    q = torch.randn(11, HEADS, NOPE + ROPE, generator=noise)
    kv_up = torch.randn(HEADS * (NOPE + VALUE), LATENT, generator=noise)
    flat = latents[tables[0].long()].flatten(0, 1)[:11]
    made = (flat[:, :LATENT] @ kv_up.T).view(11, HEADS, NOPE + VALUE)
    keys = torch.cat([made[..., :NOPE], flat[:, None, LATENT:].expand(11, HEADS, ROPE)], dim=-1)
    expected = torch.nn.functional.scaled_dot_product_attention(
        q.transpose(0, 1), keys.transpose(0, 1), made[..., NOPE:].transpose(0, 1), is_causal=True, scale=SCALE
    )

    out = attend_naive(q, latents, tables, starts, positions, SCALE, *split_up(kv_up, HEADS, NOPE))

    assert (out.view(11, HEADS, VALUE) - expected.transpose(0, 1)).abs().max() <= 1e-5
