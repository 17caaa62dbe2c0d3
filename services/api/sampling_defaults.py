"""What a request gets that sets no sampling: the model's own values, from generation_config.json of its folder, or the
API's. The ranges are those of a request's fields.

The file is data: a value that a request couldn't have is ignored, and named for a warning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from models.bounded_json import parsed
from services.api.sampling import OF_MODEL

FILE = "generation_config.json"
LARGEST = 1 << 20  # bytes
LONGEST_SHOWN = 40
# Of the setting generation_config: the file isn't read. vLLM's word for it.
API_ONLY = "vllm"


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """As fields of a request are called; without arguments they are OpenAI's."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: off
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def changed(self) -> dict[str, float]:
        """Those that aren't OpenAI's."""
        usual = asdict(SamplingDefaults())
        return {name: value for name, value in asdict(self).items() if value != usual[name]}


@dataclass(frozen=True, slots=True)
class ModelSampling:
    """What the file says: values that can be had, and in words what can't."""

    defaults: SamplingDefaults = field(default_factory=SamplingDefaults)
    ignored: tuple[str, ...] = ()


def sampling_of(folder: Path, generation_config: str) -> ModelSampling:
    """By the setting of that name. Without a file, or with one that is damaged, the API's own."""
    if generation_config == API_ONLY:
        return ModelSampling()
    path = folder / FILE
    try:
        with path.open("rb") as file:
            found = parsed(file.read(LARGEST))
    except FileNotFoundError:
        return ModelSampling()
    except (OSError, ValueError, RecursionError):
        return ModelSampling(ignored=(f"{path} cannot be read",))
    return _checked(found, path) if isinstance(found, dict) else ModelSampling(ignored=(f"{path} is no object",))


def _checked(found: Mapping[str, Any], path: Path) -> ModelSampling:
    # null is "not given", as in a request.
    given = {name: found[name] for name in OF_MODEL if found.get(name) is not None}
    taken = {name: value for name, value in given.items() if OF_MODEL[name].takes(value)}
    if "top_k" in taken:
        # -1 is another word for off.
        taken["top_k"] = max(taken["top_k"], 0)
    ignored = tuple(
        f"{path}: {name} {repr(value)[:LONGEST_SHOWN]} is ignored: it isn't in {OF_MODEL[name].range}"
        for name, value in given.items()
        if name not in taken
    )
    return ModelSampling(replace(SamplingDefaults(), **taken), ignored)
