"""What one request came to. Written by the client, read by measure; knows neither HTTP nor JSON."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any


def _floats() -> array[float]:
    # Four bytes a chunk: a soak of an hour keeps all of them.
    return array("f")


def _counts() -> array[int]:
    return array("I")


FIRST = -1.0  # in `gaps`: the first chunk of a choice


@dataclass(slots=True)
class Outcome:
    """Times are seconds on the harness's clock; `error` is a kind, "" when all went well:

    refused, connect, connect_timeout   no connection      closed, reset, truncated   it broke
    http_429, http_503, ...             another answer     sse_error                  an error event
    bad_http, bad_json                  not understood     unfinished                 no finish_reason
    timeout                             no end in time

    `gaps`, `told` and `sizes` have a place for each chunk with text, whatever its choice.
    """

    scheduled: float
    started: float = 0.0
    index: int = 0  # of its session in the workload
    turn: int = 0
    first: float | None = None  # arrival of the first chunk that carries text
    last: float | None = None
    ended: float = 0.0
    gaps: array[float] = field(default_factory=_floats)  # since the chunk before of the same choice; or FIRST
    told: array[int] = field(default_factory=_counts)  # tokens of the chunk as the server says; 0: it doesn't
    sizes: array[int] = field(default_factory=_counts)  # characters of the chunk
    chunks: int = 0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int = 0
    finish: str = ""
    speculation: dict[str, Any] | None = None
    pieces: dict[int, list[str]] | None = None  # choice -> its text; None: texts aren't kept
    error: str = ""
    detail: str = ""
    abandoned: bool = False

    @property
    def ok(self) -> bool:
        return not self.error and not self.abandoned

    @property
    def text(self) -> str:
        """The first choice's, where texts are kept."""
        return "".join((self.pieces or {}).get(0, ()))

    @property
    def texts(self) -> tuple[str, ...]:
        pieces = self.pieces or {}
        return tuple("".join(pieces[choice]) for choice in sorted(pieces))

    def arrived(self, choice_last: float | None, now: float, tokens: int, size: int) -> None:
        """A chunk with text came; `choice_last` is when its choice's chunk before it did."""
        if self.first is None:
            self.first = now
        self.gaps.append(FIRST if choice_last is None else now - choice_last)
        self.told.append(tokens)
        self.sizes.append(size)
        self.last = now
        self.chunks += 1
