"""The chat template, rendered in a jinja2 sandbox.

Templates come from the model's folder or the server's operator, never from a request. Knows nothing of processes or
deadlines: template_process.py runs this where it can be killed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from services.api.chat_templates import TemplateSource
from services.tokenizer.plain_tools import tools_in_words, turns_in_words


class TemplateError(Exception):
    """The template refuses this conversation, is broken, or writes too much."""


@dataclass(frozen=True, slots=True)
class _Compiled:
    """`reads_calls`: it knows turns that call tools, and the results of tools. Those of a template that reads no tools
    don't count: the model is told of another format."""

    template: jinja2.Template
    reads_tools: bool
    reads_calls: bool


def _compiled(text: str) -> _Compiled:
    environment = _environment()
    try:
        tree = environment.parse(text)
        reads_tools = "tools" in meta.find_undeclared_variables(tree)
        reads_calls = reads_tools and any(word in text for word in ("tool_calls", "'tool'", '"tool"'))
        return _Compiled(environment.from_string(tree), reads_tools, reads_calls)
    except MemoryError:
        raise TemplateError("the model's chat template is broken: it needs too much memory") from None
    # As with rendering, whatever foreign code trips over.
    except Exception as error:
        why = str(error) or type(error).__name__
        raise TemplateError(f"the model's chat template is broken: {why}"[:500]) from None


class ChatTemplate:
    """A compiled template. Raises TemplateError at once if it can't be compiled. Compiling works out constants, which
    may take any time: template_process.py does it where it can be killed."""

    def __init__(self, source: TemplateSource, max_chars: int) -> None:
        self._special_tokens = source.special_tokens
        self._max_chars = max_chars
        self._compiled = _compiled(source.text)
        self._with_tools = _compiled(source.with_tools) if source.with_tools else self._compiled

    def render(
        self,
        turns: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
        tools: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """What a template knows nothing of is told in words: plain_tools.py. `kwargs`: of the request."""
        pieces: list[str] = []
        size = 0
        compiled = self._with_tools if tools else self._compiled
        if not compiled.reads_calls:
            turns = turns_in_words(turns)
        if tools and not compiled.reads_tools:
            turns, tools = tools_in_words(turns, tools), ()
        variables: dict[str, Any] = {
            **(kwargs or {}),
            **self._special_tokens,
            "messages": turns,
            "tools": tools or None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            for piece in compiled.template.generate(variables):
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
