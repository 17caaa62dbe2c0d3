"""The sums of up to 32 rows and a block of 32 outputs with AMX (kernels/amx.py), from the weights as they lie: 16 steps
of a block are two tiles whose rows are 128 bytes apart.

    rows 0..15     A0 ·  B0 │ B1   ->   C00 │ C01
    rows 16..31    A1 ·                 C10 │ C11

Only whole tiles: 16 words of 32 bits of each row.
"""

from __future__ import annotations

from typing import Any

import numba

from kernels import amx
from kernels import cpu_vectors as v
from kernels.linear.tiles import STEP_BYTES

# Rows at once, and steps of a product.
ROWS, STEPS = 2 * amx.ROWS, 16
# Lines of memory that a product of one tile of rows asks for: as many as it reads.
LINES = STEPS * STEP_BYTES // 64
_C00, _C01, _C10, _C11, _A0, _A1, _B0, _B1 = range(8)
_WIDTHS = sum(amx.ROW_BYTES << 16 * place for place in range(4))

_load_c00, _load_c01, _load_c10, _load_c11 = (amx.load(tile) for tile in (_C00, _C01, _C10, _C11))
_store_c00, _store_c01, _store_c10, _store_c11 = (amx.store(tile) for tile in (_C00, _C01, _C10, _C11))
_load_a0, _load_a1, _load_b0, _load_b1 = (amx.load(tile) for tile in (_A0, _A1, _B0, _B1))


@numba.njit
def configure(state, count):
    """For `count` (1 to 32) rows: nothing behind the last one is read."""
    first = min(count, amx.ROWS)
    second = count - amx.ROWS if count > amx.ROWS else amx.ROWS
    rows = first | first << 8 | second << 16 | second << 24 | first << 32 | second << 40 | 16 << 48 | 16 << 56
    amx.configure(state, rows, _WIDTHS, _WIDTHS)


def _make(name: str, dot: Any) -> Any:
    dot00, dot01, dot10, dot11 = dot(_C00, _A0, _B0), dot(_C01, _A0, _B1), dot(_C10, _A1, _B0), dot(_C11, _A1, _B1)

    @v.compiled_for(name, error_model="numpy", fastmath=False)
    def products(state, two, x, stride, w, count, starts, starts_stride, sums, ahead, lines):
        _load_c00(state, starts, starts_stride)
        _load_c01(state, starts + 64, starts_stride)
        if two:
            below = starts + amx.ROWS * starts_stride
            _load_c10(state, below, starts_stride)
            _load_c11(state, below + 64, starts_stride)
            for k in range(count):
                at, weights = x + k * amx.ROW_BYTES, w + k * STEPS * STEP_BYTES
                _load_a0(state, at, stride)
                _load_b0(state, weights, STEP_BYTES)
                dot00(state)
                _load_b1(state, weights + 64, STEP_BYTES)
                dot01(state)
                _load_a1(state, at + amx.ROWS * stride, stride)
                dot10(state)
                dot11(state)
                for line in range(lines):
                    v.prefetch(ahead + (k * lines + line) * 64)
            _store_c10(state, sums + amx.ROWS * STEP_BYTES, STEP_BYTES)
            _store_c11(state, sums + amx.ROWS * STEP_BYTES + 64, STEP_BYTES)
        else:
            for k in range(count):
                weights = w + k * STEPS * STEP_BYTES
                _load_a0(state, x + k * amx.ROW_BYTES, stride)
                _load_b0(state, weights, STEP_BYTES)
                dot00(state)
                _load_b1(state, weights + 64, STEP_BYTES)
                dot01(state)
                if lines == LINES:
                    # Known here, so that no loop is left.
                    for line in range(LINES):
                        v.prefetch(ahead + (k * LINES + line) * 64)
                else:
                    for line in range(lines):
                        v.prefetch(ahead + (k * lines + line) * 64)
        _store_c00(state, sums, STEP_BYTES)
        _store_c01(state, sums + 64, STEP_BYTES)

    return products


# products(state, two, x, stride, w, count, starts, starts_stride, sums, ahead, lines): sums [16 or (two) 32 rows, 32]
# are what they begin with and `count` products of 16 steps. `starts_stride` 0: all rows begin alike. `ahead` is memory
# that is wanted soon: `lines` lines of it for each product.
products_bfloat16, products_int8 = _make("bfloat16", amx.dot_bfloat16), _make("int8", amx.dot_bytes)
