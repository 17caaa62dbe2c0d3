"""The result of one request. Written by the client, read by measure; knows neither HTTP nor JSON."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any


def _floats() -> array[float]:
    # Four bytes per chunk, so that all chunks of an hour fit into memory.
    return array("f")


def _counts() -> array[int]:
    return array("I")


FIRST = -1.0  # in `gaps`: the first chunk of a choice


@dataclass(slots=True)
class Outcome:
    """Times are seconds on the harness's clock. `error` is a kind, empty on success:

    refused, connect, connect_timeout   no connection      closed, reset, truncated   connection broke
    http_429, http_503, ...             HTTP error         sse_error                  an error event
    bad_http, bad_json                  invalid response   unfinished                 no finish_reason
    timeout                             no end in time

    `gaps`, `told` and `sizes` have an element for each chunk with text, of any choice.
    """

    scheduled: float
    started: float = 0.0
    index: int = 0  # session number in the workload
    turn: int = 0
    first: float | None = None  # arrival of the first chunk with text
    last: float | None = None
    ended: float = 0.0
    gaps: array[float] = field(default_factory=_floats)  # time since the previous chunk of the choice; or FIRST
    told: array[int] = field(default_factory=_counts)  # tokens of the chunk reported by the server; 0: unknown
    sizes: array[int] = field(default_factory=_counts)  # characters of the chunk
    chunks: int = 0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int = 0
    finish: str = ""
    speculation: dict[str, Any] | None = None
    pieces: dict[int, list[str]] | None = None  # choice -> its text; None: texts are not kept
    error: str = ""
    detail: str = ""
    retry_after: str = ""  # the header of an HTTP error
    local_port: int = 0  # of the connection
    abandoned: bool = False

    @property
    def ok(self) -> bool:
        return not self.error and not self.abandoned

    @property
    def text(self) -> str:
        """The text of the first choice, if texts are kept."""
        return "".join((self.pieces or {}).get(0, ()))

    @property
    def texts(self) -> tuple[str, ...]:
        pieces = self.pieces or {}
        return tuple("".join(pieces[choice]) for choice in sorted(pieces))

    def arrived(self, choice_last: float | None, now: float, tokens: int, size: int) -> None:
        """Records a chunk with text; `choice_last` is the arrival of the previous chunk of its choice."""
        if self.first is None:
            self.first = now
        self.gaps.append(FIRST if choice_last is None else now - choice_last)
        self.told.append(tokens)
        self.sizes.append(size)
        self.last = now
        self.chunks += 1
