"""Whole answers in OpenAI's shapes."""

from __future__ import annotations

import time

import pytest

from services.streamer.agents.families import Formats, tool_format
from services.streamer.agents.reader import AnswerReader
from services.streamer.choice import chat_shapes


def reader_of(name: str) -> AnswerReader:
    made = Formats(tools=tool_format(name, "")).reader({}, "", one_call=False, quiet=False)
    assert made is not None
    return made


CALL = '{"name": "f", "parameters": {"a": "%s"}}'


def test_a_call_longer_than_a_piece_is_one() -> None:
    long = "x" * (3 * chat_shapes.PIECE)
    told = chat_shapes.message(reader_of("llama3_json"), f"{CALL % long}; {CALL % 'y'}")
    assert [each["function"]["arguments"] for each in told["tool_calls"]] == [f'{{"a": "{long}"}}', '{"a": "y"}']
    assert len({each["id"] for each in told["tool_calls"]}) == 2


@pytest.mark.parametrize(
    ("name", "call"), [("ernie45", "<tool_call>"), ("qwen3_coder", "<function=f></function>")]
)
def test_the_time_grows_with_the_calls_and_not_with_their_square(name: str, call: str) -> None:
    """A square would take half a minute of the processor."""
    began = time.thread_time()
    chat_shapes.message(reader_of(name), call * 60_000)
    assert time.thread_time() - began < 5.0
