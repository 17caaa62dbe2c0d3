"""The products of attention on a CPU with AMX (kernels/amx.py): up to 16 rows with the words of pages.

Tiles 0 to 3 hold the sums of four vectors of columns, 4 what the rows have of 16 words, 5 these words; of the last,
unfinished 16 words of all, 6 and 7. Only for pages, and rows of a page, of whole tiles: 32 numbers.
"""

from __future__ import annotations

from typing import Any

import numba

from kernels import amx
from kernels import cpu_vectors as v

# Numbers of a row, or positions of a page, in a tile.
WHOLE = 32
_WORDS, _COLUMNS = 16, 4
_LEFT, _RIGHT, _LAST_LEFT, _LAST_RIGHT = 4, 5, 6, 7
_LINE = _COLUMNS * amx.ROW_BYTES
_ALL = -1  # bits of a mask

_words = v.scratch(_WORDS * _LINE)
_zero0, _zero1, _zero2, _zero3 = (amx.zero(column) for column in range(_COLUMNS))
_store0, _store1, _store2, _store3 = (amx.store(column) for column in range(_COLUMNS))


def _make_add(left_tile: int, right_tile: int) -> Any:
    load_left, load_right = amx.load(left_tile), amx.load(right_tile)
    dot0, dot1, dot2, dot3 = (amx.dot_bfloat16(column, left_tile, right_tile) for column in range(_COLUMNS))

    @v.compiled_for(f"{left_tile}")
    def add(state, columns, left, left_stride, right, right_stride):
        """The sums of 1, 2 or 4 columns, and products of one tile of words."""
        load_left(state, left, left_stride)
        load_right(state, right, right_stride)
        dot0(state)
        if columns > 1:
            load_right(state, right + amx.ROW_BYTES, right_stride)
            dot1(state)
        if columns > 2:
            load_right(state, right + 2 * amx.ROW_BYTES, right_stride)
            dot2(state)
            load_right(state, right + 3 * amx.ROW_BYTES, right_stride)
            dot3(state)

    return add


_add, _add_last = _make_add(_LEFT, _RIGHT), _make_add(_LAST_LEFT, _LAST_RIGHT)


@numba.njit
def _rest(steps, mask):
    """Words that are no whole tile of the last page; the last one of all is among them where it has a mask."""
    return steps - (steps if mask == _ALL else steps - 1) // _WORDS * _WORDS


@numba.njit
def configure(state, rows, last_steps, mask):
    """For products of `rows` rows, of which those with an unfinished end have this one."""
    rest = _rest(last_steps, mask)
    if rest == 0:
        rest = _WORDS
    tiles = rows | rows << 8 | rows << 16 | rows << 24 | rows << 32 | _WORDS << 40 | rows << 48 | rest << 56
    whole = amx.ROW_BYTES
    sums = whole | whole << 16 | whole << 32 | whole << 48
    amx.configure(state, tiles, sums, whole | whole << 16 | 4 * rest << 32 | whole << 48)


@numba.njit
def product(
    state, rows, columns, left, left_stride, table, pages, base, page_stride, step_stride,
    steps, last_steps, mask, out, out_stride,
):  # fmt: skip
    """As make_product's (cpu_products.py); `configure` came before, with as many rows."""
    _zero0(state)
    _zero1(state)
    _zero2(state)
    _zero3(state)
    rest = _rest(last_steps, mask)
    at, start = left, base
    for page in range(pages):
        start = base + v.load_i32(table, page) * page_stride
        count = (last_steps - rest if page == pages - 1 else steps) // _WORDS
        for k in range(count):
            _add(state, columns, at, left_stride, start + k * _WORDS * step_stride, step_stride)
            at += amx.ROW_BYTES
    if rest > 0:
        words = _words()
        for k in range(rest):
            source = start + (last_steps - rest + k) * step_stride
            for column in range(columns):
                value = v.load_ints(source, column * v.LANES)
                if k == rest - 1 and mask != _ALL:
                    value = v.and_ints(value, v.spread_int(mask))
                v.store_ints(words + k * _LINE, column * v.LANES, value)
        _add_last(state, columns, at, left_stride, words, _LINE)
    _store0(state, out, out_stride)
    if columns > 1:
        _store1(state, out + amx.ROW_BYTES, out_stride)
    if columns > 2:
        _store2(state, out + 2 * amx.ROW_BYTES, out_stride)
        _store3(state, out + 3 * amx.ROW_BYTES, out_stride)
