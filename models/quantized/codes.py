"""Small whole numbers in 32-bit words, taken out of them; and what the formats share in checking values.

Words are little-endian: the first code of a word stands in its lowest bits, so a row of words seen as bytes is
a row of codes (8 bits), or of pairs with the first in the low half (4 bits).
"""

from __future__ import annotations

import torch

from models.errors import ModelError
from models.quantized.format import Matrix
from models.quantized.stored import CENTRE

KIND = {4: "int4", 8: "int8"}


def bytes_of(words: torch.Tensor) -> torch.Tensor:  # [R, W] int32 -> [R, 4 W] uint8
    words = words.contiguous()
    if words.stride(-1) != 1:
        # A cut row of one word counts as contiguous whatever its step.
        words = words.clone(memory_format=torch.contiguous_format)
    return words.view(torch.uint8)


def codes_of(words: torch.Tensor, bits: int) -> torch.Tensor:  # [R, W] int32 -> [R, W · 32 / bits] uint8
    packed = bytes_of(words)
    return packed if bits == 8 else torch.stack((packed & 15, packed >> 4), dim=-1).view(len(words), -1)


def in_pairs(codes: torch.Tensor) -> torch.Tensor:  # [N, K] uint8 -> [N, K/2] uint8
    return codes[:, 0::2] | (codes[:, 1::2] << 4)


def signed(codes: torch.Tensor) -> torch.Tensor:
    """0..255 -> -128..127."""
    return (codes ^ 128).view(torch.int8)


def zeros_of(codes: torch.Tensor, bits: int) -> torch.Tensor | None:
    """Zeros [N, groups] as StoredPart wants them, from unsigned codes; None where all are the centre."""
    zeros = codes.short() - (128 if bits == 8 else 0)
    return None if bool((zeros == CENTRE[KIND[bits]]).all()) else zeros.contiguous()


def groups_from(matrix: Matrix, index: torch.Tensor | None, group_size: int, groups: int) -> torch.Tensor | None:
    """The group of each input, from a file's g_idx; None where groups are neighbours."""
    if index is None:
        return None
    if bool(((index < 0) | (index >= groups)).any()):
        raise ModelError(f"tensor {matrix.name}.g_idx points outside its {groups} groups", "fetch the folder again")
    neighbours = torch.arange(matrix.inputs) // (group_size or matrix.inputs)
    return None if torch.equal(index.long(), neighbours) else index.to(torch.int32)


def finite(matrix: Matrix, key: str, scales: torch.Tensor) -> torch.Tensor:
    """Scales are few, and one that isn't a number spoils all it is multiplied with."""
    if not bool(torch.isfinite(scales.float()).all()):
        raise ModelError(f"tensor {matrix.name}.{key} has a value that is not finite", "fetch the folder again")
    return scales


def over_groups(values: torch.Tensor) -> torch.Tensor:
    """[], [1] or [N] -> [1, 1] or [N, 1]; what has groups stays."""
    return values if values.dim() == 2 else values.view(-1, 1)
