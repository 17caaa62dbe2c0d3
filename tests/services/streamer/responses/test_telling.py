"""A response as it grows: the same items however the answer's text came, and events that add up to them."""

from __future__ import annotations

import random
from typing import Any

import orjson
import pytest

from services.streamer.agents import hermes
from services.streamer.agents.reader import AnswerReader, Said
from services.streamer.agents.reasoning import Reasoning
from services.streamer.choice.generation import Ending
from services.streamer.openai.errors import ApiError
from services.streamer.openai.request import RequestLimits
from services.streamer.responses.body import parse_response
from services.streamer.responses.kept import Bounds, KeptResponses
from services.streamer.responses.output import Event
from services.streamer.responses.telling import Telling, written

TIME = '<tool_call>{"name": "time", "arguments": {}}</tool_call>'
ANSWERS = {
    "hello the fox": [("message", "hello the fox")],
    "": [("message", "")],
    f"<think>hm, the fox</think>\n\nOn it.\n{TIME}\n{TIME}": [
        ("reasoning", "hm, the fox"), ("message", "On it."), ("time", "{}"), ("time", "{}")],
    f"{TIME}\nDone.\n{TIME}": [("time", "{}"), ("message", "Done."), ("time", "{}")],
    "<think>hm": [("reasoning", "hm")],
    '<tool_call>{"name": "time", "arguments": {"zone": "C': [("time", '{"zone": "C')],
}  # fmt: skip


def telling() -> Telling:
    kept = KeptResponses(Bounds(), lambda: 0.0).of("")
    request = parse_response({"model": "m", "input": "hi"}, RequestLimits(), kept)
    return Telling(request, "resp_1", 17)


def told(text: str, cuts: list[int], reason: Any = "stop") -> list[Event]:
    """The events of an answer whose text came in these pieces."""
    ids = iter(range(100))
    reader = AnswerReader(Reasoning(False), None, hermes.parser(), lambda: f"call_{next(ids)}")
    response, events = telling(), []
    events += response.begun()
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        events += response.said(reader.feed(text[start:end]))
    events += response.said(reader.flush())
    events += response.ended(Ending(reason, 5, None, None))
    return [(kind, orjson.loads(orjson.dumps(fields))) for kind, fields in events]


def items(events: list[Event]) -> list[dict[str, Any]]:
    return [fields["item"] for kind, fields in events if kind == "response.output_item.done"]


def brief(item: dict[str, Any]) -> tuple[str, str]:
    if item["type"] == "function_call":
        return item["name"], item["arguments"]
    (part,) = item["content"]
    return item["type"], part["text"]


@pytest.mark.parametrize("text", ANSWERS)
def test_the_items_follow_the_text_however_it_was_cut(text: str) -> None:
    draw = random.Random(1)
    for count in [0, len(text) - 1, *(draw.randrange(9) for _ in range(50))]:
        cuts = sorted(draw.sample(range(1, len(text)), min(count, len(text) - 1))) if len(text) > 1 else []
        assert [brief(each) for each in items(told(text, cuts))] == ANSWERS[text]


@pytest.mark.parametrize("text", ANSWERS)
def test_deltas_add_up_to_what_is_done(text: str) -> None:
    joined: dict[str, str] = {}
    added: list[str] = []
    for kind, fields in told(text, list(range(1, len(text), 3))):
        if kind == "response.output_item.added":
            assert fields["output_index"] == len(added) and fields["item"]["status"] == "in_progress"
            added.append(fields["item"]["id"])
        if kind.endswith(".delta"):
            assert fields["item_id"] == added[fields["output_index"]] == added[-1]
            joined[fields["item_id"]] = joined.get(fields["item_id"], "") + fields["delta"]
        if kind in ("response.output_text.done", "response.reasoning_text.done"):
            assert fields["text"] == joined.get(fields["item_id"], "")
        if kind == "response.function_call_arguments.done":
            assert fields["arguments"] == joined.get(fields["item_id"], "")
        if kind == "response.output_item.done":
            assert fields["item"]["id"] == added[fields["output_index"]]


def test_what_was_cut_off_is_incomplete() -> None:
    statuses = [each["status"] for each in items(told(f"{TIME}\nDone", [], "length"))]
    assert statuses == ["completed", "incomplete"]


def test_an_answer_that_fails_tells_what_it_has() -> None:
    response = telling()
    reader = AnswerReader(None, None, hermes.parser(), lambda: "call_1")
    list(response.begun())
    list(response.said(reader.feed(f"a\n{TIME}\nb")))
    events = list(response.failed(ApiError(429, "too many", code="overloaded")))
    assert events[0] == ("error", {"code": "overloaded", "message": "too many", "param": None})
    kind, fields = events[1]
    body = fields["response"]
    assert (kind, body["status"]) == ("response.failed", "failed")
    assert body["error"] == {"code": "rate_limit_exceeded", "message": "too many"}
    assert [(each["type"], each["status"]) for each in body["output"]] == [
        ("message", "completed"), ("function_call", "completed"), ("message", "incomplete"),
    ]  # fmt: skip


def test_an_event_names_its_type_twice() -> None:
    assert written(("response.x", {"a": "é\n"}), 7) == (
        'event: response.x\ndata: {"type":"response.x","sequence_number":7,"a":"é\\n"}\n\n'.encode()
    )


def test_tokens_without_text_at_the_end_are_told_with_the_last_message() -> None:
    response = telling()
    list(response.said(Said(content="a", parts=["a"]), b"1"))
    list(response.said(Said(), b"2"))
    events = list(response.ended(Ending("stop", 2, None, None)))
    assert [(kind, fields["delta"]) for kind, fields in events[:1]] == [("response.output_text.delta", "")]
    assert orjson.loads(orjson.dumps(response.output))[0]["content"][0]["logprobs"] == [1, 2]
