"""What a parser of tool calls finds in a text: content, and calls as they come. Knows no format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class CallDelta:
    """A part of the `index`-th call. Its first part has the name, and the id if the model writes ids; the arguments of
    all its parts are joined."""

    index: int
    name: str = ""
    arguments: str = ""
    written_id: str = ""


# A text is content.
Part = str | CallDelta


class CallParser(Protocol):
    """Of one answer. However the text is cut into pieces, content and calls are the same in all. Nothing that a model
    writes raises an exception: what is no call is content."""

    def feed(self, text: str) -> list[Part]: ...

    def flush(self) -> list[Part]:
        """The text has ended."""
        ...


class CallBody(Protocol):
    """What follows a marker, from its first character on."""

    def feed(self, text: str) -> tuple[list[Part], str | None]:
        """Parts, and once the body is over the text behind it."""
        ...

    def flush(self) -> list[Part]: ...

    @property
    def calls(self) -> int:
        """How many it has begun."""
        ...
