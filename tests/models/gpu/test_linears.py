"""However a linear is stored, the GPU's linears multiply with what was meant, and say how they do it."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from kernels import interpreter
from kernels.quant import reference
from kernels.testing import assert_close, device
from kernels.testing import random as numbers
from models.executor import Options
from models.gpu.linears import Int8Linear, make_linear
from models.gpu.place import Place
from models.spec import Linear, Part
from models.weights import Weights

sys.path.insert(0, str(Path(__file__).parents[1]))
from quantized_writer import WRITTEN, Written

pytestmark = [
    pytest.mark.skipif(not interpreter.in_use(), reason="a GPU with e4m3 multiplies otherwise"),
    pytest.mark.shows("quantised models on a GPU (fp8, int4, GPTQ, AWQ)", "interpreted"),
]
SPEC = Linear((Part("q", 64), Part("k", 32)), 96, bias=True)
every_format = pytest.mark.parametrize("written", [pytest.param(each, id=name) for name, each in WRITTEN.items()])


def place(folder: Path, config: dict | None, tensors: dict[str, torch.Tensor], **changes) -> Place:
    (folder / "config.json").write_text(json.dumps({"quantization_config": config} if config else {}))
    save_file(tensors | {"q.bias": torch.randn(64), "k.bias": torch.randn(32)}, folder / "model.safetensors")
    options = Options(**({"dtype": "float32", "pages": 1, "page_tokens": 16, "max_context": 32} | changes))
    return Place(Weights(folder), options, device())


def quantised(written: Written, folder: Path, **changes) -> Place:
    source, tensors = random.Random(1), {}
    for name, outputs in (("q", 64), ("k", 32)):
        made, _ = written.make(source, outputs, 96)
        tensors |= {f"{name}.{end}": tensor for end, tensor in made.items()}
    return place(folder, written.config, tensors, **changes)


def check(linear, there: Place) -> None:
    stored = there.weights.linear(SPEC)
    x = numbers(3, 96, dtype=torch.float32)
    weight, bias = stored.dense(torch.float32).to(x.device), stored.bias(torch.float32).to(x.device)
    if isinstance(linear, Int8Linear):
        codes, scales = reference.quantize_rows(x)
        x = codes.float() * scales[:, None]
    # Outputs of the order of 1, as tolerances want them.
    size = (x @ weight.T).abs().max()
    assert_close(linear(x) / size, (x @ weight.T + bias) / size)


@every_format
def test_codes_give_what_the_weights_they_stand_for_give(written: Written, tmp_path: Path) -> None:
    there = quantised(written, tmp_path)
    linear = make_linear(SPEC, there)
    check(linear, there)
    assert linear.how in (
        "int8 x int8", "int8 codes made dense on the way", "int4 codes made dense on the way",
        "fp8 codes made dense on the way", "float32 (Triton)",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("W8A8", "int8 x int8"),
        ("awq", "int4 codes made dense on the way"),
        # The interpreter counts as sm_80, which multiplies no e4m3.
        ("fp8 in blocks", "fp8 codes made dense on the way"),
        # Parts whose inputs are sorted differently can't be one.
        ("gptq 4 bits, inputs in any order", "float32 (Triton)"),
    ],
)
def test_how_it_multiplies_is_told(name: str, how: str, tmp_path: Path) -> None:
    assert make_linear(SPEC, quantised(WRITTEN[name], tmp_path)).how == how


def dense(folder: Path, **changes) -> Place:
    return place(folder, None, {"q.weight": torch.randn(64, 96), "k.weight": torch.randn(32, 96)}, **changes)


def test_plain_weights_go_to_ours_where_strict_and_to_the_library_where_fast(tmp_path: Path) -> None:
    for strict, how in ((True, "float32 (Triton)"), (False, "float32 (torch)")):
        there = dense(tmp_path, strict=strict)
        linear = make_linear(SPEC, there)
        assert linear.how == how
        check(linear, there)


def test_int8_codes_weights_of_any_kind(tmp_path: Path) -> None:
    there = dense(tmp_path, dtype="int8")
    linear = make_linear(SPEC, there)
    assert linear.how == "int8 x int8"
    x, stored = numbers(3, 96, dtype=torch.float32), there.weights.linear(SPEC)
    expected = x @ stored.dense(torch.float32).to(x.device).T + stored.bias(torch.bfloat16).float().to(x.device)
    assert (linear(x) - expected).abs().mean() < 0.02 * expected.abs().mean()
