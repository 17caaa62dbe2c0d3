"""Fields: config.json of a Hugging Face folder, checked as it is read. `read_network` makes a Network of it. No torch.

A field that would change the computation and that isn't computed is refused by name: a model that runs slightly
wrong is worse than one that doesn't start.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from models.errors import ModelError
from models.folder import read_json
from models.registry import FAMILIES, LACKING, TEXT_PARTS, WITH_IMAGES, declaration
from models.spec import Network, Rope, RopeScaling

_MAX_DIMENSION = 1 << 20
_MAX_CONTEXT = 1 << 30
_MAX_LAYERS = 4096
# Of all layers together: Kimi-K2 has 23 000.
_MAX_MLPS = 1 << 17
# Fields that may stand beside text_config and not in it.
_OF_THE_WHOLE = ("dtype", "torch_dtype", "eos_token_id", "tie_word_embeddings", "quantization_config")


def read_network(folder: Path) -> Network:
    """The network that a folder's config.json describes. Raises `ModelError` that names the field."""
    generation = folder / "generation_config.json"
    return network_of(Fields(read_json(folder / "config.json"), read_json(generation) if generation.exists() else {}))


def network_of(fields: Fields) -> Network:
    fields = text_fields(fields)
    named = _named(fields)
    if isinstance(named, str) and named in LACKING:
        raise ModelError(f"{LACKING[named]} isn't served", f"supported: {', '.join(FAMILIES)}")
    if not isinstance(named, str) or named not in FAMILIES:
        fields.refuse("architectures", f"one of {', '.join(FAMILIES)}")
    _refuse_endless(fields)
    network = declaration(named)(fields)
    assert isinstance(network, Network)
    return network


def text_fields(fields: Fields) -> Fields:
    """Of a model that sees images, too, those of its text part; of another one all."""
    return fields.text_part() if _named(fields) in WITH_IMAGES else fields


def _named(fields: Fields) -> Any:
    architectures = fields.values.get("architectures")
    return architectures[0] if isinstance(architectures, list) and architectures else None


def _refuse_endless(fields: Fields) -> None:
    """Counts of layers and experts say how many objects the network has, whatever the files hold."""
    layers = fields.count("num_hidden_layers", 1, limit=_MAX_LAYERS)
    for name in ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"):
        fields.count(name, 1, limit=max(1, _MAX_MLPS // layers), least=0)


class Fields:
    """A field that is null or absent has the default; without one it must be there."""

    def __init__(self, values: dict[str, Any], generation: dict[str, Any] | None = None) -> None:
        self.values = values
        self._generation = generation or {}

    def count(self, name: str, default: int | None = None, limit: int = _MAX_DIMENSION, least: int = 1) -> int:
        value = self._value(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= limit:
            self.refuse(name, f"a whole number from {least} to {limit}")
        return value

    def number(self, name: str, default: float | None = None, above: float = 0.0) -> float:
        value = self._value(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not above < value < math.inf:
            self.refuse(name, f"a number above {above:g}")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self._value(name, default)
        if not isinstance(value, bool):
            self.refuse(name, "true or false")
        return value

    def choice(self, name: str, allowed: Iterable[str], default: str | None = None) -> str:
        value = self._value(name, default)
        allowed = tuple(allowed)
        if not isinstance(value, str) or value not in allowed:
            self.refuse(name, " or ".join(allowed))
        return value

    def ids(self, name: str) -> tuple[int, ...]:
        """Token ids, from generation_config.json where it has them."""
        value = self._generation.get(name, self.values.get(name))
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
            raise _refused(name, value, "a token id or a list of them")
        return tuple(ids)

    def with_defaults(self, defaults: dict[str, Any]) -> Fields:
        """The same, with a family's own defaults where nothing is said."""
        said = {name: value for name, value in self.values.items() if value is not None}
        return Fields(defaults | said, self._generation)

    def text_part(self) -> Fields:
        """Of a model that sees images: text_config, and where it says nothing what is said of the whole."""
        text = self.values.get("text_config")
        if not isinstance(text, dict):
            self.refuse("text_config", "an object")
        kind = Fields(text).choice("model_type", TEXT_PARTS, "mistral")
        own = {name: value for name, value in text.items() if value is not None}
        whole = {name: value for name, value in self.values.items() if name in _OF_THE_WHOLE}
        return Fields(whole | own | {"architectures": [TEXT_PARTS[kind]]}, self._generation)

    def changed(self, values: dict[str, Any]) -> Fields:
        """The same, with other values of some fields."""
        return Fields(self.values | values, self._generation)

    def given(self, name: str) -> bool:
        return self.values.get(name) is not None

    def refuse(self, name: str, expected: str) -> NoReturn:
        raise _refused(name, self.values.get(name), expected)

    def refuse_unless(self, name: str, *allowed: Any) -> None:
        """Null and absence are always allowed: what a family doesn't compute may be spelled out as off."""
        value = self.values.get(name)
        # By type too: 1 is not true, and 0 is not false.
        if value is not None and not any(type(value) is type(each) and value == each for each in allowed):
            self.refuse(name, " or ".join(map(json.dumps, allowed)) or "null")

    def _value(self, name: str, default: Any) -> Any:
        value = self.values.get(name)
        return default if value is None else value

    # What all families say in the same words -----------------------------------------------------------

    def max_context(self) -> int:
        """Positions that the rope was made for: yarn stretches the original context without a new maximum."""
        said = self.count("max_position_embeddings", 2048, _MAX_CONTEXT)
        rope = self.rope_section()
        if rope.kind() != "yarn":
            return said
        original = _original_context(self, rope)
        return min(_MAX_CONTEXT, max(said, int(original * _yarn_factor(self, rope))))

    def stored_dtype(self) -> str:
        return str(self._value("dtype", self._value("torch_dtype", "float32")))

    def rope_section(self) -> RopeFields:
        """Newer configs say rope_parameters, older ones rope_scaling and theta beside it; many say null."""
        for name in ("rope_scaling", "rope_parameters"):
            values = self.values.get(name) or {}
            if not isinstance(values, dict) or any(isinstance(value, dict) for value in values.values()):
                self.refuse(name, "one object for all layers")
            if values:
                return RopeFields(values)
        return RopeFields({})

    def rope(
        self, width: int, *, theta: float = 10000.0, interleaved: bool = False, partial: bool = False
    ) -> Rope:  # fmt: skip
        """The rotation of the first `width` dimensions of a head, or with `partial` of as many of them as
        partial_rotary_factor says; `theta` is the family's default."""
        section = self.rope_section()
        if partial:
            width = self._rotated(section, width)
        else:
            for where in (self, section):
                where.refuse_unless("partial_rotary_factor", 1, 1.0)
        section.refuse_unless("mrope_section")
        base = section.number("rope_theta", self.number("rope_theta", theta, above=1.0), above=1.0)
        return Rope(width, base, _scaling(self, section), interleaved)


    def _rotated(self, section: RopeFields, dim: int) -> int:
        name = "partial_rotary_factor"
        where = section if section.given(name) else self
        width = int(dim * where.number(name, 1.0))
        if width % 2 or not 0 < width <= dim:
            where.refuse(name, f"a share that is an even number of {dim} dimensions")
        return width


class RopeFields(Fields):
    """rope_parameters or rope_scaling."""

    def kind(self) -> str:
        name = "rope_type" if self.given("rope_type") else "type"
        return self.choice(name, ("default", "linear", "llama3", "yarn"), "default")


def _scaling(fields: Fields, rope: RopeFields) -> RopeScaling | None:
    kind = rope.kind()
    if kind == "default":
        return None
    if kind == "linear":
        return RopeScaling("linear", rope.number("factor"))
    original = _original_context(fields, rope)
    if kind == "llama3":
        low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
        if low >= high:
            rope.refuse("high_freq_factor", f"more than low_freq_factor, {low:g}")
        return RopeScaling(kind, rope.number("factor"), original, low, high)
    return RopeScaling(
        kind,
        _yarn_factor(fields, rope),
        original,
        beta_fast=rope.number("beta_fast", 32.0),
        beta_slow=rope.number("beta_slow", 1.0),
        attention_factor=_attention_factor(fields, rope),
        truncate=rope.flag("truncate", True),
    )


def _original_context(fields: Fields, rope: RopeFields) -> int:
    name = "original_max_position_embeddings"
    said = fields.count("max_position_embeddings", 2048, _MAX_CONTEXT)
    return fields.count(name, rope.count(name, said, _MAX_CONTEXT), _MAX_CONTEXT)


def _yarn_factor(fields: Fields, rope: RopeFields) -> float:
    said = fields.count("max_position_embeddings", 2048, _MAX_CONTEXT)
    return rope.number("factor", said / _original_context(fields, rope))


def _attention_factor(fields: Fields, rope: RopeFields) -> float:
    """What cos and sin are multiplied by under yarn: said, or worked out as the models were trained."""
    if rope.given("attention_factor"):
        return rope.number("attention_factor")
    factor = _yarn_factor(fields, rope)
    scale, all_dims = (rope.number(name, 0.0, above=-math.inf) for name in ("mscale", "mscale_all_dim"))
    if scale and all_dims:
        return yarn_magnitude(factor, scale) / yarn_magnitude(factor, all_dims)
    return yarn_magnitude(factor)


def yarn_magnitude(factor: float, scale: float = 1.0) -> float:
    """How much larger the products of q and k should be for a context `factor` times as long."""
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _refused(name: str, value: Any, expected: str) -> ModelError:
    # A value of a broken file may be a megabyte long.
    return ModelError(f"config.json: {name} is {repr(value)[:200]}", f"supported: {expected}")
