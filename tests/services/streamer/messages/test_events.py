from __future__ import annotations

from typing import Any

import orjson

from services.streamer.agents.reader import Said, SaidCall
from services.streamer.messages.errors import body, failure, speaks_messages, status
from services.streamer.messages.events import PING, STOP, Blocks, begin, end
from services.streamer.openai.errors import ApiError


def told(stream: bytes) -> list[dict[str, Any]]:
    """Each event says its type twice: in a line of its own, and in its data."""
    found = []
    for each in stream.split(b"\n\n")[:-1]:
        name, data = each.split(b"\n")
        value = orjson.loads(data.removeprefix(b"data: "))
        assert name.removeprefix(b"event: ").decode() == value["type"]
        found.append(value)
    return found


def short(stream: bytes) -> list[Any]:
    """Blocks as ("start", index, type) and so on."""
    kept = []
    for each in told(stream):
        kind = each["type"].removeprefix("content_block_")
        inside = each.get("content_block") or each.get("delta") or {}
        kept.append((kind, each["index"], *inside.values()))
    return kept


def test_a_block_is_begun_continued_and_ended() -> None:
    blocks = Blocks()
    stream = blocks.text("a") + blocks.said(Said(content="b")) + blocks.end() + blocks.end()
    assert short(stream) == [
        ("start", 0, "text", ""),
        ("delta", 0, "text_delta", "a"),
        ("delta", 0, "text_delta", "b"),
        ("stop", 0),
    ]


def test_one_block_is_open_at_a_time() -> None:
    blocks = Blocks()
    first = Said("Hm.", "On it.", [SaidCall(0, "c1", "weather"), SaidCall(1, "c2", "time", "{")])
    stream = blocks.said(first) + blocks.said(Said(calls=[SaidCall(1, arguments="}")])) + blocks.text("Done.")
    assert short(stream + blocks.end()) == [
        ("start", 0, "thinking", "", ""), ("delta", 0, "thinking_delta", "Hm."), ("stop", 0),
        ("start", 1, "text", ""), ("delta", 1, "text_delta", "On it."), ("stop", 1),
        ("start", 2, "tool_use", "c1", "weather", {}), ("stop", 2),
        ("start", 3, "tool_use", "c2", "time", {}), ("delta", 3, "input_json_delta", "{"),
        ("delta", 3, "input_json_delta", "}"), ("stop", 3),
        ("start", 4, "text", ""), ("delta", 4, "text_delta", "Done."), ("stop", 4),
    ]  # fmt: skip


def test_a_message_begins_with_itself_and_ends_with_why() -> None:
    opening, ping = told(begin({"id": "msg_1"}))
    assert opening == {"type": "message_start", "message": {"id": "msg_1"}} and ping == {"type": "ping"}
    blocks = Blocks()
    blocks.text("a")
    stopped, why, last = told(end(blocks, {"stop_reason": "end_turn"}, {"usage": {}}))
    assert stopped == {"type": "content_block_stop", "index": 0}
    assert why == {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {}}
    assert last == {"type": "message_stop"} and told(PING + STOP) == [ping, last]


def test_errors_have_the_status_and_the_type_of_that_api() -> None:
    kinds = {
        400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
        405: "invalid_request_error", 413: "request_too_large", 429: "rate_limit_error", 500: "api_error",
        503: "overloaded_error", 504: "timeout_error",
    }  # fmt: skip
    for code, kind in kinds.items():
        error = ApiError(code, "because", code="x")
        assert body(error) == {"type": "error", "error": {"type": kind, "message": "because"}}
        assert status(error) == (529 if code == 503 else code)
        assert told(failure(error)) == [body(error)]


def test_paths_of_that_api_are_known() -> None:
    assert all(map(speaks_messages, ("/v1/messages", "/v1/messages/count_tokens", "/v1/messages/batches")))
    assert not any(map(speaks_messages, ("/v1/messages2", "/v1/chat/completions", "/messages")))
