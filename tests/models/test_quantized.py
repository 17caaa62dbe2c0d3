"""Quantised folders: what is read is what their makers meant, number by number and as a whole model."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import parity
import pytest
import torch
from quantized_writer import WRITTEN, Written, fp8, gptq
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, DeepseekV3Config, LlamaConfig, PreTrainedConfig, Qwen3MoeConfig

from models.batch import Stretch
from models.check import check_model
from models.executor import Executor
from models.spec import Linear, Part
from models.weights import Weights

every_format = pytest.mark.parametrize("written", [pytest.param(each, id=name) for name, each in WRITTEN.items()])


def write_folder(folder: Path, config: dict[str, object] | None, tensors: dict[str, torch.Tensor]) -> Weights:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"quantization_config": config} if config else {}))
    save_file(tensors, folder / "model.safetensors")
    return Weights(folder)


def named(name: str, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {f"{name}.{end}": tensor for end, tensor in tensors.items()}


@every_format
def test_the_dense_weight_is_exactly_what_was_meant(written: Written, tmp_path: Path) -> None:
    source = random.Random(1)
    (q, q_values), (k, k_values) = written.make(source, 64, 96), written.make(source, 32, 96)
    biases = {"q.bias": torch.randn(64), "k.bias": torch.randn(32)}
    weights = write_folder(tmp_path, written.config, named("q", q) | named("k", k) | biases)
    stored = weights.linear(Linear((Part("q", 64), Part("k", 32)), 96, bias=True))
    expected = torch.cat([q_values, k_values])
    assert torch.equal(stored.dense(torch.float32), expected)
    assert torch.equal(stored.dense(torch.bfloat16), expected.bfloat16())
    assert torch.equal(stored.bias(torch.float32), torch.cat([*biases.values()]))
    assert {part.kind for part in stored.parts} == {written.kind}
    assert stored.numbers == 96 * 96 + 96


def write_both(folder: Path, config_class: type[PreTrainedConfig], written: Written, **sizes: Any) -> list[Path]:
    """A random model with quantised linears, and the same model with the values they stand for."""
    quantised, dense = folder / "quantised", folder / "dense"
    parity.save_tiny(config_class, quantised, **sizes)
    shutil.copytree(quantised, dense)
    tensors, meant = load_file(quantised / "model.safetensors"), {}
    source = random.Random(2)
    for name in [name for name in tensors if "_proj" in name and name.endswith(".weight")]:
        outputs, inputs = tensors.pop(name).shape
        made, meant[name] = written.make(source, outputs, inputs)
        tensors |= named(name.removesuffix(".weight"), made)
    save_file(tensors, quantised / "model.safetensors")
    save_file(load_file(dense / "model.safetensors") | meant, dense / "model.safetensors", {"format": "pt"})
    config = json.loads((quantised / "config.json").read_text())
    (quantised / "config.json").write_text(json.dumps(config | {"quantization_config": written.config}))
    return [quantised, dense]


TOKENS = parity.random_tokens(40, 3)


def logits_of(executor: Executor) -> torch.Tensor:
    return parity.run(executor, [Stretch(TOKENS, 0, [0, 1, 2], 0)])


@every_format
def test_a_whole_model_gives_the_logits_of_the_dense_one(written: Written, tmp_path: Path) -> None:
    folders = write_both(tmp_path, LlamaConfig, written)
    quantised, dense = (parity.load(folder, parity.EXECUTORS["plain"]) for folder in folders)
    logits = logits_of(quantised)
    assert torch.equal(logits, logits_of(dense))
    theirs = AutoModelForCausalLM.from_pretrained(folders[1], dtype=torch.float32).eval()
    assert (logits - parity.logits_of(theirs, TOKENS)).abs().max() < parity.TOLERANCE
    assert quantised.parameters == sum(each.numel() for each in theirs.parameters())
    assert check_model(folders[0]).parameters == quantised.parameters


@parity.every_executor
@pytest.mark.parametrize("name", ["awq", "W8A8", "fp8 in blocks"])
def test_every_executor_runs_what_it_has_no_kernels_for_as_the_dense_model(
    name: str, make: parity.MakeExecutor, tmp_path: Path
) -> None:
    folders = write_both(tmp_path, LlamaConfig, WRITTEN[name])
    quantised, dense = (logits_of(parity.load(folder, make)) for folder in folders)
    assert torch.equal(quantised, dense)


LATENT = {"num_key_value_heads": 4, "kv_lora_rank": 32, "q_lora_rank": 24, "qk_rope_head_dim": 8,
          "qk_nope_head_dim": 16, "v_head_dim": 24, "n_routed_experts": 8, "n_group": 2, "topk_group": 1,
          "first_k_dense_replace": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 24}  # fmt: skip
SPARSE = {"head_dim": 16, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24}


@pytest.mark.parametrize("name", ["fp8 in blocks", "gptq 4 bits, one group", "W8A8"])
@pytest.mark.parametrize(("config_class", "sizes"), [(DeepseekV3Config, LATENT), (Qwen3MoeConfig, SPARSE)])
def test_experts_and_latent_attention_are_quantised_like_any_linear(
    config_class: type[PreTrainedConfig], sizes: dict[str, Any], name: str, tmp_path: Path
) -> None:
    folders = write_both(tmp_path, config_class, WRITTEN[name], **sizes)
    assert ".experts.0.down_proj." in "".join(load_file(folders[0] / "model.safetensors"))
    quantised, dense = (logits_of(parity.load(folder, parity.EXECUTORS["plain"])) for folder in folders)
    assert torch.equal(quantised, dense) and dense.isfinite().all()


def test_codes_stay_as_they_are_for_kernels_of_their_own(tmp_path: Path) -> None:
    """The formula of models/quantized/stored.py, from the parts alone."""
    made, meant = gptq(random.Random(3), 32, 64, bits=4, group=16, symmetric=False, version=1, shuffled=True)
    config = WRITTEN["gptq 4 bits, inputs in any order"].config
    part = write_folder(tmp_path, config, named("x", made)).linear(Linear((Part("x", 32),), 64)).parts[0]
    assert part.codes.dtype == torch.uint8 and part.codes.shape == (32, 32)
    assert part.scales.shape == part.zeros.shape == (32, 4) and part.groups.shape == (64,)
    codes = torch.stack((part.codes & 15, part.codes >> 4), -1).view(32, 64)
    of = part.groups.long()
    assert torch.equal((codes.float() - part.zeros.float()[:, of]) * part.scales.float()[:, of], meant)


def test_symmetric_codes_have_no_zeros_and_neighbouring_groups_no_list(tmp_path: Path) -> None:
    made, _ = gptq(random.Random(3), 32, 64, bits=4, group=16, symmetric=True, version=1, shuffled=False)
    part = write_folder(tmp_path, WRITTEN["gptq 4 bits"].config, named("x", made)).linear(
        Linear((Part("x", 32),), 64)
    ).parts[0]
    assert part.zeros is None and part.groups is None and part.group_size == 16


def test_fp8_and_int8_are_not_copied_and_say_how_activations_were_quantised(tmp_path: Path) -> None:
    made, _ = fp8(random.Random(4), 32, 64, block=None, scale="weight_scale", inputs=True)
    weights = write_folder(tmp_path / "fp8", WRITTEN["fp8, a scale a tensor"].config, named("x", made))
    part = weights.linear(Linear((Part("x", 32),), 64)).parts[0]
    assert part.codes.dtype == torch.float8_e4m3fn and part.scales.shape == (1, 1)
    assert part.activations == "tensor" and part.input_scale.item() == pytest.approx(0.0123)
    written = WRITTEN["W8A8"]
    made, _ = written.make(random.Random(4), 32, 64)
    weights = write_folder(tmp_path / "int8", written.config, named("x", made))
    part = weights.linear(Linear((Part("x", 32),), 64)).parts[0]
    assert part.codes.dtype == torch.int8 and part.activations == "row" and part.scales.shape == (32, 1)


def test_linears_that_were_left_out_are_read_as_they_are(tmp_path: Path) -> None:
    """DeepSeek names none: the router's tensors say it themselves."""
    made, meant = fp8(random.Random(5), 48, 40, block=(24, 40), scale="weight_scale_inv")
    plain = torch.randn(8, 40).bfloat16()
    weights = write_folder(tmp_path, WRITTEN["fp8 in blocks"].config, named("up", made) | {"gate.weight": plain})
    stored = weights.linear(Linear((Part("up", 48), Part("gate", 8)), 40))
    assert [part.kind for part in stored.parts] == ["fp8", "plain"]
    assert torch.equal(stored.dense(torch.float32), torch.cat([meant, plain.float()]))


def test_a_linear_alone_and_not_quantised_stays_where_it_is_mapped(tmp_path: Path) -> None:
    weights = write_folder(tmp_path, None, {"x.weight": torch.randn(4, 8)})
    stored = weights.linear(Linear((Part("x", 4),), 8))
    assert stored.dense(torch.float32).data_ptr() == stored.parts[0].codes.data_ptr()
    assert stored.bias(torch.float32) is None


def test_each_group_of_modules_has_its_own_scheme_and_patterns_choose_it(tmp_path: Path) -> None:
    four, eight = WRITTEN["W4 packed"], WRITTEN["W8A8"]
    group_4 = four.config["config_groups"]["group_0"] | {"format": "pack-quantized"}
    group_8 = eight.config["config_groups"]["group_0"] | {"format": "int-quantized", "targets": ["re:.*down_proj$"]}
    config = four.config | {"format": "mixed-precision", "ignore": ["re:.*router", "lm_head"]}
    config["config_groups"] = {"group_0": group_4, "group_1": group_8}
    source = random.Random(6)
    up, up_values = four.make(source, 32, 64)
    down, down_values = eight.make(source, 32, 64)
    router = {"mlp.router.weight": torch.randn(8, 64)}
    weights = write_folder(tmp_path, config, named("mlp.up_proj", up) | named("mlp.down_proj", down) | router)
    stored = weights.linear(Linear((Part("mlp.up_proj", 32), Part("mlp.down_proj", 32), Part("mlp.router", 8)), 64))
    assert [part.kind for part in stored.parts] == ["int4", "int8", "plain"]
    assert torch.equal(stored.dense(torch.float32)[:64], torch.cat([up_values, down_values]))


def test_scales_of_blocks_may_be_powers_of_two(tmp_path: Path) -> None:
    made, _ = fp8(random.Random(7), 48, 80, block=(24, 40), scale="weight_scale_inv")
    powers = torch.tensor([[0.5, 0.25], [2.0, 1.0]])
    as_powers = made | {"weight_scale_inv": powers.to(torch.float8_e8m0fnu)}
    config = WRITTEN["fp8 in blocks"].config
    linear = Linear((Part("x", 48),), 80)
    first = write_folder(tmp_path / "one", config, named("x", made | {"weight_scale_inv": powers})).linear(linear)
    second = write_folder(tmp_path / "two", config, named("x", as_powers)).linear(linear)
    assert torch.equal(first.dense(torch.float32), second.dense(torch.float32))
