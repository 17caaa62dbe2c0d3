"""A rank's share of a quantised matrix: what is read of its tensors, and how the rest is cut away.

A format says in which steps a matrix can be cut (`Format.grain`). Read is the least that begins and ends at such steps
and has the share; which axis of a tensor runs along the outputs, and which along the inputs, shows by the shapes that
the format asks for when the matrix has fewer of them. Knows no format.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from models.quantized.format import Format, Layout, Matrix
from models.quantized.stored import StoredPart
from models.tensor_headers import TensorHeader

# Some of a tensor's values, by its name.
Read = Callable[[str, tuple[slice, ...]], torch.Tensor]


def read_share(
    form: Format, whole: Matrix, rows: range, columns: range, headers: Mapping[str, TensorHeader], read: Read
) -> StoredPart:
    """`whole` is stored, and its tensors are as the format's layout says. Raises `ModelError` as the format does."""
    grain = form.grain(whole)
    layout = _layout(form, whole, headers)
    in_order = "g_idx" not in layout or _in_order(read(layout["g_idx"].name, (slice(None),)))
    wide = _steps(rows, grain[0], whole.outputs)
    long = _steps(columns, grain[1] if in_order else whole.inputs, whole.inputs)
    fewer_outputs = _layout(form, Matrix(whole.name, len(wide), whole.inputs), headers)
    fewer_inputs = _layout(form, Matrix(whole.name, whole.outputs, len(long)), headers)
    tensors = {}
    for key, wanted in layout.items():
        shape = headers[wanted.name].shape
        way = wanted.shapes.index(shape)
        by_outputs, by_inputs = fewer_outputs[key].shapes[way], fewer_inputs[key].shapes[way]
        places = []
        for size, of_outputs, of_inputs in zip(shape, by_outputs, by_inputs, strict=True):
            if of_outputs != size:
                places.append(_place(wide.start, of_outputs, size, whole.outputs))
            elif of_inputs != size:
                places.append(_place(long.start, of_inputs, size, whole.inputs))
            else:
                places.append(slice(None))
        tensors[key] = read(wanted.name, tuple(places))
    if "shape" in tensors:
        # It tells of the whole; what it tells wrong stays wrong.
        tensors["shape"] = tensors["shape"] - torch.tensor([whole.outputs - len(wide), whole.inputs - len(long)])
    if "g_idx" in tensors and len(long) < whole.inputs:
        tensors["g_idx"] = tensors["g_idx"] - tensors["g_idx"][0]
    part = form.build(Matrix(whole.name, len(wide), len(long)), tensors)
    return part.share(_within(rows, wide), _within(columns, long))


def _layout(form: Format, matrix: Matrix, headers: Mapping[str, TensorHeader]) -> Layout:
    layout = form.layout(matrix, headers)
    assert layout is not None
    return layout


def _in_order(groups: Any) -> bool:
    """Whether the groups of inputs are neighbours: all alike, one after the other."""
    count = int(groups[-1]) + 1
    if count < 1 or len(groups) % count:
        return False
    return torch.equal(groups.long(), torch.arange(len(groups)) // (len(groups) // count))


def _steps(wanted: range, step: int, whole: int) -> range:
    return range(wanted.start // step * step, min(-(-wanted.stop // step) * step, whole))


def _place(start: int, count: int, size: int, whole: int) -> slice:
    """`size` entries stand for `whole` values, each for as many, the last perhaps for fewer: `count` entries from the
    one of value `start`."""
    first = start * size // whole
    return slice(first, first + count)


def _within(inner: range, outer: range) -> range:
    return range(inner.start - outer.start, inner.stop - outer.start)
