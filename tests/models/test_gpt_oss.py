"""gpt-oss against transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import parity
import pytest
import routing
import torch
from safetensors.torch import load_file, save_file
from transformers import GptOssConfig, PreTrainedModel

from kernels.linear.packing import PackedWeight, pack_mxfp4
from models.batch import Stretch
from models.check import check_model
from models.config import read_network
from models.cpu import experts
from models.errors import ModelError
from models.folder_headers import FolderHeaders
from models.memory import kept_by, weight_bytes
from models.spec import Attention, Network

SIZES: dict[str, Any] = {
    "head_dim": 16, "num_local_experts": 8, "num_experts_per_tok": 3, "sliding_window": 20, "intermediate_size": 24,
}  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no biases of attention, one expert a row, another rope": {
        "attention_bias": False, "num_experts_per_tok": 1, "swiglu_limit": 0.5,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    },
}  # fmt: skip


def save(folder: Path, **changes: Any) -> PreTrainedModel:
    """With sinks that take a good part of the weights."""
    theirs = routing.save_sparse(GptOssConfig, folder, 0, **(SIZES | changes))
    for name, parameter in theirs.named_parameters():
        if name.endswith("sinks"):
            torch.nn.init.normal_(parameter, 2.0, 1.0)
    theirs.save_pretrained(folder)
    return theirs


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_and_text_are_those_of_transformers(variant: str, tmp_path: Path) -> None:
    routing.check(save(tmp_path, **VARIANTS[variant]), tmp_path)


@pytest.mark.slow  # loops of its own are compiled
@parity.every_executor
def test_bfloat16_stays_close(make: parity.MakeExecutor, tmp_path: Path) -> None:
    # All experts: rounding must not send a row elsewhere.
    parity.check_bfloat16(save(tmp_path, num_experts_per_tok=8), tmp_path, make)


# Codes 0 to 15.
NUMBERS = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def write_coded(coded: Path, dense: Path, lowest: int = 122, **changes: Any) -> None:
    """The same random experts in mxfp4 and as floats."""
    for folder in (coded, dense):
        save(folder, **({"intermediate_size": 64, "num_hidden_layers": 1} | changes))
    source, names = torch.Generator().manual_seed(5), ("gate_up_proj", "down_proj")
    tensors, plain = load_file(coded / "model.safetensors"), load_file(dense / "model.safetensors")
    for name in [name for name in tensors if name.endswith(names)]:
        count, inputs, outputs = tensors.pop(name).shape
        codes = torch.randint(0, 16, (count, outputs, inputs), generator=source)
        scales = torch.randint(lowest, 126, (count, outputs, inputs // 32), generator=source)
        # The even input is the low half of a byte.
        packed = (codes[..., 0::2] + 16 * codes[..., 1::2]).view(count, outputs, inputs // 32, 16)
        tensors |= {f"{name}_blocks": packed.to(torch.uint8), f"{name}_scales": scales.to(torch.uint8)}
        factors = 2.0 ** (scales - 127.0)
        plain[name] = (NUMBERS[codes] * factors.repeat_interleave(32, -1)).transpose(1, 2).contiguous()
    save_file(tensors, coded / "model.safetensors", {"format": "pt"})
    save_file(plain, dense / "model.safetensors", {"format": "pt"})
    config = json.loads((coded / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": []}
    (coded / "config.json").write_text(json.dumps(config))


def test_experts_in_mxfp4_are_those_that_their_codes_stand_for(tmp_path: Path) -> None:
    coded, dense = tmp_path / "coded", tmp_path / "dense"
    write_coded(coded, dense)
    checked = check_model(coded)
    assert checked.format.startswith("mxfp4") and checked.parameters == check_model(dense).parameters
    for make in parity.EXECUTORS.values():
        assert torch.equal(*(logits(folder, make, "float32") for folder in (coded, dense)))


def logits(folder: Path, make: parity.MakeExecutor, dtype: str) -> torch.Tensor:
    executor = parity.load(folder, make, dtype)
    return parity.run(executor, [Stretch(parity.random_tokens(20, 1), 0, [3, 4], 0)])


# The second has scales that bfloat16 can't add to its own: those experts are dense.
@pytest.mark.slow  # loops of its own are compiled
@pytest.mark.parametrize(("lowest", "stays"), [(122, True), (1, False)])
def test_in_bfloat16_experts_stay_in_mxfp4_with_the_bits_of_dense_ones(
    lowest: int, stays: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed: list[PackedWeight] = []

    def pack(*given: Any) -> PackedWeight:
        packed.append(pack_mxfp4(*given))
        return packed[-1]

    monkeypatch.setattr(experts, "pack_mxfp4", pack)
    coded, dense = tmp_path / "coded", tmp_path / "dense"
    write_coded(coded, dense, lowest)
    compiled = parity.EXECUTORS["compiled"]
    assert torch.equal(*(logits(folder, compiled, "bfloat16") for folder in (coded, dense)))
    assert len(packed) == (2 if stays else 0)
    if stays:
        # 4 bits a number and 8 for 32 of them.
        network, headers = read_network(coded), FolderHeaders(coded)
        sizes = [weight_bytes(network, kept_by(network, headers, "bfloat16", False, kept)) for kept in (True, False)]
        numbers = 8 * 3 * 64 * 64
        assert sum(each.weight.nbytes for each in packed) == numbers * 17 // 32
        assert sizes[1] - sizes[0] == numbers * 2 - numbers * 17 // 32


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpt_oss")
    save(folder)
    return folder


def read(saved: Path, folder: Path, without: tuple[str, ...] = (), **changes: Any) -> Network:
    config = json.loads((saved / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k not in without}))
    return read_network(folder)


def test_layers_have_a_window_in_turns_and_all_have_yarn(saved: Path, tmp_path: Path) -> None:
    network = read(saved, tmp_path, ("layer_types", "rope_parameters", "max_position_embeddings"))
    found = [layer.attention for layer in network.layers if isinstance(layer.attention, Attention)]
    assert [one.window for one in found] == [20, 0, 20] and network.max_context == 131072
    assert all(one.rope.theta == 150000 and one.rope.scaling and one.rope.scaling.factor == 32 for one in found)


@pytest.mark.parametrize("name", ["self_attn.sinks", "mlp.experts.gate_up_proj", "mlp.experts.down_proj_bias"])
def test_a_tensor_that_is_missing_is_named(saved: Path, tmp_path: Path, name: str) -> None:
    routing.check_that_it_is_missed(f"model.layers.1.{name}", saved, tmp_path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"swiglu_alpha": 1.5}, "swiglu_alpha"),
        ({"swiglu_limit": 0}, "swiglu_limit"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"layer_types": ["chunked_attention"] * 3}, "layer_types"),
    ],
)
def test_a_field_that_is_not_computed_is_named(
    saved: Path, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ModelError, match=said):
        read(saved, tmp_path, **changes)
