"""A gated delta net as compiled ops against plain torch, and states that rejected rows leave no trace in."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from kernels.cpu_program import ROWS, STATE_COUNT, STATES, Program
from kernels.cpu_vectors import HAS_BFLOAT16_DOT
from kernels.delta_rule.cpu import delta_ops, space_bytes
from kernels.linear.cpu import Rows
from tests.kernels.delta_rule.small_net import EPSILON, LONGEST, TOKENS, SmallNet

# Of the largest output. bfloat16: the inputs are the same, the output is rounded to 8 bits.
TOLERANCE = {"float32": 1e-5, "bfloat16": 0.005}
DTYPES = ["float32", *(["bfloat16"] if HAS_BFLOAT16_DOT else [])]
MOST_ROWS = 64


class Layer(SmallNet):
    def __init__(self, dtype: str = "float32", threads: int = 1, longest: int = LONGEST) -> None:
        super().__init__(getattr(torch, dtype), 6, longest=longest)
        self.mixed = torch.full((MOST_ROWS, self.of_token.shape[1]), torch.nan, dtype=self.dtype)
        heads, value_dim = self.net.value_heads, self.net.value_dim
        self.out = torch.full((MOST_ROWS, heads * value_dim), torch.nan, dtype=self.dtype)
        space = torch.empty(threads, space_bytes(self.net), dtype=torch.uint8)
        mixed, out = (Rows(each.data_ptr(), each.stride(0) * self.dtype.itemsize) for each in (self.mixed, self.out))
        self.program = Program(delta_ops(self.net, self.memory, self.norm, EPSILON, mixed, out, space), threads)
        self.begins = [0, 0]

    def __call__(self, parts: list[tuple[int, int, list[int], int]]) -> torch.Tensor:
        """Parts are (state, position of the first row, tokens, settled up to)."""
        table, first = [], 0
        for state, start, tokens, settled in parts:
            self.mixed[first : first + len(tokens)] = self.of_token[tokens]
            begin = self.begins[state] if start else 0
            table.append((first, len(tokens), state, start, begin, settled))
            self.begins[state] = settled
            first += len(tokens)
        words = np.array(table, np.int32)
        step = self.program.step
        step[ROWS], step[STATES], step[STATE_COUNT] = first, words.ctypes.data, len(words)
        self.program.run()
        return self.out[:first].clone()


@pytest.mark.parametrize("longest", [LONGEST, 0])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_those_of_the_reference_however_a_text_is_cut(dtype: str, longest: int) -> None:
    layer, source = Layer(dtype, threads=2, longest=longest), random.Random(1)
    text = [source.randrange(TOKENS) for _ in range(50)]
    other, expected = text[::-1], layer.expected(text)
    found, start = [], 0
    for size in (1, 2, 30, 1, 16):
        end = start + size
        # A second sequence beside it.
        made = layer([(1, start, text[start:end], end), (0, start, other[start:end], end)])
        found.append(made[:size])
        start = end
    worst = (torch.cat(found).float() - expected).abs().max()
    assert worst <= TOLERANCE[dtype] * expected.abs().max()


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_state_after_2000_drafts_is_that_of_plain_decoding_bit_by_bit(dtype: str) -> None:
    source, layer = random.Random(3), Layer(dtype)
    text, at = [source.randrange(TOKENS)], 0
    for _ in range(2000):
        length = source.randrange(LONGEST + 1)
        accepted = source.randint(0, length)
        text += [source.randrange(TOKENS) for _ in range(accepted + 1)]
        right = text[at : at + 1 + accepted]
        wrong = [source.randrange(TOKENS) for _ in range(length - accepted)]
        found = layer([(0, at, right + wrong, at + 1)])
        # Now the first row alone is settled.
        expected = [layer([(1, at, right[:1], at + 1)])]
        assert torch.equal(layer.memory.states[0], layer.memory.states[1])
        expected += [layer([(1, at + row, [token], at + row + 1)]) for row, token in enumerate(right[1:], 1)]
        assert torch.equal(found[: accepted + 1], torch.cat(expected))
        at += accepted + 1
    assert at > 4000
