"""Which file reads which quant_method of config.json. No torch until a matrix is built."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from models.quantized.format import Format, refused
from models.quantized.nvfp4 import PACKED
from models.quantized.plain import Plain

FORMATS: dict[str, str] = {
    "awq": "models.quantized.awq:Awq",
    "compressed-tensors": "models.quantized.compressed_tensors:CompressedTensors",
    "fp8": "models.quantized.fp8:Fp8",
    "gptq": "models.quantized.gptq:Gptq",
    "modelopt": "models.quantized.nvfp4:Nvfp4",
    "mxfp4": "models.quantized.mxfp4:Mxfp4",
}

_FIELDS = ("quantization_config", "compression_config")


def format_of(config: Mapping[str, Any]) -> Format:
    """How the linears of a model are stored, decided once from its config.json. Raises `ModelError`."""
    # Of a model that sees images, too, it may be said of its text part.
    parts = (config, config.get("text_config"))
    said = (part.get(name) for part in parts if isinstance(part, dict) for name in _FIELDS)
    fields = next((each for each in said if each is not None), None)
    if fields is None:
        return Plain()
    if not isinstance(fields, dict):
        raise refused("quant_method", fields, "an object with a quant_method")
    method = fields.get("quant_method")
    if not isinstance(method, str) or method not in FORMATS:
        raise refused("quant_method", method, ", ".join(FORMATS))
    # llm-compressor's, where all groups are so.
    method = "modelopt" if method == "compressed-tensors" and fields.get("format") == PACKED else method
    module, name = FORMATS[method].split(":")
    made: Format = getattr(import_module(module), name)(fields)
    return made
