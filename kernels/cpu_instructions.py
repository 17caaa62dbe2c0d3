"""Which of the processor's instructions compiled loops may use, where there are several for the same sums.

Those for bfloat16 round in ways of their own: tiles of AMX in one, products of pairs in another. Fused multiply-adds of
float32 give the same bits in vectors of any width, and sums of int8 are exact in all.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Instructions:
    # Tiles of AMX.
    tiles: bool = True
    # Those for bfloat16, tiles or not. Without them numbers between weights are float32.
    bfloat16: bool = True
    # Those of AVX-512, for float32 and bytes: they change no bits.
    wide: bool = True


ALL = Instructions()
