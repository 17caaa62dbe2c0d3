"""A streamed request as its reader sees it: text, when it came, and what the server says of its drafts at the end."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from bench.workloads import route
from loadtest.completion_stream import said_in


class Heard(NamedTuple):
    """Times are of one clock, in seconds. From `first` on, one token is there; by `ended`, all. `steps` brought `given`
    tokens: more than `tokens` where a stop text ended the answer within a step, or before the target heard of it.
    `drafts`: all draft statistics of the answer, as the server sent them (`metrics.speculative_decoding`)."""

    text: str
    tokens: int
    steps: int
    given: int
    drafted: int
    accepted: int
    sent: float
    first: float
    ended: float
    drafts: Mapping[str, Any] = {}

    @property
    def decode_seconds(self) -> float:
        """Of all tokens but the first; an answer of a single piece took no time at all."""
        return max(self.ended - self.first, 1e-4)


class Refused(Exception):
    """The server did not answer with a stream that ends well; the message holds what it said."""


def listen(port: int, body: dict[str, Any], timeout: float = 600.0) -> Heard:
    asked = {**body, "stream_options": {"include_usage": True}, "return_speculate_metrics": True}
    sent = time.perf_counter()
    came = _lines(port, asked, timeout)
    return told([(at, json.loads(line[6:])) for at, line in came if line.startswith(b"data: {")], sent)


class Chunks(NamedTuple):
    """When each chunk with text came. `ended`: with the line that says so."""

    text: str
    at: list[float]
    sent: float
    ended: bool

    @property
    def first_s(self) -> float:
        return self.at[0] - self.sent


def chunks(port: int, body: dict[str, Any], timeout: float = 600.0, came: Callable[[], object] = int) -> Chunks:
    """`came` is called with each line of the stream."""
    sent = time.perf_counter()
    lines = _lines(port, body, timeout, came)
    events = [(at, json.loads(line[6:])) for at, line in lines if line.startswith(b"data: {")]
    if failed := [event["error"] for _, event in events if "error" in event]:
        raise Refused(str(failed[0]))
    pieces = [(at, each["text"]) for at, event in events for each in event.get("choices", ()) if each.get("text")]
    ended = any(line.startswith(b"data: [DONE]") for _, line in lines)
    return Chunks("".join(text for _, text in pieces), [at for at, _ in pieces], sent, ended)


def _lines(
    port: int, body: dict[str, Any], timeout: float, came: Callable[[], object] = int
) -> list[tuple[float, bytes]]:
    """Lines are kept as they come and read afterwards: whoever listens to many streams at once must be quick."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        sent = json.dumps({**body, "stream": True})
        connection.request("POST", route(body), sent, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise Refused(f"{answer.status}: {answer.read(2000)!r}")
        found = []
        for line in answer:
            if line.startswith(b"data: "):
                found.append((time.perf_counter(), line))
                came()
        return found
    finally:
        connection.close()


def told(events: list[tuple[float, dict[str, Any]]], sent: float) -> Heard:
    text, first, ended = "", 0.0, 0.0
    usage: dict[str, Any] = {}
    drafts: dict[str, Any] = {}
    steps: dict[str, Any] = {}
    for at, event in events:
        for choice in event.get("choices", ()):
            piece = choice.get("text") or said_in(choice.get("delta", {}))
            text += piece
            first = first or (at if piece else 0.0)
            ended = at if choice.get("finish_reason") else ended
            steps = choice.get("speculate_metrics") or steps
        usage = event.get("usage") or usage
        drafts = event.get("metrics", {}).get("speculative_decoding") or drafts
    if not usage or not ended or not first or not steps:
        raise Refused(f"a stream without text, end, usage or steps: {events[-3:]}")
    return Heard(
        text,
        usage["completion_tokens"],
        round(steps["accepted_tokens"] / max(1.0, steps["average_accept_length"])),
        steps["accepted_tokens"],
        drafts.get("num_draft_tokens", 0),
        drafts.get("num_accepted_draft_tokens", 0),
        sent,
        first,
        ended,
        drafts,
    )
