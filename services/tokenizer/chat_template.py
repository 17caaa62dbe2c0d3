"""The model's own chat template: found in its folder, rendered in a jinja2 sandbox.

Templates come from the model's folder, never from a request. Knows nothing of processes or deadlines:
template_process.py runs this where it can be killed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

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


class TemplateError(Exception):
    """The template refuses this conversation, is broken, or writes too much."""


@dataclass(frozen=True, slots=True)
class TemplateSource:
    """What a folder says about its template; small enough to travel to another process."""

    text: str
    special_tokens: dict[str, Any]


def read_template(folder: Path) -> TemplateSource | None:
    """The template of a Hugging Face folder: chat_template.jinja, else the one in tokenizer_config.json.

    Raises ModelError for a file that cannot be one.
    """
    config = _json_object(folder / "tokenizer_config.json")
    special = {name: _plain(config[name]) for name in SPECIAL_TOKENS if config.get(name) is not None}
    own_file = folder / "chat_template.jinja"
    if own_file.is_file():
        return TemplateSource(_text_of(own_file), special)
    template = config.get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    return TemplateSource(template, special) if isinstance(template, str) else None


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


class ChatTemplate:
    """A compiled template. Raises TemplateError at once if it can't be compiled. Compiling works out constants, which
    may take any time: template_process.py does it where it can be killed."""

    def __init__(self, source: TemplateSource, max_chars: int) -> None:
        self._special_tokens = source.special_tokens
        self._max_chars = max_chars
        try:
            self._template = _environment().from_string(source.text)
        except MemoryError:
            raise TemplateError("the model's chat template is broken: it needs too much memory") from None
        # As with rendering, whatever foreign code trips over.
        except Exception as error:
            why = str(error) or type(error).__name__
            raise TemplateError(f"the model's chat template is broken: {why}"[:500]) from None

    def render(self, turns: Sequence[Mapping[str, Any]], add_generation_prompt: bool) -> str:
        pieces: list[str] = []
        size = 0
        variables: dict[str, Any] = {
            **self._special_tokens,
            "messages": turns,
            "tools": None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            for piece in self._template.generate(variables):
                pieces.append(piece)
                size += len(piece)
                if size > self._max_chars:
                    raise TemplateError(f"the conversation is longer than {self._max_chars} characters")
        except TemplateError:
            raise
        except RecursionError:
            raise TemplateError("the model's chat template recurses too deep") from None
        except MemoryError:
            raise TemplateError("the model's chat template needs too much memory") from None
        # A template is foreign code: whatever it trips over belongs to this conversation, not to us.
        except Exception as error:
            raise TemplateError(_reason(error)) from None
        return "".join(pieces)


class _Refused(jinja2.TemplateError):
    """The template called raise_exception: its message is for the user."""


def _reason(error: Exception) -> str:
    if isinstance(error, _Refused):
        return str(error) or "the model's chat template refuses this conversation"
    return f"the model's chat template cannot render this conversation: {type(error).__name__}: {error}"[:500]


def _environment() -> ImmutableSandboxedEnvironment:
    """The dialect templates on the hub are written in."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Without jinja's HTML escapes, which models have never seen."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise _Refused(message)


def _strftime_now(format_: str) -> str:
    return datetime.now().strftime(format_)


class _GenerationBlock(Extension):
    """`{% generation %}` marks the assistant's words for training; for us its body is plain text."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
