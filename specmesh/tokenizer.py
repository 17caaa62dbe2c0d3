"""The tokenizer of the server that an LLM uses, under the names of Hugging Face's. Each call asks the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, overload

from specmesh.connection import Connection


class Tokenizer:
    def __init__(self, connection: Connection, model: str) -> None:
        self._connection = connection
        self._model = model

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return self._ids({"prompt": text, "add_special_tokens": add_special_tokens})

    def decode(self, token_ids: Sequence[int]) -> str:
        """With the text of special tokens."""
        return str(self._ask("/detokenize", {"tokens": list(token_ids)})["prompt"])

    @overload
    def apply_chat_template(
        self, conversation: Sequence[Mapping[str, Any]], *, tokenize: Literal[True] = ..., **more: Any
    ) -> list[int]: ...
    @overload
    def apply_chat_template(
        self, conversation: Sequence[Mapping[str, Any]], *, tokenize: Literal[False], **more: Any
    ) -> str: ...
    def apply_chat_template(
        self, conversation: Sequence[Mapping[str, Any]], *, tokenize: bool = True, add_generation_prompt: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None, **template: Any,
    ) -> list[int] | str:  # fmt: skip
        """The prompt of a conversation. `template`: variables of the template."""
        body = {"messages": list(conversation), "add_generation_prompt": add_generation_prompt}
        given = {"tools": tools, "chat_template_kwargs": template}
        ids = self._ids(body | {name: value for name, value in given.items() if value})
        return ids if tokenize else self.decode(ids)

    def _ids(self, body: dict[str, Any]) -> list[int]:
        return list(self._ask("/tokenize", body)["tokens"])

    def _ask(self, path: str, body: dict[str, Any]) -> Any:
        return self._connection.run(self._connection.post(path, {"model": self._model, **body}))
