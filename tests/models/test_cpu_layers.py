"""What the compiled executor makes of a network's layers, beyond what families have so far: layers of different
widths, no wanted rows, pages far apart, and what it says it can't run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import parity
import pytest
import torch
from safetensors.torch import save_file

from models.batch import Stretch, make_batch
from models.cpu.executor import CpuExecutor
from models.executor import Options
from models.plain import PlainExecutor
from models.spec import Attention, Layer, Linear, Mlp, Network, Norm, Part, Rope
from models.weights import Weights

HIDDEN, VOCABULARY = 40, 61
TOKENS = parity.random_tokens(40, 1, VOCABULARY)


def layer(index: int, heads: int, kv_heads: int, head_dim: int, wide: int) -> Layer:
    def linear(inputs: int, **parts: int) -> Linear:
        return Linear(tuple(Part(f"{index}.{name}", outputs) for name, outputs in parts.items()), inputs)

    attention = Attention(
        heads=heads, kv_heads=kv_heads, head_dim=head_dim,
        qkv=linear(HIDDEN, q=heads * head_dim, k=kv_heads * head_dim, v=kv_heads * head_dim),
        output=linear(heads * head_dim, o=HIDDEN), rope=Rope(head_dim, 10000.0), scale=head_dim**-0.5,
    )  # fmt: skip
    mlp = Mlp(linear(HIDDEN, gate=wide, up=wide), linear(wide, down=HIDDEN))
    return Layer(Norm(f"{index}.before", HIDDEN, 1e-5), attention, Norm(f"{index}.after", HIDDEN, 1e-5), mlp)


def network_of(*layers: Layer) -> Network:
    return Network(
        vocab_size=VOCABULARY, hidden_size=HIDDEN, embedding="embedding.weight", layers=layers,
        norm=Norm("norm", HIDDEN, 1e-5), head=Linear((Part("embedding", VOCABULARY),), HIDDEN),
        max_context=256, eos_token_ids=(), stored_dtype="float32",
    )  # fmt: skip


def save(network: Network, folder: Path, stored: torch.dtype = torch.float32) -> Weights:
    torch.manual_seed(0)
    tensors = {network.embedding: torch.randn(VOCABULARY, HIDDEN)}
    for one in (network.norm, *(norm for layer in network.layers for norm in (layer.attention_norm, layer.mlp_norm))):
        tensors[f"{one.name}.weight"] = 1 + torch.randn(one.width) / 4
    for layer in network.layers:
        for linear in (layer.attention.qkv, layer.attention.output, layer.mlp.gate_up, layer.mlp.down):
            for part in linear.parts:
                tensors[f"{part.name}.weight"] = torch.randn(part.outputs, linear.inputs) / linear.inputs**0.5
    save_file({name: one.to(stored) for name, one in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text("{}")
    return Weights(folder)


OPTIONS = Options(dtype="float32", pages=20, page_tokens=16, max_context=256, threads=2)
UNEVEN = network_of(layer(0, 4, 2, 16, 72), layer(1, 2, 1, 8, 24), layer(2, 6, 2, 16, 100))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_layers_may_be_of_different_widths(dtype: str, tmp_path: Path) -> None:
    weights = save(UNEVEN, tmp_path)
    text = [Stretch(TOKENS, 0, [3, 1, 2], 0)]
    expected = parity.run(PlainExecutor(UNEVEN, weights, replace(OPTIONS, strict=False)), text)
    logits = parity.run(CpuExecutor(UNEVEN, weights, replace(OPTIONS, dtype=dtype)), text)
    if dtype == "float32":
        parity.assert_close(logits, expected, dtype)
    else:
        assert (logits - expected).abs().mean() <= {"bfloat16": 0.03, "int8": 0.08}[dtype] * expected.abs().mean()


def test_rows_of_which_none_is_wanted_leave_their_keys_and_values(tmp_path: Path) -> None:
    executor = CpuExecutor(UNEVEN, save(UNEVEN, tmp_path), OPTIONS)
    whole = parity.run(executor, [Stretch(TOKENS, 0, [3, 1, 2], 39)])
    assert executor.forward(make_batch([Stretch(TOKENS[:39], 0, [6, 4, 5], 39)], 16)).logits.shape == (0, VOCABULARY)
    assert torch.equal(executor.forward(make_batch([Stretch(TOKENS[39:], 39, [6, 4, 5], 0)], 16)).logits, whole)


def test_as_many_rows_as_there_is_room_for(tmp_path: Path) -> None:
    executor = CpuExecutor(UNEVEN, save(UNEVEN, tmp_path), replace(OPTIONS, pages=40, max_context=512))
    tokens = parity.random_tokens(512, 2, VOCABULARY)
    whole = executor.forward(make_batch([Stretch(tokens, 0, list(range(32)), 0)], 16)).logits.clone()
    assert whole.shape == (512, VOCABULARY) and whole.isfinite().all()
    last = executor.forward(make_batch([Stretch(tokens[-1:], 511, list(range(32)), 0)], 16)).logits
    assert torch.equal(last[0], whole[511])


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
def test_the_files_of_a_packed_model_are_let_go(stored: torch.dtype, tmp_path: Path) -> None:
    weights = save(UNEVEN, tmp_path, stored)
    taken = weights.take(UNEVEN.embedding, VOCABULARY, HIDDEN)
    assert str(tmp_path) in Path("/proc/self/maps").read_text()
    del taken
    executor = CpuExecutor(UNEVEN, weights, OPTIONS)
    del weights
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    executor.close()


def test_logits_outlive_the_executor(tmp_path: Path) -> None:
    executor = CpuExecutor(UNEVEN, save(UNEVEN, tmp_path), OPTIONS)
    logits = executor.forward(make_batch([Stretch(TOKENS, 0, [3, 1, 2], 0)], 16)).logits
    copy = logits.clone()
    executor.close()
    del executor
    assert torch.equal(logits, copy)


def test_pages_beyond_the_second_gigabyte(tmp_path: Path) -> None:
    """Keys of a page are 256 kB. Pages that nobody uses cost no memory."""
    network = network_of(layer(0, 16, 8, 128, 24))
    options = replace(OPTIONS, pages=20_000, page_tokens=64)
    executor = CpuExecutor(network, save(network, tmp_path), options)
    assert executor.page_bytes(network, options) * 20_000 > 1 << 33
    near = executor.forward(make_batch([Stretch(TOKENS, 0, [0], 0)], 64)).logits.clone()
    far = executor.forward(make_batch([Stretch(TOKENS, 0, [19_999], 0)], 64)).logits.clone()
    assert torch.equal(far, near)
    executor.copy_page(19_999, 9_000)
    again = executor.forward(make_batch([Stretch(TOKENS[-1:], 39, [9_000], 0)], 64)).logits
    assert torch.equal(again[0], near[-1])


@pytest.mark.parametrize(("head_dim", "said"), [(15, "head_dim 15"), (2048, "at most 1024")])
def test_heads_that_the_loops_lack_are_said(head_dim: int, said: str) -> None:
    assert CpuExecutor.why_not(UNEVEN, "float32") == ""
    assert said in CpuExecutor.why_not(network_of(layer(0, 2, 1, 16, 24), layer(1, 2, 1, head_dim, 24)), "float32")
