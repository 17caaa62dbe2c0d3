"""The GGUF reader: values against a slow decoder written from the block definitions, and broken files."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path

import gguf_writer as writer
import numpy as np
import pytest

from models.gguf import ENCODINGS, GgufError, GgufFile


def half(block: bytes, at: int) -> float:
    return struct.unpack_from("<e", block, at)[0]


def f32(block: bytes) -> list[float]:
    return [struct.unpack("<f", block)[0]]


def f16(block: bytes) -> list[float]:
    return [half(block, 0)]


def bf16(block: bytes) -> list[float]:
    return [struct.unpack("<f", b"\0\0" + block)[0]]


def q4_0(block: bytes) -> list[float]:
    codes = [b & 15 for b in block[2:]] + [b >> 4 for b in block[2:]]
    return [half(block, 0) * (code - 8) for code in codes]


def q4_1(block: bytes) -> list[float]:
    codes = [b & 15 for b in block[4:]] + [b >> 4 for b in block[4:]]
    return [half(block, 0) * code + half(block, 2) for code in codes]


def q5_0(block: bytes) -> list[float]:
    high = struct.unpack_from("<I", block, 2)[0]
    codes = [b & 15 for b in block[6:]] + [b >> 4 for b in block[6:]]
    return [half(block, 0) * ((code | (high >> i & 1) << 4) - 16) for i, code in enumerate(codes)]


def q5_1(block: bytes) -> list[float]:
    high = struct.unpack_from("<I", block, 4)[0]
    codes = [b & 15 for b in block[8:]] + [b >> 4 for b in block[8:]]
    return [half(block, 0) * (code | (high >> i & 1) << 4) + half(block, 2) for i, code in enumerate(codes)]


def q8_0(block: bytes) -> list[float]:
    return [half(block, 0) * code for code in struct.unpack_from("<32b", block, 2)]


UNEVEN = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def iq4_nl(block: bytes) -> list[float]:
    codes = [b & 15 for b in block[2:]] + [b >> 4 for b in block[2:]]
    return [half(block, 0) * UNEVEN[code] for code in codes]


def q2_k(block: bytes) -> list[float]:
    scales, codes, step, offset = block[:16], block[16:80], half(block, 80), half(block, 82)
    out = []
    for i in range(256):
        code = codes[i // 128 * 32 + i % 32] >> 2 * (i % 128 // 32) & 3
        scale = scales[i // 16]
        out.append(step * (scale & 15) * code - offset * (scale >> 4))
    return out


def q3_k(block: bytes) -> list[float]:
    third, codes, packed, step = block[:32], block[32:96], block[96:108], half(block, 108)
    out = []
    for i in range(256):
        code = codes[i // 128 * 32 + i % 32] >> 2 * (i % 128 // 32) & 3
        code += 4 * (third[i % 32] >> i // 32 & 1)
        group = i // 16
        scale = packed[group % 8] >> 4 * (group // 8) & 15
        scale += 16 * (packed[8 + group % 4] >> 2 * (group // 4) & 3)
        out.append(step * (scale - 32) * (code - 4))
    return out


def q5_k(block: bytes) -> list[float]:
    # A Q4_K block whose fifth bits lie before its nibbles.
    fours = q4_k(block[:16] + block[48:])
    out = []
    for i, four in enumerate(fours):
        fifth = block[16 + i % 32] >> i // 32 & 1
        out.append(four + 16 * fifth * q4_k_scale(block, i // 32))
    return out


def q4_k_scale(block: bytes, group: int) -> float:
    packed = block[4:16]
    if group < 4:
        return half(block, 0) * (packed[group] & 63)
    return half(block, 0) * (packed[group + 4] & 15 | packed[group - 4] >> 6 << 4)


def iq4_xs(block: bytes) -> list[float]:
    step, pairs, low, codes = half(block, 0), struct.unpack_from("<H", block, 2)[0], block[4:8], block[8:]
    out = []
    for i in range(256):
        group, lane = i // 32, i % 32
        scale = low[group // 2] >> 4 * (group % 2) & 15 | (pairs >> 2 * group & 3) << 4
        byte = codes[group * 16 + lane % 16]
        out.append(step * (scale - 32) * UNEVEN[byte >> 4 if lane >= 16 else byte & 15])
    return out


def q4_k(block: bytes) -> list[float]:
    step, offset, packed, codes = half(block, 0), half(block, 2), block[4:16], block[16:]
    out = []
    for i in range(256):
        group = i // 32
        if group < 4:
            scale, minimum = packed[group] & 63, packed[group + 4] & 63
        else:
            scale = packed[group + 4] & 15 | packed[group - 4] >> 6 << 4
            minimum = packed[group + 4] >> 4 | packed[group] >> 6 << 4
        byte = codes[i // 64 * 32 + i % 32]
        code = byte >> 4 if i % 64 >= 32 else byte & 15
        out.append(step * scale * code - offset * minimum)
    return out


def q6_k(block: bytes) -> list[float]:
    low, high, scales, step = block[:128], block[128:192], struct.unpack_from("<16b", block, 192), half(block, 208)
    out = []
    for i in range(256):
        part, place = i // 128, i % 128
        quarter, lane = place // 32, place % 32
        byte = low[part * 64 + lane + (32 if quarter % 2 else 0)]
        nibble = byte >> 4 if quarter >= 2 else byte & 15
        pair = high[part * 32 + lane] >> 2 * quarter & 3
        out.append(step * scales[i // 16] * ((nibble | pair << 4) - 32))
    return out


SLOW: dict[int, Callable[[bytes], list[float]]] = {
    0: f32, 1: f16, 2: q4_0, 3: q4_1, 6: q5_0, 7: q5_1, 8: q8_0, 10: q2_k, 11: q3_k, 12: q4_k, 13: q5_k,
    14: q6_k, 20: iq4_nl, 23: iq4_xs, 30: bf16,
}  # fmt: skip
# Where a block keeps its float16 numbers: random bits there could be infinite.
HALVES = {
    1: [0], 2: [0], 3: [0, 2], 6: [0], 7: [0, 2], 8: [0], 10: [80, 82], 11: [108], 12: [0, 2], 13: [0, 2],
    14: [208], 20: [0], 23: [0],
}  # fmt: skip


def random_block(kind: int, source: random.Random) -> bytes:
    if kind == 0:
        return struct.pack("<f", source.gauss(0, 1))
    if kind == 30:
        return struct.pack("<f", source.gauss(0, 1))[2:]
    block = bytearray(source.randbytes(ENCODINGS[kind].bytes))
    for at in HALVES[kind]:
        struct.pack_into("<e", block, at, source.gauss(0, 0.1))
    return bytes(block)


def test_every_encoding_has_a_slow_twin_here() -> None:
    assert SLOW.keys() == ENCODINGS.keys()


@pytest.mark.parametrize("kind", SLOW, ids=lambda kind: ENCODINGS[kind].name)
def test_values_equal_the_block_definition(kind: int, tmp_path: Path) -> None:
    source = random.Random(kind)
    columns, rows = ENCODINGS[kind].block * 3, 5
    blocks = [random_block(kind, source) for _ in range(3 * rows)]
    path = tmp_path / "a.gguf"
    path.write_bytes(writer.gguf_bytes({}, {"t": ((rows, columns), kind, b"".join(blocks))}))

    values = GgufFile(path).values("t")

    expected = np.array([x for block in blocks for x in SLOW[kind](block)]).reshape(rows, columns)
    np.testing.assert_allclose(values, expected, rtol=1e-6, atol=1e-7)


def test_some_rows_equal_those_of_the_whole(tmp_path: Path) -> None:
    source = random.Random(1)
    path = tmp_path / "a.gguf"
    raw = b"".join(random_block(3, source) for _ in range(14))
    path.write_bytes(writer.gguf_bytes({}, {"t": ((7, 64), 3, raw)}))
    file = GgufFile(path)
    np.testing.assert_array_equal(file.values("t", 2, 5), file.values("t")[2:5])
    np.testing.assert_array_equal(file.values("t", 5, 99), file.values("t")[5:])


def test_metadata_is_read_as_written(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    metadata = {"a": "text ü", "b": 7, "c": 0.5, "d": True, "e": ["x", "", "z"], "f": [1, -2], "g": []}
    path.write_bytes(writer.gguf_bytes(metadata, {}))
    assert GgufFile(path).metadata == metadata


# Broken files: each is refused with GgufError, none crashes or allocates what it claims -------------------


def refused(tmp_path: Path, raw: bytes) -> str:
    path = tmp_path / "broken.gguf"
    path.write_bytes(raw)
    with pytest.raises(GgufError) as caught:
        GgufFile(path)
    assert "broken.gguf" in str(caught.value)
    return str(caught.value)


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    whole = writer.gguf_bytes({"a": "b", "l": ["x", "y"]}, {"t": ((2, 32), 0, b"\1" * 256)})
    for length in range(0, len(whole) - 1):
        refused(tmp_path, whole[:length])


def test_another_file_is_refused(tmp_path: Path) -> None:
    assert "does not begin with GGUF" in refused(tmp_path, b"PK\3\4" + b"\0" * 100)
    assert "version 9" in refused(tmp_path, b"GGUF" + struct.pack("<IQQ", 9, 0, 0))


def test_absurd_counts_and_lengths_are_refused(tmp_path: Path) -> None:
    huge = 1 << 62
    head = b"GGUF" + struct.pack("<I", 3)
    refused(tmp_path, head + struct.pack("<QQ", huge, 0))
    refused(tmp_path, head + struct.pack("<QQ", 0, huge))
    one_entry = head + struct.pack("<QQ", 0, 1)
    refused(tmp_path, one_entry + struct.pack("<Q", huge) + b"a")
    refused(tmp_path, one_entry + writer.string("k") + struct.pack("<IIQ", 9, 4, huge))
    refused(tmp_path, one_entry + writer.string("k") + struct.pack("<IIQ", 9, 8, huge))
    refused(tmp_path, one_entry + writer.string("k") + struct.pack("<IIQ", 9, 9, 1))
    refused(tmp_path, one_entry + writer.string("k") + struct.pack("<I", 77))


def test_a_tensor_of_unknown_type_or_bad_shape_is_refused(tmp_path: Path) -> None:
    assert "type 16" in refused(tmp_path, writer.gguf_bytes({}, {"t": ((2, 256), 16, b"")}))
    assert "cannot be Q4_0" in refused(tmp_path, writer.gguf_bytes({}, {"t": ((2, 33), 2, b"\0" * 40)}))
    assert "dimensions" in refused(tmp_path, writer.gguf_bytes({}, {"t": ((1, 1, 1, 1, 1), 0, b"\0" * 4)}))
    refused(tmp_path, writer.gguf_bytes({}, {"t": ((0, 4), 0, b"")}))
    refused(tmp_path, writer.gguf_bytes({}, {"t": ((1 << 40, 1 << 40), 0, b"")}))


def test_an_absurd_alignment_is_refused(tmp_path: Path) -> None:
    assert "alignment" in refused(tmp_path, writer.gguf_bytes({"general.alignment": 0}, {}))


def test_flipped_bytes_never_do_more_than_refuse(tmp_path: Path) -> None:
    source = random.Random(5)
    whole = writer.gguf_bytes({"a": "b", "l": ["x", "y"], "n": 3}, {"t": ((2, 32), 0, b"\1" * 256)})
    path = tmp_path / "flipped.gguf"
    for _ in range(2000):
        raw = bytearray(whole)
        for _ in range(source.randint(1, 4)):
            raw[source.randrange(len(raw))] = source.randrange(256)
        path.write_bytes(raw)
        try:
            file = GgufFile(path)
            for name in file.tensors:
                file.values(name)
        except GgufError:
            pass
