"""The arguments of a call as chat templates read them: some as an object, some as a text that they write out or join to
another with `+`."""

from __future__ import annotations

import json
from typing import Any


class CallArguments(dict[str, Any]):
    """An object, which as a text is the JSON that the client sent. Raises ValueError if that is no object."""

    def __init__(self, text: str) -> None:
        value = json.loads(text)
        if not isinstance(value, dict):
            raise ValueError("arguments are an object")
        super().__init__(value)
        self._text = text

    def __str__(self) -> str:
        return self._text

    def __add__(self, other: str) -> str:
        return self._text + other

    def __radd__(self, other: str) -> str:
        return other + self._text
