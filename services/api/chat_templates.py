"""The chat template of a model, found in its folder or in a file of the operator's. Renders nothing."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.errors import ModelError

# Those on the hub have up to 20 kB.
MAX_TEMPLATE_BYTES = 1 << 20
SPECIAL_TOKENS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
    "additional_special_tokens",
)


@dataclass(frozen=True, slots=True)
class TemplateSource:
    """What a folder says about its template; small enough to travel to another process. `with_tools`: that of requests
    with tools, if it is another one."""

    text: str
    special_tokens: dict[str, Any]
    with_tools: str = ""

    @property
    def shown(self) -> str:
        """The text by which the formats of the model are recognised."""
        return self.with_tools or self.text


def read_template(folder: Path, own: str = "") -> TemplateSource | None:
    """The file `own` (the setting chat_template), else the template of a Hugging Face folder: chat_template.jinja, else
    the one in tokenizer_config.json.

    Raises ModelError for a file that cannot be one.
    """
    config = _json_object(folder / "tokenizer_config.json")
    special = {name: _plain(config[name]) for name in SPECIAL_TOKENS if config.get(name) is not None}
    if own:
        try:
            return TemplateSource(_text_of(Path(own)), special)
        except OSError as error:
            reason = f"chat_template: {own} cannot be read ({error.strerror})"
            raise ModelError(reason, "name a file that the server can read") from error
    own_file = folder / "chat_template.jinja"
    if own_file.is_file():
        return TemplateSource(_text_of(own_file), special)
    template, with_tools = config.get("chat_template"), None
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template, with_tools = named.get("default"), named.get("tool_use")
    if not isinstance(template, str):
        return None
    return TemplateSource(template, special, with_tools if isinstance(with_tools, str) else "")


def _text_of(path: Path) -> str:
    size = path.stat().st_size
    if size > MAX_TEMPLATE_BYTES:
        raise ModelError(f"{path} has {size} bytes", f"templates of at most {MAX_TEMPLATE_BYTES} are read")
    try:
        return path.read_text(encoding="utf-8")
    except ValueError as error:
        raise ModelError(f"{path} is no text: {error}", "fetch the file again") from error


def _json_object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    value = json.loads(path.read_bytes())
    return value if isinstance(value, dict) else {}


def _plain(token: Any) -> Any:
    """Tokens are written as text or as an object with `content`."""
    if isinstance(token, dict):
        return token.get("content", "")
    return [_plain(one) for one in token] if isinstance(token, list) else token
