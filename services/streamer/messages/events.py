"""The events of a streamed message. Pure: what a reader has read goes in, bytes come out.

    message_start, ping ─▶ content_block_start ─▶ content_block_delta … ─▶ content_block_stop ─┐
                              ▲─────────────────── the next block ──────────────────────────────┤
                                                    message_delta (why it ended, usage) ◀───────┘ ─▶ message_stop
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from services.streamer.agents.reader import Said, SaidCall

PING: Final = b'event: ping\ndata: {"type":"ping"}\n\n'
STOP: Final = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
# Of each kind of block: how it begins, and the type and field of its deltas.
TEXT, THINKING = "text", "thinking"
BEGINNINGS: dict[str, dict[str, Any]] = {
    TEXT: {"type": "text", "text": ""},
    # Signatures are for servers that keep their reasoning from the client.
    THINKING: {"type": "thinking", "thinking": "", "signature": ""},
}
DELTAS = {TEXT: ("text_delta", "text"), THINKING: ("thinking_delta", "thinking")}


def event(value: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (value["type"].encode(), orjson.dumps(value))


def begin(message: dict[str, Any]) -> bytes:
    """`message`: the object as it is before its first token."""
    return event({"type": "message_start", "message": message}) + PING


class Blocks:
    """The content blocks of one message: one is open at a time."""

    __slots__ = ("_call", "_index", "_kind")

    def __init__(self) -> None:
        self._index = -1
        self._kind = ""  # of the open block; "": none is
        self._call = -1  # the number of the call that the open block is

    def said(self, said: Said) -> bytes:
        parts = []
        if said.reasoning:
            parts.append(self._more(THINKING, said.reasoning))
        if said.content:
            parts.append(self._more(TEXT, said.content))
        parts += [self._more_of_call(each) for each in said.calls]
        return b"".join(parts)

    def text(self, text: str) -> bytes:
        return self._more(TEXT, text)

    def end(self) -> bytes:
        """Closes the open block. Repeat-safe."""
        if not self._kind:
            return b""
        self._kind, self._call = "", -1
        return event({"type": "content_block_stop", "index": self._index})

    def _more(self, kind: str, text: str) -> bytes:
        begun = b"" if self._kind == kind else self._begin(kind, BEGINNINGS[kind])
        name, field = DELTAS[kind]
        return begun + self._delta({"type": name, field: text})

    def _more_of_call(self, call: SaidCall) -> bytes:
        begun = b""
        if self._call != call.index:
            block = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
            begun = self._begin("tool_use", block)
            self._call = call.index
        if not call.arguments:
            return begun
        return begun + self._delta({"type": "input_json_delta", "partial_json": call.arguments})

    def _begin(self, kind: str, block: dict[str, Any]) -> bytes:
        ended = self.end()
        self._index += 1
        self._kind = kind
        return ended + event({"type": "content_block_start", "index": self._index, "content_block": block})

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return event({"type": "content_block_delta", "index": self._index, "delta": delta})


def end(blocks: Blocks, ended: dict[str, Any], told: dict[str, Any]) -> bytes:
    """`ended`: why; `told`: what else message_delta has."""
    return blocks.end() + event({"type": "message_delta", "delta": ended, **told}) + STOP
