"""A gated delta net in Triton against plain torch: however a text is cut, and whatever was taken back before."""

from __future__ import annotations

import random

import pytest
import torch

from kernels.delta_rule import fused
from kernels.testing import assert_close, assert_same_bits, device, poisoned
from tests.kernels.delta_rule.small_net import EPSILON, LONGEST, TOKENS, SmallNet

Part = tuple[int, int, list[int], int]
SIZES = (1, 2, 7, 1, 3)


class Layer(SmallNet):
    def __init__(self, dtype: torch.dtype = torch.float32, taps: int = 4) -> None:
        super().__init__(dtype, 4, taps, device())
        self._begins = [0, 0]

    def __call__(self, parts: list[Part]) -> torch.Tensor:
        """Parts are (state, position of the first row, tokens, settled up to); a last sequence has no rows."""
        table, tokens = [], []
        for state, start, new, settled in parts:
            table.append((len(tokens), len(new), state, start, self._begins[state] if start else 0, settled))
            self._begins[state] = settled
            tokens += new
        table.append((0,) * 6)
        mixed = self.of_token[tokens]
        read = poisoned(len(tokens), self.net.value_heads, self.net.value_dim, dtype=torch.float32)
        words = torch.tensor(table, dtype=torch.int32, device=mixed.device)
        fused.delta_rule(self.net, self.memory, mixed, words, read)
        return fused.norm_gate(read, mixed[:, self.kept :], self.norm, EPSILON)


def words(count: int, seed: int) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(TOKENS) for _ in range(count)]


@pytest.mark.parametrize(("dtype", "taps", "numbers"), [(torch.float32, 4, 1024), (torch.bfloat16, 5, 128)])
def test_rows_are_those_of_the_reference_however_a_text_is_cut(
    dtype: torch.dtype, taps: int, numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 128 numbers a program has 8 of the 20 columns of a state."""
    monkeypatch.setattr(fused, "NUMBERS", numbers)
    layer, text = Layer(dtype, taps), words(sum(SIZES), 1)
    other, found, start = text[::-1], [], 0
    for size in SIZES:
        end = start + size
        # A second sequence beside it.
        made = layer([(1, start, text[start:end], end), (0, start, other[start:end], end)])
        found.append(made[:size])
        start = end
    expected = layer.expected(text)
    assert_close(torch.cat(found) / expected.abs().max(), expected / expected.abs().max(), dtype)


def test_a_text_as_a_whole_in_chunks_and_row_by_row_has_the_same_bits() -> None:
    layer, text = Layer(), words(sum(SIZES), 2)
    whole = layer([(0, 0, text, len(text))])
    # NaN would be NaN's bits.
    assert whole.isfinite().all()
    state = layer.memory.states[0].clone()
    for sizes in (SIZES, (1,) * len(text)):
        found, start = [], 0
        for size in sizes:
            found.append(layer([(1, start, text[start : start + size], start + size)]))
            start += size
        assert_same_bits(torch.cat(found), whole)
        assert_same_bits(layer.memory.states[1], state)


def test_the_state_after_drafts_that_are_taken_back_is_that_of_plain_decoding_bit_by_bit() -> None:
    source, layer = random.Random(3), Layer()
    text, at, right_ones = words(1, 3), 0, 0
    for _ in range(12):
        length = source.randrange(LONGEST + 1)
        accepted = source.randint(0, length)
        text += words(accepted + 1, at)
        right = text[at : at + 1 + accepted]
        wrong = [source.randrange(TOKENS) for _ in range(length - accepted)]
        found = layer([(0, at, right + wrong, at + 1)])
        # Now the first row alone is settled.
        expected = [layer([(1, at, right[:1], at + 1)])]
        assert_same_bits(layer.memory.states[0], layer.memory.states[1])
        expected += [layer([(1, at + row, [token], at + row + 1)]) for row, token in enumerate(right[1:], 1)]
        assert found.isfinite().all()
        assert_same_bits(found[: accepted + 1], torch.cat(expected))
        at, right_ones = at + accepted + 1, right_ones + accepted
    assert right_ones > 8
