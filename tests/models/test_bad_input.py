"""Damaged, wrong and hostile model folders: each is refused with the name of the thing, and nothing else happens.

`load` does what a target does: check, map, build, one step.
"""

from __future__ import annotations

import errno
import json
import os
import random
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from quantized_writer import WRITTEN
from safetensors.torch import load_file, save_file
from tiny_folder import CONFIG, read_safetensors, write_safetensors, write_tiny_model

from models.batch import Stretch, make_batch
from models.check import check_context, check_model
from models.config import read_network
from models.executor import Options
from models.plain import PlainExecutor
from models.sources import ModelError, ensure_model
from models.weights import Weights

MUTATIONS = 300


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tiny_model(tmp_path / "model")


def load(folder: Path) -> torch.Tensor:
    network = check_model(ensure_model(str(folder), folder.parent / "cache")).network
    options = Options("float32", pages=2, page_tokens=16, max_context=min(network.max_context, 32), strict=False)
    executor = PlainExecutor(network, Weights(folder), options)
    return executor.forward(make_batch([Stretch([1], 0, [0], 0)], 16)).logits


def refusal(folder: Path, act: Callable[[Path], object] = load) -> str:
    with pytest.raises(ModelError) as caught:
        act(folder)
    assert caught.value.what and caught.value.fix
    assert caught.value.what.isprintable() and len(caught.value.what) < 2100
    return caught.value.what


def edit_config(folder: Path, **changes: Any) -> None:
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))


def edit_header(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    header, values = read_safetensors(folder / "model.safetensors")
    edit(header)
    write_safetensors(folder / "model.safetensors", header, values)


def test_the_folder_that_is_damaged_below_is_whole(folder: Path) -> None:
    assert load(folder).shape == (1, CONFIG["vocab_size"])


# safetensors --------------------------------------------------------------------------------------------

Q = "model.layers.0.self_attn.q_proj.weight"


@pytest.mark.parametrize("keep", [0, 7, 8, 9, 100, 2000])
def test_a_file_cut_short_in_its_header_is_named(folder: Path, keep: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    assert "model.safetensors" in refusal(folder)


def test_a_file_cut_short_in_its_values_says_how_much_is_there(folder: Path) -> None:
    path = folder / "model.safetensors"
    size = path.stat().st_size
    os.truncate(path, size - 1)
    assert f"{size - 1} of {size} bytes" in refusal(folder)


@pytest.mark.parametrize("length", [0, 1, 1 << 40, (1 << 64) - 1])
def test_a_header_of_absurd_length_is_not_believed(folder: Path, length: int) -> None:
    write_safetensors(folder / "model.safetensors", b"{}", b"", length)
    assert str(length) in refusal(folder)


def test_bytes_after_the_last_tensor_are_refused(folder: Path) -> None:
    with (folder / "model.safetensors").open("ab") as file:
        file.write(b"more")
    assert "4 bytes after" in refusal(folder)


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (lambda h: h[Q]["data_offsets"].__setitem__(0, h[Q]["data_offsets"][0] - 4), Q),
        (lambda h: h[Q].update(data_offsets=list(h["model.norm.weight"]["data_offsets"]), shape=[64]), "hole"),
        (lambda h: h[Q].update(data_offsets=[0, 64 * 64 * 4]), "overlaps"),
        (lambda h: h.pop(Q), "hole"),
        (lambda h: h[Q].update(data_offsets=[1 << 62, (1 << 62) + 64 * 64 * 4]), "data_offsets"),
        (lambda h: h[Q].update(data_offsets=[-1, 64 * 64 * 4]), "data_offsets"),
        (lambda h: h[Q].update(data_offsets=[8, 4]), "data_offsets"),
        (lambda h: h[Q].update(data_offsets=[True, 4]), "data_offsets"),
        (lambda h: h[Q].update(data_offsets="0"), "data_offsets"),
        (lambda h: h[Q].update(shape=[1 << 62, 1 << 62]), "shape"),
        (lambda h: h[Q].update(shape=[64.0, 64]), "shape"),
        (lambda h: h[Q].update(shape=[1] * 1000), "shape"),
        (lambda h: h[Q].update(shape=None), "shape"),
        (lambda h: h[Q].update(dtype="F4_E2M1"), "F4_E2M1"),
        (lambda h: h[Q].update(dtype=7), "unknown type"),
        (lambda h: h.update({Q: []}), Q),
        (lambda h: h.update({Q: None}), Q),
    ],
)
def test_a_header_that_lies_is_refused_by_the_tensors_name(
    folder: Path, edit: Callable[[dict[str, Any]], object], named: str
) -> None:
    edit_header(folder, edit)
    assert named in refusal(folder)


@pytest.mark.parametrize("header", [b"[]", b"{", b"\xff\xfe{}", b'{"a": 1}', b"[" * 100_000, b'{"a": {}, "a": {}}'])
def test_a_header_that_is_no_table_of_tensors_is_refused(folder: Path, header: bytes) -> None:
    write_safetensors(folder / "model.safetensors", header, b"")
    assert "model.safetensors" in refusal(folder)


def test_names_from_files_reach_no_terminal_as_they_are(folder: Path) -> None:
    hostile = {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}
    edit_header(folder, lambda h: h.update({"\x1b[2J\n" * 1000: hostile}))
    assert "shape" in refusal(folder)


@pytest.mark.parametrize("dtype", ["I32", "F64", "F8_E4M3", "BOOL"])
def test_a_type_that_is_not_read_is_named(folder: Path, dtype: str) -> None:
    size = {"I32": 4, "F64": 8, "F8_E4M3": 1, "BOOL": 1}[dtype]
    edit_header(folder, lambda h: h[Q].update(dtype=dtype, shape=[64, 64 * 4 // size]))
    refused = refusal(folder)
    assert Q in refused
    edit_header(folder, lambda h: h["model.norm.weight"].update(dtype="I32"))
    edit_config(folder)
    assert "model.norm.weight is I32" in refusal(folder, lambda f: Weights(f).take("model.norm.weight", 64))


def test_a_missing_tensor_and_a_wrong_shape_are_named_without_loading(folder: Path) -> None:
    edit_config(folder, num_hidden_layers=3)
    assert "model.layers.2." in refusal(folder, check_model)
    edit_config(folder, vocab_size=305)
    assert "model.embed_tokens.weight has shape (304, 64)" in refusal(folder, check_model)
    edit_config(folder, tie_word_embeddings=False)
    assert "lm_head.weight is missing" in refusal(folder, check_model)
    edit_config(folder, attention_bias=True)
    assert "q_proj.bias is missing" in refusal(folder, check_model)


def test_a_bias_that_the_config_does_not_know_of_is_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    name = "model.layers.1.mlp.down_proj.bias"
    save_file(tensors | {name: torch.zeros(64)}, path)
    load(folder)
    save_file(tensors | {name: torch.ones(64)}, path)
    assert name in refusal(folder)


# Shards -------------------------------------------------------------------------------------------------


def shard(folder: Path, first: dict[str, torch.Tensor], second: dict[str, torch.Tensor], **index: Any) -> None:
    save_file(first, folder / "a.safetensors")
    save_file(second, folder / "b.safetensors")
    names = dict.fromkeys(first, "a.safetensors") | dict.fromkeys(second, "b.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names} | index))


def test_a_tensor_in_two_shards_is_refused(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    shard(folder, tensors, {Q: tensors[Q]})
    assert f"{Q} is in a.safetensors and in b.safetensors" in refusal(folder)


def test_a_shard_that_is_missing_is_named(folder: Path) -> None:
    shard(folder, load_file(folder / "model.safetensors"), {"x": torch.ones(1)})
    load(folder)
    (folder / "b.safetensors").unlink()
    assert "b.safetensors is missing" in refusal(folder)


@pytest.mark.parametrize(
    "weight_map",
    [{"a": "../model.safetensors"}, {"a": "/etc/passwd"}, {"a": "x/../model.safetensors"}, {"a": ".."}, {"a": "m.bin"},
     {"a": 7}, {"a": None}, {}, [], "x", None, {"a": "\0.safetensors"}],
)  # fmt: skip
def test_an_index_cannot_point_anywhere_else(folder: Path, weight_map: Any) -> None:
    shard(folder, load_file(folder / "model.safetensors"), {"x": torch.ones(1)}, weight_map=weight_map)
    assert "model.safetensors.index.json" in refusal(folder)


# Files that are none ------------------------------------------------------------------------------------

FILES = ["config.json", "tokenizer.json", "model.safetensors"]


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_a_folder_a_circle_and_a_pipe_in_a_files_place_are_named(folder: Path, name: str) -> None:
    path = folder / name
    path.unlink()
    assert f"{name} is missing" in refusal(folder)
    path.mkdir()
    assert name in refusal(folder)
    path.rmdir()
    path.symlink_to(path)
    assert name in refusal(folder)
    path.unlink()
    # Nobody writes into it: whoever opened it would wait for ever.
    os.mkfifo(path)
    assert name in refusal(folder)


@pytest.mark.parametrize("name", FILES)
def test_a_file_without_the_right_to_read_it_is_named(folder: Path, name: str) -> None:
    path = folder / name
    path.chmod(0)
    with without_rights(folder):
        assert name in refusal(folder)


def test_a_folder_without_the_right_to_look_is_named(folder: Path) -> None:
    with without_rights(folder):
        folder.chmod(0)
        try:
            assert str(folder) in refusal(folder / "inside")
        finally:
            folder.chmod(0o700)


@contextmanager
def without_rights(folder: Path) -> Iterator[None]:
    """As another user than root, who may read everything, and with a way down to the folder."""
    if os.geteuid() != 0:
        yield
        return
    nobody = 65534
    opened = [path for path in folder.parents if path.stat().st_uid == 0 and not path.stat().st_mode & 0o001]
    before = {path: path.stat().st_mode for path in opened}
    for path in opened:
        path.chmod(before[path] | 0o011)
    os.chown(folder, nobody, nobody)
    os.seteuid(nobody)
    try:
        yield
    finally:
        os.seteuid(0)
        for path in opened:
            path.chmod(before[path])


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b", "~nobody-of-this-name/model", "."])
def test_a_name_that_can_be_none_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert refusal(tmp_path, lambda _: ensure_model(name, tmp_path / "cache"))


# config.json --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "architectures", [None, [], "LlamaForCausalLM", [7], [None], [["LlamaForCausalLM"]], [{}], {}, 3, ["Llama"]]
)
def test_architectures_that_name_none_of_ours_are_refused(folder: Path, architectures: Any) -> None:
    edit_config(folder, architectures=architectures)
    assert "architecture" in refusal(folder)
    assert "architectures" in refusal(folder, read_network)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", "[" * 100_000, '{"a":' * 100_000, '{"vocab_size": 1' + "0" * 5000 + "}"]
)
def test_a_config_that_is_no_object_is_named(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    assert "config.json" in refusal(folder)
    assert "config.json" in refusal(folder, read_network)


def test_a_huge_config_is_not_read(folder: Path) -> None:
    with (folder / "config.json").open("wb") as file:
        file.truncate(1 << 40)
    assert "config.json has 1048576 MB" in refusal(folder)


@pytest.mark.parametrize(("field", "value"), [("num_hidden_layers", 1 << 20), ("num_experts", 1 << 20)])
def test_a_network_without_an_end_is_refused_before_it_is_built(folder: Path, field: str, value: int) -> None:
    edit_config(folder, architectures=["Qwen3MoeForCausalLM"], **{field: value})
    assert field in refusal(folder)


def test_a_context_beyond_the_models_is_refused_by_both_numbers(folder: Path) -> None:
    network = read_network(folder)
    assert check_context(network, 0) == check_context(network, 256) == 256 and check_context(network, 100) == 100
    refused = refusal(folder, lambda _: check_context(network, 257))
    assert "max_context is 257" in refused and "256" in refused


# Quantised ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "named"),
    [
        *[({"quant_method": method}, f"quant_method is '{method}'")
          for method in ("bitsandbytes", "aqlm", "hqq", "nvfp4", "exl2", "gguf", "auto-round", "torchao")],
        ({}, "quant_method is None"),
        ([], "quant_method is []"),
        ({"quant_method": ["gptq"]}, "quant_method"),
        (WRITTEN["gptq 4 bits"].config | {"bits": 3}, "bits is 3"),
        (WRITTEN["gptq 4 bits"].config | {"bits": "4"}, "bits is '4'"),
        (WRITTEN["gptq 4 bits"].config | {"bits": True}, "bits is True"),
        (WRITTEN["gptq 4 bits"].config | {"group_size": 0}, "group_size is 0"),
        (WRITTEN["gptq 4 bits"].config | {"checkpoint_format": "marlin"}, "checkpoint_format is 'marlin'"),
        (WRITTEN["gptq 4 bits"].config | {"dynamic": {"+:.*": {"bits": 8}}}, "dynamic"),
        (WRITTEN["awq"].config | {"version": "gemv"}, "version is 'gemv'"),
        (WRITTEN["awq"].config | {"zero_point": False}, "zero_point is False"),
        (WRITTEN["awq"].config | {"modules_to_not_convert": "lm_head"}, "modules_to_not_convert"),
        (WRITTEN["fp8 in blocks"].config | {"fmt": "e5m2"}, "fmt is 'e5m2'"),
        (WRITTEN["fp8 in blocks"].config | {"weight_block_size": [128]}, "weight_block_size is [128]"),
        (WRITTEN["fp8 in blocks"].config | {"weight_block_size": [0, 128]}, "weight_block_size"),
        (WRITTEN["W8A8"].config | {"format": "marlin-24"}, "format is 'marlin-24'"),
        (WRITTEN["W8A8"].config | {"config_groups": {}}, "config_groups"),
        (WRITTEN["W8A8"].config | {"config_groups": {"g": 7}}, "config_groups.g"),
        (WRITTEN["W8A8"].config | {"quantization_status": "frozen"}, "quantization_status is 'frozen'"),
        (WRITTEN["W8A8"].config | {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config"),
        (WRITTEN["W8A8"].config | {"transform_config": {"config_groups": {"u": {}}}}, "transform_config"),
        (WRITTEN["W8A8"].config | {"ignore": ["re:(a+)+$"]}, "ignore is 're:(a+)+$'"),
        (WRITTEN["W8A8"].config | {"ignore": ["re:("]}, "ignore is 're:('"),
        (WRITTEN["W8A8"].config | {"ignore": ["re:" + ".*" * 50]}, "ignore"),
    ],
)  # fmt: skip
def test_a_format_that_is_not_read_is_refused_by_its_field(folder: Path, config: Any, named: str) -> None:
    edit_config(folder, quantization_config=config)
    refused = refusal(folder)
    assert "quantization_config" in refused and named in refused


def changed_group(name: str, **weights: Any) -> dict[str, Any]:
    config = WRITTEN[name].config
    group = config["config_groups"]["group_0"]
    return config | {"config_groups": {"group_0": group | {"weights": group["weights"] | weights}}}


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (changed_group("W4 packed", num_bits=3), "config_groups.group_0.weights.num_bits is 3"),
        (changed_group("W8A8", num_bits=4), "config_groups.group_0.weights.num_bits is 4"),
        (changed_group("W8A8", type="mx"), "config_groups.group_0.weights.type is 'mx'"),
        (changed_group("W8A8", strategy="token"), "config_groups.group_0.weights.strategy is 'token'"),
        (changed_group("W8A8", dynamic=True), "config_groups.group_0.weights.dynamic is True"),
        (changed_group("W8A8 fp8, a scale a row", num_bits=4), "config_groups.group_0.weights.num_bits is 4"),
    ],
)
def test_a_scheme_that_is_not_read_is_refused_by_its_field(folder: Path, config: Any, named: str) -> None:
    edit_config(folder, quantization_config=config)
    assert named in refusal(folder)


def quantise(folder: Path, name: str, *, drop: str = "", **changed: torch.Tensor) -> None:
    """q_proj of the first layer in a format of WRITTEN, and then something wrong with it."""
    written, module = WRITTEN[name], Q.removesuffix(".weight")
    tensors = load_file(folder / "model.safetensors")
    del tensors[Q]
    made, _ = written.make(random.Random(1), 64, 64)
    made = {end: tensor for end, tensor in (made | changed).items() if end != drop}
    save_file(tensors | {f"{module}.{end}": tensor for end, tensor in made.items()}, folder / "model.safetensors")
    edit_config(folder, quantization_config=written.config)


@pytest.mark.parametrize(
    ("name", "wrong", "named"),
    [
        ("gptq 4 bits", {"drop": "scales"}, "q_proj.scales is missing"),
        ("gptq 4 bits", {"drop": "qweight"}, "q_proj.qweight is missing"),
        ("gptq 4 bits, inputs in any order", {"drop": "g_idx"}, "q_proj.g_idx is missing"),
        ("gptq 4 bits", {"g_idx": torch.full((64,), 4, dtype=torch.int32)}, "q_proj.g_idx points outside"),
        ("gptq 4 bits", {"g_idx": torch.full((64,), -1, dtype=torch.int32)}, "q_proj.g_idx points outside"),
        ("gptq 4 bits", {"scales": torch.ones(2, 64)}, "q_proj.scales has shape (2, 64)"),
        ("gptq 4 bits", {"scales": torch.full((4, 64), torch.nan)}, "q_proj.scales has a value that is not finite"),
        ("gptq 4 bits", {"qweight": torch.zeros(16, 64, dtype=torch.int32)}, "q_proj.qweight has shape (16, 64)"),
        ("gptq 4 bits", {"qweight": torch.zeros(8, 64)}, "q_proj.qweight is F32"),
        ("awq", {"drop": "qzeros"}, "q_proj.qzeros is missing"),
        ("awq", {"qweight": torch.zeros(8, 64, dtype=torch.int32)}, "q_proj.qweight has shape (8, 64)"),
        ("W8A8", {"drop": "weight_scale"}, "q_proj.weight_scale is missing"),
        ("W8A8", {"weight": torch.zeros(64, 64)}, "q_proj.weight is F32, and it has a scale"),
        ("W8A8", {"weight": torch.zeros(64, 64, dtype=torch.uint8)}, "q_proj.weight is U8"),
        ("W4 packed", {"weight_shape": torch.tensor([64, 60])}, "q_proj.weight_shape says [64, 60]"),
        ("W4 packed asymmetric", {"drop": "weight_zero_point"}, "q_proj.weight_zero_point is missing"),
        ("fp8 in blocks", {"drop": "weight_scale_inv"}, "q_proj.weight_scale_inv is missing"),
        ("fp8 in blocks", {"weight_scale_inv": torch.ones(64, 1)}, "q_proj.weight_scale_inv has shape (64, 1)"),
        ("fp8 in blocks", {"weight": torch.zeros(64, 64).to(torch.float8_e5m2)}, "q_proj.weight is F8_E5M2"),
    ],
)
def test_quantised_tensors_that_do_not_fit_are_named(
    folder: Path, name: str, wrong: dict[str, Any], named: str
) -> None:
    quantise(folder, name)
    load(folder)
    write_tiny_model(folder)
    quantise(folder, name, **wrong)
    assert named in refusal(folder)


def test_groups_that_do_not_divide_the_inputs_are_refused(folder: Path) -> None:
    quantise(folder, "gptq 4 bits")
    edit_config(folder, quantization_config=WRITTEN["gptq 4 bits"].config | {"group_size": 48})
    assert "64 inputs, and group_size 48" in refusal(folder)


def test_quantised_tensors_without_a_word_in_the_config_are_refused(folder: Path) -> None:
    quantise(folder, "gptq 4 bits")
    edit_config(folder)
    assert "q_proj.qweight is quantised, and config.json has no quantization_config" in refusal(folder)


@pytest.mark.parametrize(
    ("name", "field"),
    [("awq", "modules_to_not_convert"), ("W8A8", "ignore"), ("fp8, a scale a tensor", "ignored_layers")],
)
def test_a_quantised_linear_that_the_config_leaves_out_is_refused(folder: Path, name: str, field: str) -> None:
    quantise(folder, name)
    edit_config(folder, quantization_config=WRITTEN[name].config | {field: ["self_attn.q_proj"]})
    refused = refusal(folder)
    assert "q_proj" in refused and field in refused
    edit_config(folder, quantization_config=WRITTEN[name].config | {field: ["elf_attn.q_proj", "q_pro"]})
    load(folder)


# At random ----------------------------------------------------------------------------------------------


def loads_or_is_refused(folder: Path) -> bool:
    try:
        load(folder)
    except ModelError as error:
        assert error.what and error.fix
        return False
    return True


@pytest.fixture
def bounded_memory() -> Iterator[None]:
    """Whatever a file claims, nothing is allocated for it."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400 << 10  # kB


def mutated(source: random.Random, raw: bytes, reach: int) -> bytes:
    made = bytearray(raw)
    for _ in range(source.choice((1, 1, 2, 8))):
        at = source.randrange(min(reach, len(made)))
        match source.randrange(4):
            case 0:
                made[at] ^= 1 << source.randrange(8)
            case 1:
                made[at] = source.choice(b'0123456789"{}[],:.-eE')
            case 2:
                del made[at : at + source.randrange(1, 20)]
            case _:
                made[at:at] = bytes(source.choice(b"0123456789\xff\0-") for _ in range(source.randrange(1, 9)))
    return bytes(made)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_mutated_files_load_or_are_refused(folder: Path, name: str, bounded_memory: None) -> None:
    path, source = folder / name, random.Random(11)
    whole = path.read_bytes()
    loaded = 0
    for _ in range(MUTATIONS):
        path.write_bytes(mutated(source, whole, 8000))
        loaded += loads_or_is_refused(folder)
    assert 0 < loaded < MUTATIONS


NASTY: list[Any] = [
    None, True, False, 0, -1, 1, 2, 3, 7, 1 << 20, 1 << 31, 1 << 63, 1e308, 0.5, float("nan"), float("inf"), "", "x",
    "x" * 100_000, [], [None], {}, {"a": {}}, [[]], ["x"] * 1000,
]  # fmt: skip


def deep(levels: int) -> str:
    return "[" * levels + "]" * levels


@pytest.mark.parametrize("field", [*CONFIG, "head_dim", "rope_scaling", "sliding_window", "quantization_config"])
def test_any_value_in_any_field_loads_or_is_refused(folder: Path, field: str, bounded_memory: None) -> None:
    for value in NASTY:
        edit_config(folder, **{field: value})
        loads_or_is_refused(folder)
    for levels in (500, 900, 990):
        text = json.dumps(CONFIG | {field: "DEEP"})
        (folder / "config.json").write_text(text.replace('"DEEP"', deep(levels)))
        loads_or_is_refused(folder)


@pytest.mark.parametrize("name", ["gptq 8 bits asymmetric", "awq", "W4 packed asymmetric", "W8A8", "fp8 in blocks"])
def test_any_value_in_any_field_of_a_format_loads_or_is_refused(folder: Path, name: str, bounded_memory: None) -> None:
    quantise(folder, name)
    config = WRITTEN[name].config
    for field in config:
        for value in NASTY:
            edit_config(folder, quantization_config=config | {field: value})
            loads_or_is_refused(folder)
    for field in config.get("config_groups", {}).get("group_0", {}).get("weights", {}):
        for value in NASTY:
            edit_config(folder, quantization_config=changed_group(name, **{field: value}))
            loads_or_is_refused(folder)


def test_errors_of_the_system_while_looking_are_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Path, *_: Any, **__: Any) -> Any:
        raise OSError(errno.EIO, "the disk is failing")

    monkeypatch.setattr(Path, "open", fails)
    assert "the disk is failing" in refusal(folder)
