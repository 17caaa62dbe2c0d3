"""What one request came to. Written by the client, read by measure; knows neither HTTP nor JSON."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any


def _no_gaps() -> array[float]:
    # Four bytes a gap: a soak of an hour keeps all of them.
    return array("f")


@dataclass(slots=True)
class Outcome:
    """Times are seconds on the harness's clock; `error` is a kind, "" when all went well:

    refused, connect, connect_timeout   no connection      closed, reset, truncated   it broke
    http_429, http_503, ...             another answer     sse_error                  an error event
    bad_http, bad_json                  not understood     unfinished                 no finish_reason
    timeout                             no end in time
    """

    scheduled: float
    started: float = 0.0
    first: float | None = None  # arrival of the first chunk that carries text
    last: float | None = None
    ended: float = 0.0
    gaps: array[float] = field(default_factory=_no_gaps)  # between chunks of one choice
    chunks: int = 0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int = 0
    finish: str = ""
    speculation: dict[str, Any] | None = None
    error: str = ""
    detail: str = ""
    abandoned: bool = False

    @property
    def ok(self) -> bool:
        return not self.error and not self.abandoned

    def arrived(self, choice_last: float | None, now: float) -> None:
        """A chunk with text came; `choice_last` is when its choice's chunk before it did."""
        if self.first is None:
            self.first = now
        if choice_last is not None:
            self.gaps.append(now - choice_last)
        self.last = now
        self.chunks += 1
