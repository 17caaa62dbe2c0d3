"""Weights of a Hugging Face folder: tensors by name, mapped from safetensors files, shapes and types checked.

`take` gives a tensor as it is stored, `linear` the stacked weight of a linear in whatever format the model ships
it (models/quantized/). Knows no families and no executors.

Values are not looked through for infinities and NaN, which would read every byte of a mapped model before the
first token: such weights give such logits. Scales of quantised weights, being few, are.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from models import spec
from models.errors import ModelError
from models.folder_headers import OTHER_MODEL, FolderHeaders, of_axis, whole_of
from models.quantized.format import FLOATS, WantedFormat
from models.quantized.share import read_share
from models.quantized.stored import StoredLinear, StoredPart
from models.stacks import stacked_bias, stacked_layout, stacked_part


class Weights:
    """Maps the files; pages are read when a tensor's values are."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._headers = FolderHeaders(folder)
        self._files = {path: _mapped(path) for path in dict.fromkeys(self._headers.file_of.values())}

    @property
    def format(self) -> str:
        """How the linears are stored, in a few words."""
        return self._headers.format.told

    def __contains__(self, name: str) -> bool:
        return name in self._headers.tensors

    def take(self, name: str, *shape: int, rows: range | None = None) -> torch.Tensor:
        """The tensor as it is stored, or some of its rows. Raises `ModelError` when it is missing, of another shape or
        no float."""
        self._headers.check(WantedFormat(name, (shape,), FLOATS))
        return self._values(name, *(() if rows is None else (slice(rows.start, rows.stop),)))

    def take_ids(self, name: str, count: int) -> torch.Tensor:
        """A tensor of `count` int64. Raises `ModelError`."""
        return self._get(WantedFormat(name, ((count,),), ("I64",)))

    def linear(self, linear: spec.Linear) -> StoredLinear:
        """The weights of all parts. Raises `ModelError` that names the tensor or the field that is wrong."""
        parts = tuple(self._part(part, linear) for part in linear.parts)
        if linear.bias:
            return StoredLinear(parts, tuple(map(self._bias, linear.parts)))
        if linear.cut is None or linear.cut.first == 0:
            self._refuse_biases(linear)
        return StoredLinear(parts)

    def coded_bytes(self, linear: spec.Linear) -> int:
        """As FolderHeaders."""
        return self._headers.coded_bytes(linear)

    def number_bytes(self, name: str) -> int:
        return self._headers.number_bytes(name)

    def _get(self, wanted: WantedFormat) -> torch.Tensor:
        self._headers.check(wanted)
        return self._values(wanted.name)

    def _values(self, name: str, *places: slice) -> torch.Tensor:
        """Of a cut tensor no more than the places is ever touched: it is mapped."""
        path = self._headers.file_of[name]
        try:
            tensor: torch.Tensor = self._files[path].get_tensor(self._headers.stored[name])
            return tensor[places] if places else tensor
        except (OSError, SafetensorError) as error:
            raise ModelError(f"{path}: tensor {name} cannot be read: {error}", "fetch the file again") from error

    def _part(self, part: spec.Part, linear: spec.Linear) -> StoredPart:
        if (stack := self._headers.stack_of(part)) is not None:
            return self._of_stack(part, stack, linear)
        if part.stripes is not None:
            whole = self._part(spec.Part(part.stripes.name, part.stripes.outputs), linear)
            return replace(whole.rows(torch.tensor(part.stripes.rows)), name=part.name)
        rows, matrix = of_axis(part.outputs, part.cut), whole_of(part, linear)
        columns = of_axis(linear.inputs, linear.cut)
        is_quantised, layout = self._headers.layout(matrix)
        for wanted in layout.values():
            self._headers.check(wanted)
        cut = part.cut is not None or linear.cut is not None
        if not is_quantised:
            places = tuple(slice(each.start, each.stop) for each in (rows, columns)) if cut else ()
            values = self._values(layout["weight"].name, *places)
            return StoredPart(part.name, "plain", part.outputs, linear.inputs, values)
        headers, form = self._headers.tensors, self._headers.format
        try:
            if cut:
                return read_share(form, matrix, rows, columns, headers, lambda name, at: self._values(name, *at))
            return form.build(matrix, {key: self._values(wanted.name) for key, wanted in layout.items()})
        except ModelError as error:
            raise ModelError(f"{self.folder}: {error.what}", error.fix) from error

    def _of_stack(self, part: spec.Part, stack: spec.Stack, linear: spec.Linear) -> StoredPart:
        layout = stacked_layout(part, stack, linear, self._headers.tensors)
        for wanted in layout.values():
            self._headers.check(wanted)
        return stacked_part(part, stack, layout, self._values)

    def _bias(self, part: spec.Part) -> torch.Tensor:
        if (stack := self._headers.stack_of(part)) is not None:
            return stacked_bias(stack, self._values)
        if part.stripes is not None:
            return self.take(f"{part.stripes.name}.bias", part.stripes.outputs)[part.stripes.rows]
        outputs = part.outputs if part.cut is None else part.cut.whole
        return self.take(f"{part.name}.bias", outputs, rows=of_axis(part.outputs, part.cut))

    def _refuse_biases(self, linear: spec.Linear) -> None:
        """Some converters write biases of zeros where a family has none; others would change the text."""
        for name in (f"{part.stripes.name if part.stripes else part.name}.bias" for part in linear.parts):
            if name in self and bool(self._values(name).any()):
                raise ModelError(f"{self.folder}: tensor {name} is there, and config.json asks for none", OTHER_MODEL)


def embedding_of(network: spec.Network, weights: Weights) -> torch.Tensor:
    """The rows that the network has, as they are stored."""
    shape = network.vocab_size, network.hidden_size
    if network.cut is None:
        return weights.take(network.embedding, *shape)
    return weights.take(network.embedding, *shape, rows=of_axis(network.rows, network.cut))


def sinks_of(one: spec.Attention, weights: Weights) -> torch.Tensor | None:
    """Float32 [heads], of the heads that a rank has."""
    if not one.sinks:
        return None
    cut = one.qkv.parts[0].cut
    if cut is None:
        return weights.take(one.sinks, one.heads).float()
    first = cut.first // one.head_dim
    return weights.take(one.sinks, cut.whole // one.head_dim, rows=range(first, first + one.heads)).float()


def norm_weight(one: spec.Norm, weights: Weights) -> torch.Tensor:
    """What normed rows are multiplied with, float32 [width]."""
    stored = weights.take(f"{one.name}.weight", one.width).float()
    return stored + 1.0 if one.plus_one else stored


def _mapped(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{path} cannot be read: {error}", "fetch the file again") from error
