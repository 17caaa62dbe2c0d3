"""Reads an answer that a grammar holds to calls or to another form. It is calls if it begins with their opener, which
may stand inside the other form, too."""

from __future__ import annotations

from services.streamer.agents.parts import CallParser, Part


class FormOrCalls:
    def __init__(self, calls: CallParser, opener: str) -> None:
        self._calls = calls
        self._opener = opener
        self._begin = ""
        self._is_form: bool | None = None  # None: not known yet

    def feed(self, text: str) -> list[Part]:
        if self._is_form is None:
            text = self._begin + text
            if len(text) < len(self._opener) and self._opener.startswith(text):
                self._begin = text
                return []
            self._is_form = not text.startswith(self._opener)
        if not self._is_form:
            return self._calls.feed(text)
        return [text] if text else []

    def flush(self) -> list[Part]:
        if self._is_form is None:
            return [self._begin] if self._begin else []
        return [] if self._is_form else self._calls.flush()
