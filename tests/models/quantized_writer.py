"""Quantised matrices as other tools write them: packed number by number, as the formats' descriptions say.

Nothing here comes from models/quantized/: what one packs and the other unpacks must agree by the format alone.
Every maker gives the tensors of a matrix by the ends of their names, and the values they stand for.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

Codes = list[list[int]]
Made = tuple[dict[str, torch.Tensor], torch.Tensor]


def words(rows: list[list[int]]) -> torch.Tensor:
    """Unsigned 32-bit words as safetensors has them: int32."""
    signed = [[struct.unpack("<i", struct.pack("<I", word))[0] for word in row] for row in rows]
    return torch.tensor(signed, dtype=torch.int32)


def packed(numbers: list[int], bits: int, order: list[int] | None = None) -> list[int]:
    """A row of numbers in words, the first in the lowest bits; the last word is filled with zeros."""
    each = 32 // bits
    made = []
    for first in range(0, len(numbers), each):
        group = numbers[first : first + each]
        if order is not None:
            group = [group[place] for place in order]
        word = 0
        for place, number in enumerate(group):
            assert 0 <= number < 1 << bits
            word |= number << (place * bits)
        made.append(word)
    return made


def transposed(rows: Codes) -> Codes:
    return [list(column) for column in zip(*rows, strict=True)]


def random_codes(source: random.Random, rows: int, columns: int, low: int, high: int) -> Codes:
    return [[source.randint(low, high) for _ in range(columns)] for _ in range(rows)]


def random_scales(source: random.Random, rows: int, columns: int, around: float, dtype: torch.dtype) -> torch.Tensor:
    values = [[around * (0.5 + source.random()) for _ in range(columns)] for _ in range(rows)]
    return torch.tensor(values, dtype=torch.float32).to(dtype)


def values(codes: Codes, zeros: Codes, scales: torch.Tensor, group_of: list[int]) -> torch.Tensor:
    """(code − zero) · scale, [N, K]; zeros and scales are [N, groups]."""
    scale = scales.float().tolist()
    rows = [
        [(code - zeros[n][g]) * scale[n][g] for code, g in zip(row, group_of, strict=True)]
        for n, row in enumerate(codes)
    ]
    return torch.tensor(rows, dtype=torch.float64).float()


# GPTQ and AWQ -------------------------------------------------------------------------------------------


def gptq(
    source: random.Random, n: int, k: int, *, bits: int, group: int, symmetric: bool, version: int, shuffled: bool
) -> Made:
    top = (1 << bits) - 1
    size = group if group > 0 else k
    groups = k // size
    codes = random_codes(source, n, k, 0, top)
    zeros = [[(top + 1) // 2] * groups for _ in range(n)] if symmetric else random_codes(source, n, groups, 0, top)
    if not symmetric:
        zeros[0][0], zeros[1][0] = 0, top
    scales = random_scales(source, n, groups, 0.5 / top, torch.float16)
    group_of = [column // size for column in range(k)]
    if shuffled:
        source.shuffle(group_of)
    stored_zeros = [[(zero - (1 if version == 1 else 0)) & top for zero in row] for row in zeros]
    tensors = {
        # Along the inputs, which run down.
        "qweight": words(transposed([packed(row, bits) for row in codes])),
        "qzeros": words([packed(row, bits) for row in transposed(stored_zeros)]),
        "scales": scales.T.contiguous(),
        "g_idx": torch.tensor(group_of, dtype=torch.int32),
    }
    return tensors, values(codes, zeros, scales, group_of)


def awq(source: random.Random, n: int, k: int, *, group: int) -> Made:
    size = group if group > 0 else k
    groups = k // size
    codes, zeros = random_codes(source, n, k, 0, 15), random_codes(source, n, groups, 0, 15)
    scales = random_scales(source, n, groups, 0.03, torch.float16)
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    tensors = {
        # Along the outputs, which run to the right.
        "qweight": words([packed(row, 4, order) for row in transposed(codes)]),
        "qzeros": words([packed(row, 4, order) for row in transposed(zeros)]),
        "scales": scales.T.contiguous(),
    }
    return tensors, values(codes, zeros, scales, [column // size for column in range(k)])


# compressed-tensors -------------------------------------------------------------------------------------


def ct_int8(source: random.Random, n: int, k: int, *, strategy: str, group: int = 0, symmetric: bool = True) -> Made:
    codes = random_codes(source, n, k, -128, 127)
    rows, columns = (1, 1) if strategy == "tensor" else (n, k // group if group else 1)
    scales = random_scales(source, rows, columns, 0.002, torch.bfloat16)
    # A zero point far from 0 that is shared by a whole tensor makes a matrix of almost rank one: float32 doesn't
    # determine such a model's logits to 1e-4 (transformers' own differed by 3e-4 from those in float64).
    least, most = (-16, 15) if strategy == "tensor" else (-128, 127)
    zeros = [[0] * columns for _ in range(rows)] if symmetric else random_codes(source, rows, columns, least, most)
    tensors = {
        "weight": torch.tensor(codes, dtype=torch.int8),
        "weight_scale": scales.view(1) if strategy == "tensor" else scales,
    }
    if not symmetric:
        stored = torch.tensor(zeros, dtype=torch.int8)
        tensors["weight_zero_point"] = stored.view(1) if strategy == "tensor" else stored
    if rows == 1:
        zeros, scales = zeros * n, scales.expand(n, 1)
    return tensors, values(codes, zeros, scales, [column // (group or k) for column in range(k)])


def ct_packed(
    source: random.Random, n: int, k: int, *, bits: int, group: int = 0, symmetric: bool = True,
    shuffled: bool = False, packed_zeros: bool = True,
) -> Made:  # fmt: skip
    half = 1 << (bits - 1)
    groups = k // group if group else 1
    codes = random_codes(source, n, k, -half, half - 1)
    zeros = [[0] * groups for _ in range(n)] if symmetric else random_codes(source, n, groups, -half, half - 1)
    scales = random_scales(source, n, groups, 0.25 / half, torch.bfloat16)
    group_of = [column // (group or k) for column in range(k)]
    if shuffled:
        source.shuffle(group_of)
    tensors = {
        "weight_packed": words([packed([code + half for code in row], bits) for row in codes]),
        "weight_scale": scales,
        "weight_shape": torch.tensor([n, k]),
    }
    if shuffled:
        tensors["weight_g_idx"] = torch.tensor(group_of, dtype=torch.int32)
    if not symmetric and packed_zeros:
        offset = [[zero + half for zero in row] for row in zeros]
        tensors["weight_zero_point"] = words(transposed([packed(column, bits) for column in transposed(offset)]))
    elif not symmetric:
        tensors["weight_zero_point"] = torch.tensor(zeros, dtype=torch.int8)
    return tensors, values(codes, zeros, scales, group_of)


# fp8 ----------------------------------------------------------------------------------------------------


def fp8_value(code: int) -> float:
    """e4m3: sign, 4 bits of exponent with a bias of 7, 3 bits of fraction; no infinities."""
    sign, exponent, fraction = -1.0 if code & 128 else 1.0, code >> 3 & 15, code & 7
    if exponent == 0:
        return sign * fraction / 8 * 2.0**-6
    return sign * (1 + fraction / 8) * 2.0 ** (exponent - 7)


def fp8(
    source: random.Random, n: int, k: int, *, block: tuple[int, int] | None, scale: str, shape: tuple[int, ...] = (),
    inputs: bool = False, dtype: torch.dtype = torch.float32,
) -> Made:  # fmt: skip
    """`shape`: how one scale is written, where there is but one."""
    codes = random_codes(source, n, k, 0, 0x77)  # up to 240
    for row in codes:
        for column in range(k):
            row[column] |= source.choice((0, 128))
    high, wide = block or (n, k)
    scales = random_scales(source, -(-n // high), -(-k // wide), 0.002, dtype)
    known = scales.float()
    rows = [[fp8_value(code) * float(known[r // high][c // wide]) for c, code in enumerate(row)]
            for r, row in enumerate(codes)]  # fmt: skip
    tensors = {
        "weight": torch.tensor(codes, dtype=torch.uint8).view(torch.float8_e4m3fn),
        scale: scales if block else scales.view(shape),
    }
    if inputs:
        tensors["input_scale"] = torch.tensor(0.0123).view(shape)
    return tensors, torch.tensor(rows, dtype=torch.float64).float()


# nvfp4 --------------------------------------------------------------------------------------------------


FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def nvfp4(source: random.Random, n: int, k: int, *, packed: bool) -> Made:
    """`packed`: as llm-compressor writes it, with the inverse of the scale of all."""
    codes = random_codes(source, n, k, 0, 15)
    scales = torch.tensor(random_codes(source, n, k // 16, 0x20, 0x57), dtype=torch.uint8)
    whole = torch.tensor(200.0 if packed else 0.005)
    known = scales.view(torch.float8_e4m3fn).float()
    known = known / whole if packed else known * whole
    rows = [[(-1.0 if code & 8 else 1.0) * FP4[code & 7] * float(known[r][c // 16]) for c, code in enumerate(row)]
            for r, row in enumerate(codes)]  # fmt: skip
    pairs = [[low | high << 4 for low, high in zip(row[::2], row[1::2], strict=True)] for row in codes]
    tensors = {
        "weight_packed" if packed else "weight": torch.tensor(pairs, dtype=torch.uint8),
        "weight_scale": scales.view(torch.float8_e4m3fn),
        "weight_global_scale" if packed else "weight_scale_2": whole.view(1) if packed else whole,
        "input_scale": torch.tensor(0.01),
    }
    return tensors, torch.tensor(rows, dtype=torch.float64).float()


# The formats ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Written:
    """A format in one of its kinds: quantization_config, and how a matrix is made."""

    config: dict[str, Any]
    make: Callable[[random.Random, int, int], Made]
    kind: str
    left_out: str = ""
    more: dict[str, Any] = field(default_factory=dict)


def _gptq(bits: int, group: int, *, symmetric: bool = True, version: int = 1, shuffled: bool = False) -> Written:
    config = {"quant_method": "gptq", "bits": bits, "group_size": group, "sym": symmetric, "desc_act": shuffled}
    config |= {"checkpoint_format": "gptq_v2"} if version == 2 else {}

    def make(source: random.Random, n: int, k: int) -> Made:
        return gptq(source, n, k, bits=bits, group=group, symmetric=symmetric, version=version, shuffled=shuffled)

    return Written(config, make, f"int{bits}")


def _awq(group: int) -> Written:
    config = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"}
    config["modules_to_not_convert"] = ["lm_head"]
    return Written(config, lambda source, n, k: awq(source, n, k, group=group), "int4")


def _ct(form: str, kind: str, make: Callable[..., Made], activations: dict[str, Any] | None, **weights: Any) -> Written:
    """As llm-compressor writes config.json, nulls included."""
    args = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "group_size": None,
            "dynamic": False, "block_structure": None, "actorder": None, "observer": "minmax"} | weights  # fmt: skip
    group = {"targets": ["Linear"], "weights": args, "input_activations": activations, "output_activations": None}
    config = {"quant_method": "compressed-tensors", "format": form, "quantization_status": "compressed",
              "config_groups": {"group_0": group}, "ignore": ["lm_head"], "kv_cache_scheme": None,
              "sparsity_config": {}, "transform_config": {}}  # fmt: skip
    return Written(config, make, kind)


_PER_ROW = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
_FIXED = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "tensor", "dynamic": False}
_DEEPSEEK = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [24, 40]}

WRITTEN: dict[str, Written] = {
    "gptq 4 bits": _gptq(4, 16),
    "gptq 4 bits asymmetric": _gptq(4, 16, symmetric=False),
    "gptq 4 bits, inputs in any order": _gptq(4, 16, symmetric=False, shuffled=True),
    "gptq 4 bits, one group": _gptq(4, -1, symmetric=False),
    "gptq_v2 4 bits": _gptq(4, 32, symmetric=False, version=2),
    "gptq 8 bits": _gptq(8, 32),
    "gptq 8 bits asymmetric": _gptq(8, 16, symmetric=False, shuffled=True),
    "awq": _awq(16),
    "awq, one group": _awq(-1),
    "W8A8": _ct("int-quantized", "int8", lambda s, n, k: ct_int8(s, n, k, strategy="channel"), _PER_ROW),
    "W8A8, a scale a tensor": _ct(
        "int-quantized", "int8", lambda s, n, k: ct_int8(s, n, k, strategy="tensor", symmetric=False), _PER_ROW,
        strategy="tensor", symmetric=False,
    ),
    "W8 in groups, asymmetric": _ct(
        "int-quantized", "int8", lambda s, n, k: ct_int8(s, n, k, strategy="group", group=16, symmetric=False), None,
        strategy="group", group_size=16, symmetric=False,
    ),
    "W8 packed": _ct("pack-quantized", "int8", lambda s, n, k: ct_packed(s, n, k, bits=8), None, num_bits=8),
    "W4 packed": _ct(
        "pack-quantized", "int4", lambda s, n, k: ct_packed(s, n, k, bits=4, group=16), None,
        num_bits=4, strategy="group", group_size=16,
    ),
    "W4 packed asymmetric": _ct(
        "pack-quantized", "int4", lambda s, n, k: ct_packed(s, n, k, bits=4, group=16, symmetric=False), None,
        num_bits=4, strategy="group", group_size=16, symmetric=False,
    ),
    "W4 packed, zeros as they are": _ct(
        "pack-quantized", "int4",
        lambda s, n, k: ct_packed(s, n, k, bits=4, group=32, symmetric=False, packed_zeros=False), None,
        num_bits=4, strategy="group", group_size=32, symmetric=False,
    ),
    "W4 packed, sorted inputs": _ct(
        "pack-quantized", "int4", lambda s, n, k: ct_packed(s, n, k, bits=4, group=16, shuffled=True), None,
        num_bits=4, strategy="group", group_size=16, actorder="group",
    ),
    "W8A8 fp8, a scale a tensor": _ct(
        "float-quantized", "fp8",
        lambda s, n, k: fp8(s, n, k, block=None, scale="weight_scale", shape=(1,), inputs=True), _FIXED,
        type="float", strategy="tensor",
    ),
    "W8A8 fp8, a scale a row": _ct(
        "float-quantized", "fp8",
        lambda s, n, k: fp8(s, n, k, block=(1, k), scale="weight_scale", dtype=torch.bfloat16), _PER_ROW,
        type="float",
    ),
    "fp8 in blocks, compressed-tensors": _ct(
        "float-quantized", "fp8", lambda s, n, k: fp8(s, n, k, block=(24, 40), scale="weight_scale"), None,
        type="float", strategy="block", block_structure=[24, 40],
    ),
    "fp8 in blocks": Written(
        _DEEPSEEK, lambda s, n, k: fp8(s, n, k, block=(24, 40), scale="weight_scale_inv"), "fp8"
    ),
    "fp8, a scale a tensor": Written(
        {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]},
        lambda s, n, k: fp8(s, n, k, block=None, scale="weight_scale", inputs=True), "fp8",
    ),
    "nvfp4 of ModelOpt": Written(
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", "model.vision*"]},
        lambda s, n, k: nvfp4(s, n, k, packed=False), "nvfp4",
    ),
    "nvfp4 of llm-compressor": _ct(
        "nvfp4-pack-quantized", "nvfp4", lambda s, n, k: nvfp4(s, n, k, packed=True), None,
        num_bits=4, type="float", strategy="tensor_group", group_size=16,
    ),
}  # fmt: skip
