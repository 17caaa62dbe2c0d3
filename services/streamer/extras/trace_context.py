"""The trace that a request belongs to: that of its client, as the header `traceparent` (W3C) says it, or a new one.

    00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
    version, id of the trace, id of the client's span, flags: 1 says that the trace is recorded

What is no such header counts as none: a request never fails for it.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

TRACEPARENT = "traceparent"
SAMPLED = 0x01
_HEADER = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


@dataclass(frozen=True, slots=True)
class TraceContext:
    """`span_id`: of the request's own span; `parent_id`: of the client's, "": it has none."""

    trace_id: str
    span_id: str
    parent_id: str = ""


def new_span_id() -> str:
    return secrets.token_hex(8)


def trace_of(headers: Sequence[str]) -> TraceContext | None:
    """None: the client says that its trace isn't recorded. `headers`: all values of traceparent."""
    found = _HEADER.fullmatch(headers[0].strip()) if len(headers) == 1 else None
    if found is None or not _valid(*found.groups()):
        return TraceContext(secrets.token_hex(16), new_span_id())
    _, trace_id, parent_id, flags, _ = found.groups()
    return TraceContext(trace_id, new_span_id(), parent_id) if int(flags, 16) & SAMPLED else None


def _valid(version: str, trace_id: str, parent_id: str, flags: str, more: str | None) -> bool:
    """Later versions may have more fields, and ff is none."""
    return version != "ff" and (more is None or version != "00") and bool(int(trace_id, 16) and int(parent_id, 16))
