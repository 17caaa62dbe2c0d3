"""ModelConfig: what models/old_llama.py knows of itself. Both go when models/cpu runs Llama."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.registry import OLD_CLASSES as FAMILIES
from models.sources import ModelError
from models.spec import Rope, RopeScaling

_MAX_DIMENSION = 1 << 20


@dataclass(frozen=True, slots=True)
class ModelConfig:
    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_epsilon: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    max_context: int
    tied_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    stored_dtype: str
    eos_token_ids: tuple[int, ...]

    @property
    def rope(self) -> Rope:
        return Rope(self.head_dim, self.rope_theta, self.rope_scaling)


def read_config(folder: Path) -> ModelConfig:
    """ModelConfig of a Hugging Face folder. Raises `ModelError` that names the field."""
    try:
        return _from_json(json.loads((folder / "config.json").read_bytes()), _generation(folder))
    except (OSError, ValueError) as error:
        raise ModelError(f"{folder}/config.json cannot be read: {error}", "fetch the file again") from error


def _generation(folder: Path) -> dict[str, Any]:
    path = folder / "generation_config.json"
    return json.loads(path.read_bytes()) if path.exists() else {}


def _from_json(fields: dict[str, Any], generation: dict[str, Any]) -> ModelConfig:
    architecture = (fields.get("architectures") or [None])[0]
    if architecture not in FAMILIES:
        raise _refused("architectures", architecture, f"one of {', '.join(FAMILIES)}")
    _refuse_what_is_not_computed(fields)
    hidden, heads = _count(fields, "hidden_size"), _count(fields, "num_attention_heads")
    rope = _rope(fields)
    config = ModelConfig(
        architecture=architecture,
        vocab_size=_count(fields, "vocab_size"),
        hidden_size=hidden,
        intermediate_size=_count(fields, "intermediate_size"),
        layers=_count(fields, "num_hidden_layers"),
        heads=heads,
        kv_heads=_count(fields, "num_key_value_heads", heads),
        head_dim=_count(fields, "head_dim", hidden // heads),
        norm_epsilon=_number(fields, "rms_norm_eps", 1e-6),
        rope_theta=_number(rope, "rope_theta", _number(fields, "rope_theta", 10000.0)),
        rope_scaling=_rope_scaling(rope),
        max_context=_count(fields, "max_position_embeddings", 2048, limit=1 << 30),
        tied_embeddings=bool(fields.get("tie_word_embeddings", False)),
        attention_bias=bool(fields.get("attention_bias", False)),
        mlp_bias=bool(fields.get("mlp_bias", False)),
        stored_dtype=str(fields.get("dtype") or fields.get("torch_dtype") or "float32"),
        eos_token_ids=_ids(generation.get("eos_token_id", fields.get("eos_token_id"))),
    )
    if config.heads % config.kv_heads:
        raise _refused("num_key_value_heads", config.kv_heads, f"a divisor of {config.heads}")
    if config.head_dim % 8:
        raise _refused("head_dim", config.head_dim, "a multiple of 8")
    return config


def _refuse_what_is_not_computed(fields: dict[str, Any]) -> None:
    wanted: dict[str, tuple[Any, ...]] = {
        "hidden_act": ("silu",),
        "quantization_config": (None,),
        "sliding_window": (None,),
        "partial_rotary_factor": (None, 1, 1.0),
        "attn_logit_softcapping": (None,),
        "final_logit_softcapping": (None,),
    }
    for name, allowed in wanted.items():
        if name in fields and fields[name] not in allowed:
            raise _refused(name, fields[name], " or ".join(map(str, allowed)))


def _rope(fields: dict[str, Any]) -> dict[str, Any]:
    """Newer configs say rope_parameters, older ones rope_scaling, many say null."""
    rope = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise _refused("rope_parameters", rope, "an object")
    return rope


def _rope_scaling(rope: dict[str, Any]) -> RopeScaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind == "linear":
        return RopeScaling("linear", _number(rope, "factor"))
    if kind == "llama3":
        return RopeScaling(
            "llama3",
            _number(rope, "factor"),
            _count(rope, "original_max_position_embeddings", limit=1 << 30),
            _number(rope, "low_freq_factor"),
            _number(rope, "high_freq_factor"),
        )
    raise _refused("rope_type", kind, "default, linear or llama3")


def _count(fields: dict[str, Any], name: str, default: int | None = None, limit: int = _MAX_DIMENSION) -> int:
    value = fields.get(name)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= limit:
        raise _refused(name, value, f"a whole number from 1 to {limit}")
    return value


def _number(fields: dict[str, Any], name: str, default: float | None = None) -> float:
    value = fields.get(name)
    value = default if value is None else value
    if not isinstance(value, int | float) or isinstance(value, bool) or not (0 < value < math.inf):
        raise _refused(name, value, "a number above 0")
    return float(value)


def _ids(value: Any) -> tuple[int, ...]:
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
        raise _refused("eos_token_id", value, "a token id or a list of them")
    return tuple(ids)


def _refused(name: str, value: Any, expected: str) -> ModelError:
    return ModelError(f"config.json: {name} is {value!r}", f"supported: {expected}")
