"""Text that is held until it is known what it is. White space at its beginning is kept apart, so that a long run of it
is read once, however it is cut."""

from __future__ import annotations


class Held:
    """`begin`: the text from its first character that is no white space."""

    __slots__ = ("_spaces", "begin")

    def __init__(self, text: str = "") -> None:
        self._spaces: list[str] = []
        self.begin = ""
        self.add(text)

    def add(self, text: str) -> None:
        if self.begin:
            self.begin += text
            return
        self.begin = text.lstrip()
        self._spaces.append(text[: len(text) - len(self.begin)])

    def take_spaces(self) -> str:
        """They aren't held any more."""
        spaces, self._spaces = "".join(self._spaces), []
        return spaces

    def take(self) -> str:
        """All of it. Nothing is held any more."""
        text, self.begin = self.take_spaces() + self.begin, ""
        return text
