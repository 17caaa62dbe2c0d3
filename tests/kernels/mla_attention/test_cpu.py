"""Latent attention as compiled ops against plain torch, and bits that depend on a row's own position only."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernels.cpu_program import POSITIONS, ROWS, SLOTS, TABLE_WIDTH, TABLES, TILE_COUNT, TILES, Program
from kernels.cpu_vectors import HAS_BFLOAT16_DOT
from kernels.mla_attention.cpu import LatentPlaces, LatentShape, LatentWeights, latent_attention_ops, norm_rows_op
from kernels.mla_attention.reference import attend_naive, split_up, store
from kernels.norm_rope_act.reference import rotate
from kernels.paged_attention.cpu_ops import HeadNorm, Workspace

# Of the largest output. bfloat16: queries, latents, weights and outputs are each rounded to 8 bits.
TOLERANCE = {"float32": 2e-5, "bfloat16": 0.03}
TILE_ROWS, PAGES, MOST_ROWS, POSITIONS_IN_ALL = 16, 60, 96, 700


class Latents:
    """One layer: buffers, pages whose unwritten places are NaN, and the program."""

    def __init__(self, dtype: str, *, threads: int = 2, heads: int = 3) -> None:
        self.shape = LatentShape(dtype, heads, 16, 8, 24, 32, 16, 0.2, interleaved=False)
        self.dtype = getattr(torch, dtype)
        noise = torch.Generator().manual_seed(0)
        self.kv_up = (torch.randn(heads * (16 + 24), 32, generator=noise) / 4).to(self.dtype)
        self.norm = torch.rand(32, generator=noise) + 0.5
        angles = torch.arange(float(POSITIONS_IN_ALL))[:, None] / 100.0 ** (torch.arange(4) / 4)
        self.cos, self.sin = angles.cos(), angles.sin()
        widths = {"q": heads * 24, "kv_down": 40, "wide": self.shape.row, "seen": self.shape.seen, "out": heads * 24}
        self.rows = {
            name: torch.full((MOST_ROWS, width), torch.nan, dtype=self.dtype) for name, width in widths.items()
        }
        keys, values = self.shape.attention.page_words
        self.keys, self.values = (torch.full((PAGES, words), -1, dtype=torch.int32) for words in (keys, values))
        self.space = Workspace(self.shape.attention, threads=threads, tile_rows=TILE_ROWS)
        self.weights = LatentWeights.of(self.shape, self.kv_up)
        places = LatentPlaces(
            **{name: tensor.data_ptr() for name, tensor in self.rows.items()},
            keys=self.keys.data_ptr(), values=self.values.data_ptr(),
            cos=self.cos.data_ptr(), sin=self.sin.data_ptr(),
        )  # fmt: skip
        norm = HeadNorm(self.norm.data_ptr(), 1e-6)
        self.program = Program(latent_attention_ops(self.shape, places, self.weights, norm, self.space), threads)

    def run(self, q: torch.Tensor, kv_down: torch.Tensor, spans: list[tuple[int, int]], tables: list[list[int]]):
        """spans: (first position, rows) of each sequence, whose rows follow each other. [R, heads · value]"""
        at = np.array([start + i for start, rows in spans for i in range(rows)], np.int32)
        owners = [s for s, (_, rows) in enumerate(spans) for _ in range(rows)]
        slots = np.array([tables[s][p // 16] * 16 + p % 16 for s, p in zip(owners, at.tolist(), strict=True)], np.int64)
        tiles, first = [], 0
        for s, (_, rows) in enumerate(spans):
            tiles += [(s, first + r, min(TILE_ROWS, rows - r)) for r in range(0, rows, TILE_ROWS)]
            first += rows
        width = max(map(len, tables))
        table = np.array([t + [0] * (width - len(t)) for t in tables], np.int32)
        triples = np.array(tiles, np.int32)
        self.rows["q"][:first], self.rows["kv_down"][:first] = q.to(self.dtype), kv_down.to(self.dtype)
        self.rows["out"][:] = torch.nan
        step = self.program.step
        step[ROWS], step[TABLE_WIDTH], step[TILE_COUNT] = first, width, len(tiles)
        for index, array in ((POSITIONS, at), (SLOTS, slots), (TABLES, table), (TILES, triples)):
            step[index] = array.ctypes.data
        self.program.run()
        assert self.rows["out"][first:].isnan().all()
        return self.rows["out"][:first].clone()

    def expected(self, q: torch.Tensor, kv_down: torch.Tensor) -> torch.Tensor:
        """Of a whole sequence, keys and values of every head made."""
        count, heads = len(q), self.shape.heads
        cos, sin = self.cos[:count], self.sin[:count]
        q = q.to(self.dtype).float().view(count, heads, 24)
        kv = kv_down.to(self.dtype).float()
        latent = kv[:, :32] * torch.rsqrt(kv[:, :32].square().mean(-1, keepdim=True) + 1e-6) * self.norm
        latents = torch.zeros(-(-count // 16), 16, 40)
        store(torch.cat([latent, rotate(kv[:, None, 32:], cos, sin)[:, 0]], -1), latents, torch.arange(count))
        turned = torch.cat([q[..., :16], rotate(q[..., 16:], cos, sin)], -1)
        tables, starts = torch.arange(len(latents))[None], torch.tensor([0, count])
        key_up, value_up = split_up(self.kv_up, heads, 16)
        return attend_naive(turned, latents, tables, starts, torch.arange(count), 0.2, key_up, value_up)


EVERY = ["float32", *(["bfloat16"] if HAS_BFLOAT16_DOT else [])]


def text(count: int, seed: int, heads: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    noise = torch.Generator().manual_seed(seed)
    return torch.randn(count, heads * 24, generator=noise) * 2, torch.randn(count, 40, generator=noise) * 2


@pytest.mark.parametrize("dtype", EVERY)
def test_outputs_are_those_of_keys_and_values_of_every_head(dtype: str) -> None:
    layer = Latents(dtype)
    q, kv = text(90, 1)
    table = [7, 3, 9, 12, 5, 30]
    parts, start = [], 0
    for rows in (1, 30, 2, 57):
        end = start + rows
        parts.append(layer.run(q[start:end], kv[start:end], [(start, rows)], [table]))
        start = end
    expected = layer.expected(q, kv)
    assert (torch.cat(parts).float() - expected).abs().max() <= TOLERANCE[dtype] * expected.abs().max()


@pytest.mark.parametrize("dtype", EVERY)
def test_a_row_has_the_same_bits_however_its_text_was_cut_and_beside_whatever(dtype: str) -> None:
    layer = Latents(dtype)
    q, kv = text(620, 2)
    other_q, other_kv = text(50, 3)
    whole, again = list(range(40)), list(range(40))
    outs = []
    for table, sizes in ((whole, [90] * 7), (again, [64, 1, 5, 1, 40, 77] * 4)):
        layer.keys[:], layer.values[:] = -1, -1
        parts, start = [], 0
        for size in sizes:
            rows = min(size, 620 - start)
            if rows <= 0:
                break
            parts.append(layer.run(q[start : start + rows], kv[start : start + rows], [(start, rows)], [table]))
            start += rows
        outs.append(torch.cat(parts))
    assert len(outs[0]) == len(outs[1]) == 620 and torch.equal(*outs)

    # Its last row once more, between rows of others; single-threaded, too.
    single = Latents(dtype, threads=1)
    single.keys[:], single.values[:] = layer.keys, layer.values
    for one in (layer, single):
        beside = one.run(
            torch.cat([other_q[:20], q[619:], other_q[20:21]]), torch.cat([other_kv[:20], kv[619:], other_kv[20:21]]),
            [(0, 20), (619, 1), (0, 1)], [[50, 51], whole, [52]],
        )  # fmt: skip
        assert torch.equal(beside[20], outs[0][619])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_are_normed_where_they_stand(dtype: str) -> None:
    x = text(11, 4)[1].to(getattr(torch, dtype)).contiguous()
    weight = torch.rand(40) + 0.5
    rows = x.float()
    expected = rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + 1e-3) * weight
    row = 40 * x.element_size()
    norm = HeadNorm(weight.data_ptr(), 1e-3)
    program = Program([norm_rows_op(dtype, x.data_ptr(), row, 40, norm, x.data_ptr(), row)], 2)
    program.step[ROWS] = 9
    program.run()
    assert (x[:9].float() - expected[:9]).abs().max() <= (2e-6 if dtype == "float32" else 0.02)
    assert torch.equal(x[9:].float(), rows[9:])
