"""PlainExecutor's own promises. That it computes what transformers computes is in the families' tests."""

from __future__ import annotations

import math
from pathlib import Path

import parity
import pytest
import torch
from transformers import LlamaConfig, Qwen3Config, Qwen3MoeConfig

from models.batch import Stretch
from models.config import read_network
from models.executor import Options
from models.plain import PlainExecutor
from models.plain.parts import rotated
from models.sources import ModelError
from models.spec import Rope
from models.weights import Weights


def strict(folder: Path, dtype: str) -> PlainExecutor:
    executor = parity.load(folder, PlainExecutor, dtype)
    assert executor.strict and executor.path == "plain torch, cpu, strict: row by row"
    return executor


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", [Qwen3Config, Qwen3MoeConfig])
def test_strict_rows_have_the_same_bits_in_any_batch_and_however_they_are_cut(
    family: type, dtype: str, tmp_path: Path
) -> None:
    parity.save_tiny(family, tmp_path, head_dim=16, use_sliding_window=True, sliding_window=20)
    executor, pages = strict(tmp_path, dtype), parity.Pages()
    tokens, other = parity.random_tokens(70, 1), parity.random_tokens(33, 2)
    whole = parity.run(executor, [Stretch(tokens, 0, pages.take(70), 0)])
    steps, beside = pages.take(70), pages.take(40)
    first = parity.run(executor, [Stretch(other, 0, beside, 32), Stretch(tokens[:30], 0, steps, 0)])[1:]
    second = parity.run(executor, [Stretch(tokens[30:35], 30, steps, 0), Stretch(other[:7], 33, beside, 7)])
    third = [parity.run(executor, [Stretch([tokens[at]], at, steps, 0)]) for at in range(35, 70)]
    assert torch.equal(torch.cat([first, second, *third]), whole)


def test_strict_and_fast_agree(tmp_path: Path) -> None:
    theirs = parity.save_tiny(LlamaConfig, tmp_path)
    tokens = parity.random_tokens(60, 4)
    logits = parity.run(strict(tmp_path, "float32"), [Stretch(tokens, 0, parity.Pages().take(60), 0)])
    parity.assert_close(logits, parity.logits_of(theirs, tokens), "row by row")


def test_rows_without_wanted_logits_give_none(tmp_path: Path) -> None:
    parity.save_tiny(LlamaConfig, tmp_path)
    for is_strict in (True, False):
        executor = parity.load(tmp_path, PlainExecutor, strict=is_strict)
        assert parity.run(executor, [Stretch([1, 2, 3], 0, [5], 3)]).shape == (0, parity.VOCABULARY)


def test_a_page_takes_what_it_says(tmp_path: Path) -> None:
    parity.save_tiny(LlamaConfig, tmp_path)
    network = read_network(tmp_path)
    for dtype, size in (("float32", 4), ("bfloat16", 2)):
        # Keys and values, 3 layers, 2 heads of 16, 16 tokens.
        assert PlainExecutor.page_bytes(network, Options(dtype, 9, 16, 256)) == 2 * 3 * 2 * 16 * 16 * size


def test_a_dtype_that_it_does_not_compute_in_is_refused(tmp_path: Path) -> None:
    parity.save_tiny(LlamaConfig, tmp_path)
    assert PlainExecutor.why_not(read_network(tmp_path), "float32") == ""
    with pytest.raises(ModelError, match="int8"):
        PlainExecutor(read_network(tmp_path), Weights(tmp_path), Options("int8", 9, 16, 256))


@pytest.mark.parametrize("interleaved", [False, True])
def test_a_rotation_turns_its_pairs_and_leaves_the_rest(interleaved: bool) -> None:
    rope = Rope(4, 100.0, interleaved=interleaved)
    angles = [0.3, 1.1]
    cos, sin = (torch.tensor([[f(angle) for angle in angles]]) for f in (math.cos, math.sin))
    x = torch.tensor([[[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]]])

    turned = rotated(x, cos, sin, rope)[0, 0].tolist()

    # A pair is a complex number, multiplied by e^(i·angle).
    expected = x[0, 0].tolist()
    for pair, angle in zip([(0, 1), (2, 3)] if interleaved else [(0, 2), (1, 3)], angles, strict=True):
        number = complex(expected[pair[0]], expected[pair[1]]) * complex(math.cos(angle), math.sin(angle))
        expected[pair[0]], expected[pair[1]] = number.real, number.imag
    assert turned == pytest.approx(expected, rel=1e-6)
