from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.streamer.door.sse import DONE, ChunkForm, around_text, event

HEAD = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 5, "model": 'a "model"'}


def form(*, chat: bool = True, usage_asked: bool = False) -> ChunkForm:
    return ChunkForm(HEAD, 2, chat=chat, usage_asked=usage_asked)


def read(chunk: bytes) -> dict[str, object]:
    assert chunk.startswith(b"data: ") and chunk.endswith(b"\n\n")
    assert b"\n" not in chunk[:-2]
    body = orjson.loads(chunk[6:])
    assert {name: body.pop(name) for name in HEAD} == HEAD
    return dict(body)


@given(st.text())
def test_any_text_survives_the_ready_made_bytes(text: str) -> None:
    choice = {"index": 2, "delta": {"content": text}, "logprobs": None, "finish_reason": None}
    assert read(form().text(text)) == {"choices": [choice]}
    choice = {"index": 2, "text": text, "logprobs": None, "finish_reason": None}
    assert read(form(chat=False).text(text)) == {"choices": [choice]}


def test_the_first_chunk_of_a_chat_names_the_role_and_completions_have_none() -> None:
    delta = {"role": "assistant", "content": ""}
    expected = {"index": 2, "delta": delta, "logprobs": None, "finish_reason": None}
    assert read(form().role()) == {"choices": [expected]}
    assert form(chat=False).role() == b""


def test_the_last_chunk_of_a_choice_has_an_empty_delta_and_the_reason() -> None:
    expected = {"index": 2, "delta": {}, "logprobs": None, "finish_reason": "stop", "stop_reason": "END"}
    assert read(form().finish("stop", {"stop_reason": "END"})) == {"choices": [expected]}


@pytest.mark.parametrize("chat", [False, True])
def test_every_chunk_has_a_null_usage_once_usage_is_asked_for(chat: bool) -> None:
    ours = form(chat=chat, usage_asked=True)
    for chunk in (ours.text("x"), ours.finish("stop", {}), ours.chunk("x", None, {"token_ids": [1]})):
        body = read(chunk)
        assert body["usage"] is None
        assert len(body["choices"]) == 1  # type: ignore[arg-type]


@given(st.text(), st.text(), st.booleans(), st.booleans())
def test_chunks_of_text_alone_can_be_joined(one: str, other: str, chat: bool, usage_asked: bool) -> None:
    ours = form(chat=chat, usage_asked=usage_asked)
    first, second = around_text(ours.text(one)), around_text(ours.text(other))
    assert first is not None and second is not None
    before, text, after = first
    assert (second[0], second[2]) == (before, after)
    assert before + text + second[1] + after == ours.text(one + other)


@pytest.mark.parametrize("chat", [False, True])
def test_other_events_are_not_taken_for_text(chat: bool) -> None:
    ours = form(chat=chat)
    others = [
        ours.finish("stop", {"stop_reason": None}),
        ours.chunk("x", None, {"token_ids": [1]}),
        ours.chunk("x", {"content": []}, {}),
        event({"error": {"message": '"delta":{"content":"x"},"logprobs":null,"finish_reason":null}]}'}}),
        DONE,
    ]
    assert [around_text(each) for each in others + ([ours.role()] if chat else [])] == [None] * (5 + chat)
