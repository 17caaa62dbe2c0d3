"""Linears as compiled loops against plain torch, and law 3: a row's bits are the same in any batch.

`use` forces what CPUs without the dot instructions run."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from kernels.cpu_instructions import ALL, Instructions
from kernels.cpu_program import ROWS, STEP_WORDS, WANTED_COUNT, Op, Program
from kernels.linear import reference
from kernels.linear.cpu import ADD, GATE, STORE, LinearPlaces, Rows, follow, input_dtype, linear, path, quantize_rows
from kernels.linear.packing import (
    BLOCK,
    ORDINARY,
    PackedMemory,
    PackedWeight,
    blocks_of_a_chunk,
    pack,
    pack_mxfp4,
)

KINDS = ("float32", "bfloat16", "int8")
INPUTS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.bfloat16}
# Of the largest output; sums are float32 over bfloat16's products, which are exact but for their two roundings.
TOLERANCE = {"float32": 2e-6, "bfloat16": 4e-6, "int8": 4e-7}
MANY_ROWS = [*range(1, 71), 128, 257, 512]
POISON = float("nan")

# What changes no bits between processors, and what every one has.
SAME_BITS = Instructions(bfloat16=False)
NARROW = Instructions(tiles=False, bfloat16=False, wide=False)
variants = pytest.mark.parametrize("use", [ALL, NARROW], ids=["native", "portable"])
kinds = pytest.mark.parametrize("kind", KINDS)


def run(one: Op, rows: int, rows_at: int = ROWS) -> None:
    """All chunks of an op, the last one first: their order must not matter."""
    step, words = np.zeros(STEP_WORDS, np.int64), np.asarray(one.words, np.int64)
    step[rows_at] = rows
    for chunk in reversed(range(one.chunks(words.ctypes.data, step.ctypes.data))):
        one.run(words.ctypes.data, step.ctypes.data, chunk, 0)


def padded(values: torch.Tensor, more: int = 5) -> torch.Tensor:
    """The same rows, in a buffer with poison behind each."""
    buffer = torch.full((len(values), values.shape[1] + more), 77 if values.dtype == torch.uint8 else POISON)
    buffer = buffer.to(values.dtype)
    buffer[:, : values.shape[1]] = values
    return buffer[:, : values.shape[1]]


def rows_of(x: torch.Tensor, scales: torch.Tensor | None = None) -> Rows:
    return Rows(x.data_ptr(), x.stride(0) * x.element_size(), 0 if scales is None else scales.data_ptr())


def inputs_of(kind: str, x: torch.Tensor, use: Instructions = ALL) -> tuple[Rows, list[torch.Tensor]]:
    """Rows as linears of this kind read them, and the memory behind them."""
    if kind != "int8":
        if x.dtype != input_dtype(kind, use):
            x = padded(x.to(input_dtype(kind, use)))
        return rows_of(x), [x]
    bytes_ = padded(torch.zeros(x.shape, dtype=torch.uint8))
    scales = torch.full((len(x),), POISON)
    run(quantize_rows(rows_of(x), x.dtype, x.shape[1], rows_of(bytes_, scales)), len(x))
    return rows_of(bytes_, scales), [bytes_, scales]


def outputs(
    weight: PackedWeight,
    x: torch.Tensor,
    dtype: torch.dtype = torch.float32,
    ending: str = STORE,
    out: torch.Tensor | None = None,
    use: Instructions = ALL,
    **more: object,
) -> torch.Tensor:
    inputs, keep = inputs_of(weight.kind, x, use)
    out = padded(torch.full((len(x), weight.outputs), POISON, dtype=dtype)) if out is None else out
    run(linear(weight, inputs, rows_of(out), dtype, ending, use=use, **more), len(x))
    behind = out.as_strided((len(out), 5), out.stride(), weight.outputs)
    assert bool(behind.isnan().all()), "written behind a row"
    del keep
    return out


def truth(kind: str, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    if kind == "int8":
        return reference.linear_int8(x, weight, bias)
    return reference.linear(x.double(), weight.double(), bias)


def close(kind: str, out: torch.Tensor, expected: torch.Tensor) -> bool:
    expected = expected.float()
    return bool((out - expected).abs().max() <= TOLERANCE[kind] * expected.abs().max() * 8)


def draw(kind: str, *shape: int) -> torch.Tensor:
    return torch.randn(shape).to(INPUTS[kind])


@variants
@kinds
@pytest.mark.parametrize(
    "rows, outputs_, width",
    [(1, 32, 64), (5, 77, 67), (8, 1, 1), (3, 31, 2), (9, 33, 3), (17, 960, 576), (2, 50, 1), (40, 100, 33)],
)
def test_outputs_are_the_reference_of_any_shape(
    kind: str, use: Instructions, rows: int, outputs_: int, width: int
) -> None:
    x, weight, bias = padded(draw(kind, rows, width)), draw(kind, outputs_, width), torch.randn(outputs_)
    out = outputs(pack(weight, kind, bias), x, use=use)
    assert close(kind, out, truth(kind, x, weight, bias))


def cancelling(kind: str, rows: int, outputs_: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and weights whose exact products sum to 0: what comes out is rounding alone, and so the order of sums."""
    generator = torch.Generator().manual_seed(3)
    order = torch.randperm(width, generator=generator)
    x = torch.randn(rows, width // 2, generator=generator)
    weight = torch.randn(outputs_, width // 2, generator=generator)
    x, weight = torch.cat([x, x], 1)[:, order], torch.cat([weight, -weight], 1)[:, order]
    return x.to(INPUTS[kind]).contiguous(), weight.to(INPUTS[kind]).contiguous()


@variants
@kinds
def test_a_row_has_the_same_bits_in_any_number_of_rows(kind: str, use: Instructions) -> None:
    x, weight = cancelling(kind, max(MANY_ROWS), 80, 358)
    packed = pack(weight, kind)
    alone = torch.cat([outputs(packed, x[row : row + 1], use=use) for row in range(len(x))])
    if kind != "int8":
        assert bool((alone != 0).any()), "the sums must show their order"
    for rows in MANY_ROWS:
        assert torch.equal(outputs(packed, x[:rows], use=use), alone[:rows]), rows
    # Another place in the batch.
    assert torch.equal(outputs(packed, x[100:139], use=use), alone[100:139])


@kinds
def test_instructions_that_are_said_to_change_no_bits_change_none(kind: str) -> None:
    """Vectors of 512 bits, products of bytes and their tiles: a processor that has them gives the text of one that has
    not. Bytes in whole tiles, so that these are used where they are."""
    x, weight = cancelling(kind, 70, 80, 384)
    packed = pack(weight, kind)
    narrow = outputs(packed, x, use=NARROW)
    assert kind == "int8" or bool((narrow != 0).any()), "the sums must show their order"
    for rows in (1, 2, 7, 8, 17, 70):
        assert torch.equal(outputs(packed, x[:rows], use=SAME_BITS), narrow[:rows]), rows


@pytest.mark.parametrize("rows, width", [(1, 1), (2, 67), (3, 358), (17, 576), (70, 33)])
def test_weights_in_bfloat16_and_inputs_in_float32_give_the_bits_of_float32(rows: int, width: int) -> None:
    """That is what a CPU without the instruction runs: its text is that of float32, from half the memory."""
    x, weight = torch.randn(rows, width), torch.randn(80, width).bfloat16()
    run_in = [outputs(pack(weight, kind), x, use=NARROW) for kind in ("bfloat16", "float32")]
    assert torch.equal(*run_in)


def coded(outputs_: int, width: int, seed: int = 3) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes and scales of mxfp4, and the numbers that they stand for; those of output 0 are as large and small as can
    be."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 16, (outputs_, width), generator=generator, dtype=torch.uint8)
    scales = torch.randint(ORDINARY.start, ORDINARY.stop, (outputs_, width // 32), generator=generator)
    scales[1:] = scales[1:] % 20 + 120
    numbers = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])[codes.int()]
    dense = numbers * torch.exp2(scales - 127.0).repeat_interleave(32, 1)
    return codes[:, 0::2] | (codes[:, 1::2] << 4), scales.to(torch.uint8), dense.bfloat16()


@variants
@pytest.mark.parametrize("ending", [STORE, GATE])
def test_weights_in_mxfp4_give_the_bits_of_the_same_weights_in_bfloat16(use: Instructions, ending: str) -> None:
    """In any number of rows."""
    gated, x = ending == GATE, padded(torch.randn(90, 96).bfloat16())
    given = [coded(74, 96, seed) for seed in range(2)]
    for one in given:
        packed = pack_mxfp4([one[0]], [one[1]], [torch.ones(74)], gated)
        dense = pack(one[2], "bfloat16", torch.ones(74), gated=gated)
        for rows in (1, 2, 3, 5, 8, 9, 17, 64, 90):
            found, expected = (
                outputs(each, x[:rows], ending=ending, use=use, activation="clamped_swiglu", limit=7.0)
                for each in (packed, dense)
            )
            assert torch.equal(found.nan_to_num(), expected.nan_to_num()), rows
            assert torch.equal(found.isnan(), expected.isnan())
    assert packed.weight.nbytes * 64 == dense.weight.nbytes * 17


@variants
@kinds
def test_more_rows_than_are_read_at_once_change_no_bits(kind: str, use: Instructions) -> None:
    """Wide inputs go through in groups of few rows."""
    x, weight = cancelling(kind, 90, 40, 12_002)
    packed = pack(weight, kind)
    whole = outputs(packed, x, use=use)
    for row in (0, 7, 8, 15, 16, 47, 89):
        assert torch.equal(outputs(packed, x[row : row + 1], use=use)[0], whole[row]), row


@variants
@kinds
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_endings_are_the_plain_sums_turned_into_outputs(kind: str, use: Instructions, dtype: torch.dtype) -> None:
    x, weight = draw(kind, 11, 70), draw(kind, 90, 70)
    plain = outputs(pack(weight, kind), x, use=use)
    assert torch.equal(outputs(pack(weight, kind), x, dtype, use=use), plain.to(dtype))

    residual = padded(torch.randn(11, 90))
    expected = residual + plain
    assert torch.equal(outputs(pack(weight, kind), x, ending=ADD, out=residual, use=use), expected)

    rtol = 1e-6 if dtype == torch.float32 else 2**-8
    gate, up = plain.double().chunk(2, 1)
    silu, gelu = torch.nn.functional.silu(gate), torch.nn.functional.gelu(gate, approximate="tanh")
    cut = gate.clamp(max=4.0)
    clamped = cut * torch.sigmoid(1.702 * cut) * (up.clamp(-4.0, 4.0) + 1.0)
    for activation, expected in (("silu", silu * up), ("gelu_tanh", gelu * up), ("clamped_swiglu", clamped)):
        more = {"use": use, "activation": activation, "limit": 4.0}
        gated = outputs(pack(weight, kind, gated=True), x, dtype, GATE, **more)
        assert gated.shape == (11, 45)
        torch.testing.assert_close(gated.double(), expected, rtol=rtol, atol=1e-6)


@variants
@kinds
@pytest.mark.parametrize("ending, dtype", [(STORE, torch.bfloat16), (ADD, torch.float32), (GATE, torch.bfloat16)])
def test_endings_keep_a_rows_bits_in_any_batch(kind: str, use: Instructions, ending: str, dtype: torch.dtype) -> None:
    x, weight = draw(kind, 70, 66), draw(kind, 74, 66)
    packed = pack(weight, kind, torch.randn(74), gated=ending == GATE)

    def made(first: int, end: int) -> torch.Tensor:
        out = None
        if ending == ADD:
            out = padded(torch.arange(70 * 74).reshape(70, 74) / 7)[first:end]
        return outputs(packed, x[first:end], dtype, ending, out, use=use)

    whole = made(0, 70)
    for row in range(70):
        assert torch.equal(made(row, row + 1)[0], whole[row]), row
    for rows in (2, 3, 9, 16, 31, 64):
        assert torch.equal(made(0, rows), whole[:rows]), rows


@variants
def test_int8_sums_are_exact_to_the_last_integer(use: Instructions) -> None:
    """Extremes on both sides, and more inputs than float32 could count."""
    rows, outputs_, width = 7, 40, 3001
    bytes_ = torch.randint(0, 256, (rows, width), dtype=torch.uint8)
    weight = torch.randint(-127, 128, (outputs_, width), dtype=torch.int8)
    bytes_[0], weight[0] = 255, 127
    bytes_[1], weight[1] = 0, -127
    packed = pack(weight, "int8", scales=torch.ones(outputs_))
    scales, out = torch.ones(rows), torch.full((rows, outputs_), POISON)
    run(linear(packed, rows_of(bytes_, scales), rows_of(out), torch.float32, use=use), rows)
    assert torch.equal(out, ((bytes_.long() - 128) @ weight.long().T).float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [1, 15, 64, 579])
def test_quantized_rows_are_the_reference_to_the_bit(dtype: torch.dtype, width: int) -> None:
    x = (torch.randn(13, width) * 3).to(dtype)
    x[4], x[5, 0] = 0, 1e30
    bytes_ = padded(torch.zeros(13, width, dtype=torch.uint8))
    scales = torch.full((13,), POISON)
    run(quantize_rows(rows_of(x), dtype, width, rows_of(bytes_, scales)), 13)
    expected, expected_scales = reference.quantize_rows(x)
    assert torch.equal(bytes_, expected)
    assert torch.equal(scales, expected_scales)
    assert bool((bytes_.as_strided((13, 5), bytes_.stride(), width) == 77).all())


@kinds
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_row_that_is_not_finite_spoils_itself_alone(kind: str, bad: float) -> None:
    x, weight = draw(kind, 9, 70), draw(kind, 64, 70)
    good = outputs(pack(weight, kind), x)
    x[3, 69] = bad
    out = outputs(pack(weight, kind), x)
    assert not bool(out[3].isfinite().any())
    others = [row for row in range(9) if row != 3]
    assert torch.equal(out[others], good[others])


@kinds
def test_experts_take_the_rows_that_chose_them(kind: str) -> None:
    places = np.array([0, 3, 3, 20, 21], np.int32)
    weights, x = [draw(kind, 90, 66) for _ in range(4)], draw(kind, 21, 66)
    packed = pack(weights, kind, gated=True)
    chosen = np.array([0, 2, 3, -1], np.int32)
    whose = LinearPlaces(places.ctypes.data, chosen.ctypes.data, 1)
    out = outputs(packed, x, torch.bfloat16, GATE, places=whose)
    for expert, (first, end) in enumerate(pairwise(places)):
        if first < end:
            alone = outputs(pack(weights[expert], kind, gated=True), x[first:end], torch.bfloat16, GATE)
            assert torch.equal(out[first:end], alone), expert


@kinds
def test_threads_of_a_program_make_the_same_bits_as_one_after_the_other(kind: str) -> None:
    x, weights = draw(kind, 19, 96), [draw(kind, 500, 96), draw(kind, 256, 96)]
    inputs, keep = inputs_of(kind, x)
    memory = PackedMemory(1 << 20)
    outs = [torch.full((19, len(weight)), POISON) for weight in weights]
    ops = [
        linear(pack(weight, kind, memory=memory), inputs, rows_of(out), torch.float32, rows_at=WANTED_COUNT, threads=3)
        for weight, out in zip(weights, outs, strict=True)
    ]
    follow(ops)
    for one in ops:
        run(one, 19, WANTED_COUNT)
    expected = [out.clone() for out in outs]
    program = Program(ops, 3)
    try:
        for rows in (19, 1, 0, 8):
            for out in outs:
                out.fill_(POISON)
            program.step[WANTED_COUNT] = rows
            program.run()
            for out, right in zip(outs, expected, strict=True):
                assert torch.equal(out[:rows], right[:rows])
                assert bool(out[rows:].isnan().all())
    finally:
        program.close()
    del keep


def test_memory_hands_out_whole_pages_that_nobody_else_has() -> None:
    memory = PackedMemory(64 << 10)
    pieces = [memory.take(size) for size in (100, 5000, 60 << 10, 1 << 20, 1)]
    for value, piece in enumerate(pieces, 1):
        assert piece.data_ptr() % 4096 == 0 and not bool(piece.any())
        piece.fill_(value)
    assert all(bool((piece == value).all()) for value, piece in enumerate(pieces, 1))


def test_a_gated_weight_is_used_as_one() -> None:
    with pytest.raises(ValueError, match="gated"):
        linear(pack(torch.zeros(64, 64), "float32"), Rows(0, 0), Rows(0, 0), torch.float32, GATE)


def test_chunks_are_even_and_short() -> None:
    # SmolLM2's qkv, gate_up and down in bfloat16.
    for blocks, steps in ((30, 288), (96, 288), (18, 768), (1536, 288)):
        size = blocks_of_a_chunk(blocks, steps * 4 * BLOCK, threads=2)
        chunks = -(-blocks // size)
        assert chunks % 2 == 0 and chunks >= 6
        assert size * steps * 4 * BLOCK <= 128 << 10
    # A block that is longer than a chunk should be is a chunk.
    assert blocks_of_a_chunk(7, 1 << 20, threads=2) == 1


def test_the_path_says_what_runs() -> None:
    assert {path(kind) for kind in KINDS} <= {"amx", "avx512", "avx512_bf16", "avx512_vnni", "portable"}
