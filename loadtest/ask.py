"""Settings common to all requests, and the sides of a comparison. Knows request bodies, no sockets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from loadtest.client import request_body
from loadtest.workloads.session import Body, as_chat, as_completion

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MAX_TOKENS = 128


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """None means the request's own value, or else a default. Without `path` the body decides the route. `extra` is
    added to the body unchanged. Fields that some servers don't know are sent only if asked for. `own_salt`: each
    session gets a `cache_salt` that begins with it.
    """

    path: str = ""
    model: str = ""
    max_tokens: int | None = None
    temperature: float | None = None
    seed: int = 0
    ignore_eos: bool = False
    token_ids: bool = False
    speculation: Mapping[str, Any] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    own_salt: str = ""

    def shaped(self, body: Mapping[str, Any]) -> Body:
        """The body in the form of the route: messages or a prompt."""
        if not self.path:
            return dict(body)
        return as_chat(body) if self.path == CHAT else as_completion(body)

    def request(self, body: Body, index: int) -> tuple[str, bytes]:
        """The route, and the body as bytes."""
        asked: Body = {
            "max_tokens": MAX_TOKENS,
            "temperature": 0.0,
            **body,
            "model": self.model,
            "stream": True,
            "stream_options": {"include_usage": True},
            "seed": self.seed + index,
        }
        if self.max_tokens is not None:
            asked["max_tokens"] = self.max_tokens
        if self.temperature is not None:
            asked["temperature"] = self.temperature
        if self.ignore_eos:
            asked["ignore_eos"] = True
        if self.token_ids:
            asked["return_token_ids"] = True
        if self.speculation is not None:
            asked["speculation"] = self.speculation
        if self.own_salt:
            asked["cache_salt"] = f"{self.own_salt} {index}"
        asked.update(self.extra)
        path = self.path or (CHAT if "messages" in asked else COMPLETIONS)
        return path, request_body({name: value for name, value in asked.items() if value is not None})


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison: fields of the body, or another server. An empty `url` means the run's server."""

    label: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    url: str = ""

    def ask(self, common: LoadRequest, salt: str, cold: bool = False) -> LoadRequest:
        """Sides that set `speculation` get a `cache_salt` each, unless `salt` is empty. Otherwise the second side would
        find the prompts in the prefix cache and draft from the first side's answers. `cold`: each session gets one.
        A `cache_salt` among the fields takes the place of both."""
        own = f"{salt} {self.label}".strip() if salt else ""
        more = dict(self.fields)
        if own and not cold and "speculation" in more:
            more = {"cache_salt": own, **more}
        return replace(common, extra={**common.extra, **more}, own_salt=own if cold else "")


def side(text: str) -> Side:
    """Parses `name=value`, several joined by `;`. `speculation=METHOD[:LENGTH]` sets the method and draft length, `off`
    turns it off. `url=` is another server, `label=` the name of the side. Other names are fields of the body (`a.b=`
    is a nested field); values are JSON or plain words.
    """
    fields: dict[str, Any] = {}
    label, url = text, ""
    for part in text.split(";"):
        name, equals, value = part.strip().partition("=")
        if not equals or not name:
            raise ValueError(f"{part!r} of {text!r} is not name=value")
        if name == "url":
            url = value
        elif name == "label":
            label = value
        else:
            _put(fields, name.split("."), speculation(value) if name == "speculation" else json_or_word(value))
    return Side(label, fields, url)


def speculation(text: str) -> dict[str, Any]:
    """`off`, a method, `method:longest draft`, or a JSON object."""
    if text.startswith("{"):
        value: dict[str, Any] = json.loads(text)
        return value
    method, colon, longest = text.partition(":")
    if not method.replace("_", "").isalnum() or (colon and not longest.isdigit()):
        raise ValueError(f"{text!r} is neither a method, nor method:longest draft, nor a JSON object")
    return {"method": method} | ({"num_speculative_tokens": int(longest)} if colon else {})


def json_or_word(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _put(fields: dict[str, Any], names: list[str], value: Any) -> None:
    *outer, last = names
    for name in outer:
        fields = fields.setdefault(name, {})
        if not isinstance(fields, dict):
            raise ValueError(f"{name} is set twice, once as a value and once with fields")
    fields[last] = value
