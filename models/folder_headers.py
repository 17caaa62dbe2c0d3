"""What a Hugging Face folder's weights are, by config.json and the headers alone: names, types, shapes, format.

models/weights.py reads values on this ground, models/check.py tells what is wrong without reading any. No torch.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from models.errors import ModelError
from models.folder import read_json, weight_files
from models.quantized.format import FLOATS, Format, Layout, Matrix, WantedFormat
from models.quantized.registry import format_of
from models.spec import Cut, Linear, Part, Stack
from models.stacks import coded_stack_bytes, stacked_layout
from models.tensor_headers import TensorHeader, read_headers

_OF_A_DECODER = {"embed_tokens.weight", "layers.0.input_layernorm.weight", "norm.weight"}
# What names begin with where a model sees images, too, and with what they begin here. Other tensors aren't read.
_TEXT_PARTS = (("language_model.", ""), ("model.language_model.", "model."))
OTHER_MODEL = "config.json and the weights belong to different models"


class FolderHeaders:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tensors: dict[str, TensorHeader] = {}
        self.file_of: dict[str, Path] = {}
        config = folder / "config.json"
        self.format: Format = format_of(read_json(config) if config.exists() else {})
        for path in weight_files(folder):
            self._add(path)
        # By the names of a whole decoder, those that are stored.
        self.stored = _stored_names(self.tensors)
        self.tensors = {name: self.tensors[stored] for name, stored in self.stored.items()}
        self.file_of = {name: self.file_of[stored] for name, stored in self.stored.items()}

    def _add(self, path: Path) -> None:
        headers = read_headers(path)
        twice = next((name for name in headers if name in self.tensors), None)
        if twice is not None:
            where = f"{self.file_of[twice].name} and in {path.name}"
            raise ModelError(f"{self.folder}: tensor {twice} is in {where}", "fetch the folder again, whole")
        self.tensors |= headers
        self.file_of |= dict.fromkeys(headers, path)

    def check(self, wanted: WantedFormat) -> None:
        """Whether a tensor is there and as it should be. Raises `ModelError`."""
        name, header = wanted.name, self.tensors.get(wanted.name)
        if header is None:
            raise ModelError(f"{self.folder}: tensor {name} is missing", "fetch the folder again, whole")
        if header.shape not in wanted.shapes:
            asked = " or ".join(map(str, wanted.shapes))
            raise ModelError(
                f"{self.folder}: tensor {name} has shape {header.shape}, config.json asks for {asked}", OTHER_MODEL
            )
        if header.dtype not in wanted.dtypes:
            raise ModelError(f"{self.folder}: tensor {name} is {header.dtype}", f"readable: {', '.join(wanted.dtypes)}")

    def check_floats(self, name: str, *shape: int) -> None:
        self.check(WantedFormat(name, (shape,), FLOATS))

    def stack_of(self, part: Part) -> Stack | None:
        """Where a part stands among those of other experts, if it does in this folder."""
        stack = part.stack
        return None if stack is None or (stack.whole and stack.name not in self.tensors) else stack

    def check_linear(self, linear: Linear) -> None:
        for part in linear.parts:
            if (stack := self.stack_of(part)) is not None:
                for wanted in stacked_layout(part, stack, linear, self.tensors).values():
                    self.check(wanted)
                continue
            matrix = whole_of(part, linear)
            for wanted in self.layout(matrix)[1].values():
                self.check(wanted)
            if linear.bias:
                self.check_floats(f"{matrix.name}.bias", matrix.outputs)

    def layout(self, matrix: Matrix) -> tuple[bool, Layout]:
        """Whether a matrix is quantised, and its tensors."""
        try:
            layout = self.format.layout(matrix, self.tensors)
        except ModelError as error:
            raise ModelError(f"{self.folder}: {error.what}", error.fix) from error
        if layout is not None:
            return True, layout
        return False, {"weight": WantedFormat(f"{matrix.name}.weight", ((matrix.outputs, matrix.inputs),), FLOATS)}

    def coded_bytes(self, linear: Linear) -> int:
        """Of the linear's codes, scales and zeros, if all its parts are coded alike; 0: it is made dense."""
        if not getattr(self.format, "multiplied", True):
            return 0
        total, ways = 0, set()
        for part in linear.parts:
            if (stack := self.stack_of(part)) is not None:
                total += coded_stack_bytes(part, stack, linear, self.tensors)
                ways.add(("stack",))
                continue
            matrix = whole_of(part, linear)
            is_quantised, layout = self.layout(matrix)
            if not is_quantised:
                return 0
            share = part.outputs * linear.inputs / (matrix.outputs * matrix.inputs)
            headers = {key: self.tensors[wanted.name] for key, wanted in layout.items() if wanted.name in self.tensors}
            ways.add(tuple(sorted((key, header.dtype) for key, header in headers.items())))
            for key, header in headers.items():
                # Zeros of 4 bits take 16 in memory (models/quantized/stored.py).
                total += int(share * (header.end - header.begin) * (4 if "zeros" in key else 1))
            # Parts whose inputs are sorted each in its own order can't be one.
            if "g_idx" in layout and len(linear.parts) > 1 and getattr(self.format, "in_any_order", True):
                return 0
        return total if len(ways) == 1 else 0

    def number_bytes(self, name: str) -> int:
        """Of one number of a tensor."""
        header = self.tensors.get(name)
        return 4 if header is None or header.dtype == "F32" else 2


def _stored_names(names: Collection[str]) -> dict[str, str]:
    if _is_decoder_alone(names):
        return {f"model.{name}": name for name in names}
    for theirs, ours in _TEXT_PARTS:
        if any(name.startswith(theirs) for name in names):
            found = {ours + name.removeprefix(theirs): name for name in names if name.startswith(theirs)}
            return found | {name: name for name in names if name.startswith(("lm_head.", "mtp."))}
    return {name: name for name in names}


def _is_decoder_alone(names: Collection[str]) -> bool:
    """Saved without its head, as embedding models are. Heads in folders of their own have such names, too, and a linear
    `fc` that mixes the target's features."""
    return _OF_A_DECODER.issubset(names) and not any(name.startswith("fc.") for name in names)


def of_axis(count: int, cut: Cut | None) -> range:
    """Of a cut axis the places that count, of another all."""
    return range(count) if cut is None else range(cut.first, cut.first + count)


def whole_of(part: Part, linear: Linear) -> Matrix:
    """The matrix that is stored, whatever is cut."""
    if part.stripes is not None:
        return Matrix(part.stripes.name, part.stripes.outputs, linear.inputs)
    outputs = part.outputs if part.cut is None else part.cut.whole
    return Matrix(part.name, outputs, linear.inputs if linear.cut is None else linear.cut.whole)
