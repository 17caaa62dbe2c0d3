"""The prompt in an answer: its text, and the log-probabilities of its tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from fake_mesh import (
    CARD,
    MODEL,
    TOKENIZER,
    FakeMesh,
    FakeTarget,
    Script,
    about_prompt,
    columns,
    finished,
    ids_of,
    says,
    tokens,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tokenizer import END_OF_TEXT, byte_fallback_tokenizer
from sse_reading import streamed, text_of

from mesh.stream import StreamWriter
from services.api.messages import Generate
from services.api.prompt_logprobs import parts
from services.streamer.choice.delivery import Delivery, Piece
from services.streamer.choice.detokenize import Vocabulary
from services.streamer.choice.echo import Echo
from services.streamer.openai.errors import ApiError
from services.streamer.openai.request import RequestLimits, parse_chat, parse_completion

COMPLETIONS = "/v1/completions"
PROMPT = "the quick fox says: "
IDS = ids_of(PROMPT)
ANSWER = ids_of("hello the fox")


async def post(http: aiohttp.ClientSession, mesh: FakeMesh, path: str = COMPLETIONS, **fields: Any) -> Any:
    body = {"model": MODEL, **({"prompt": PROMPT} if path == COMPLETIONS else {}), **fields}
    async with http.post(mesh.url + path, json=body) as response:
        found = await response.json()
        assert response.status == 200, found
        return found


async def started(mesh: FakeMesh, script: Script | None = None) -> FakeTarget:
    target = await mesh.start_target(script or says(ANSWER))
    await mesh.start_door()
    return target


# Over HTTP -----------------------------------------------------------------------------------------------


async def test_log_probabilities_begin_with_the_prompts(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    target = await started(mesh)
    body = await post(http, mesh, echo=True, logprobs=2, max_tokens=2)
    [choice] = body["choices"]
    told = choice["logprobs"]
    named = [TOKENIZER.decode([token]) for token in [*IDS, *ANSWER[:2]]]
    assert choice["text"] == "".join(named) == PROMPT + "hello the" and told["tokens"] == named
    assert told["token_logprobs"] == [None, *(-token / 4 for token in IDS[1:]), *(-each / 100 for each in ANSWER[:2])]
    assert told["top_logprobs"][:2] == [None, {"A": 0.0, "B": -0.25}]
    assert told["text_offset"] == [sum(map(len, named[:place])) for place in range(len(named))]
    assert body["usage"]["completion_tokens"] == 2
    assert target.asked[0].sampling.prompt_logprobs == 2


async def test_the_prompt_alone_can_be_asked_about(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await started(mesh)
    body = await post(http, mesh, prompt=IDS, echo=True, logprobs=1, max_tokens=0)
    [choice] = body["choices"]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (PROMPT, "length", None)
    assert len(choice["logprobs"]["token_logprobs"]) == len(IDS)
    assert body["usage"] == {
        "prompt_tokens": len(IDS),
        "completion_tokens": 0,
        "total_tokens": len(IDS),
        "prompt_tokens_details": {"cached_tokens": 0},
    }


async def test_each_prompt_and_choice_begins_with_its_own(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    target = await started(mesh)
    body = await post(http, mesh, prompt=["one fox", "the"], n=2, echo=True, logprobs=0, max_tokens=1)
    assert [each["text"] for each in body["choices"]] == ["one foxhello"] * 2 + ["thehello"] * 2
    counts = [len(each["logprobs"]["tokens"]) for each in body["choices"]]
    assert counts == [len(ids_of("one fox")) + 1] * 2 + [len(ids_of("the")) + 1] * 2
    assert all(each["logprobs"]["top_logprobs"] is None for each in body["choices"])
    assert [asked.sampling.prompt_logprobs for asked in target.asked] == [0] * 4


async def test_text_alone_needs_no_log_probabilities(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    target = await started(mesh)
    body = await post(http, mesh, echo=True, return_token_ids=True, return_provenance=True, max_tokens=3)
    [choice] = body["choices"]
    assert (choice["text"], choice["logprobs"]) == (PROMPT + "hello the fox"[: len(choice["text"]) - len(PROMPT)], None)
    assert (choice["token_ids"], choice["prompt_token_ids"]) == (ANSWER[:3], IDS)
    assert sum(run["tokens"] for run in choice["runs"]) == 3
    assert target.asked[0].sampling.prompt_logprobs == -1


@pytest.mark.parametrize("logprobs", [None, 2])
async def test_a_stream_begins_with_the_prompt_and_adds_up(
    mesh: FakeMesh, http: aiohttp.ClientSession, logprobs: int | None
) -> None:
    await started(mesh)
    asked = {"echo": True, "logprobs": logprobs, "max_tokens": 2}
    whole = (await post(http, mesh, **asked))["choices"][0]
    chunks = await streamed(http, mesh.url + COMPLETIONS, {"model": MODEL, "prompt": PROMPT, **asked})
    assert chunks.pop() == "[DONE]"
    assert text_of(chunks) == whole["text"]
    told = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    if logprobs is None:
        assert told == [None] * len(chunks)
        return
    for name, values in whole["logprobs"].items():
        assert [each for part in told if part for each in part[name]] == values


async def test_a_stop_string_in_the_prompt_ends_nothing(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await started(mesh)
    body = await post(http, mesh, echo=True, logprobs=0, max_tokens=9, stop=["quick", " fox"])
    [choice] = body["choices"]
    assert (choice["text"], choice["stop_reason"]) == (PROMPT + "hello the", " fox")


async def test_vllms_form_is_by_token_id(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await started(mesh)
    body = await post(http, mesh, prompt_logprobs=2, max_tokens=1)
    [choice] = body["choices"]
    assert (choice["text"], choice["logprobs"]) == ("hello", None)
    first, second, *_ = told = choice["prompt_logprobs"]
    assert first is None and len(told) == len(IDS)
    assert list(second.items()) == [
        (str(IDS[1]), {"logprob": -IDS[1] / 4, "rank": 2, "decoded_token": TOKENIZER.decode([IDS[1]])}),
        ("65", {"logprob": 0.0, "rank": 1, "decoded_token": "A"}),
        ("66", {"logprob": -0.25, "rank": 2, "decoded_token": "B"}),
    ]


async def test_a_chat_has_them_once_beside_its_choices(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    target = await started(mesh)
    messages = [{"role": "user", "content": "hi"}]
    body = await post(http, mesh, "/v1/chat/completions", messages=messages, n=2, prompt_logprobs=0, max_tokens=1)
    assert len(body["prompt_logprobs"]) == len(ids_of("<user>hi"))
    assert all("prompt_logprobs" not in each for each in body["choices"])
    assert sorted(asked.sampling.prompt_logprobs for asked in target.asked) == [-1, 0]


async def test_both_forms_have_as_many_as_each_asks_for(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    target = await started(mesh)
    body = await post(http, mesh, echo=True, logprobs=1, prompt_logprobs=3, max_tokens=1)
    [choice] = body["choices"]
    assert {len(each) for each in choice["logprobs"]["top_logprobs"][1 : len(IDS)]} == {1}
    assert {len(each) for each in choice["prompt_logprobs"][1:]} <= {3, 4}
    assert target.asked[0].sampling.prompt_logprobs == 3


async def test_a_prompt_of_one_token_has_no_log_probability(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await started(mesh)
    body = await post(http, mesh, prompt=[65], echo=True, logprobs=1, prompt_logprobs=1, max_tokens=0)
    [choice] = body["choices"]
    assert (choice["text"], choice["logprobs"]["token_logprobs"], choice["prompt_logprobs"]) == ("A", [None], [None])


def breaks(behind: int, then: Script) -> Script:
    """The first attempt ends without an end behind this number of messages about the prompt."""

    async def script(target: FakeTarget, message: Generate, out: StreamWriter) -> None:
        if message.attempt:
            await then(target, message, out)
            return
        for part in list(parts(columns(message.token_ids, message.sampling.prompt_logprobs), 3))[:behind]:
            await out.send(about_prompt(message, part))

    return script


@pytest.mark.parametrize(("behind", "asked"), [(0, 1), (2, 1), (100, -1)])
async def test_a_later_attempt_tells_nothing_twice(
    mesh: FakeMesh, http: aiohttp.ClientSession, behind: int, asked: int
) -> None:
    target = await started(mesh, breaks(behind, says(ANSWER)))
    for max_tokens in (0, 2):
        target.asked.clear()
        body = await post(http, mesh, echo=True, logprobs=1, max_tokens=max_tokens)
        told = body["choices"][0]["logprobs"]["token_logprobs"]
        assert told[: len(IDS)] == [None, *(-token / 4 for token in IDS[1:])]
        assert len(told) == len(IDS) + max_tokens
        attempts = [each.sampling.prompt_logprobs for each in target.asked]
        # With all there and nothing to generate, the answer is complete.
        assert attempts == ([1] if asked < 0 and not max_tokens else [1, asked])


def without_prompt(message: Generate) -> list[Any]:
    return [tokens(message, 0, ANSWER[:1])]


def with_a_gap(message: Generate) -> list[Any]:
    late = list(parts(columns(message.token_ids, 1), 2))[1:]
    return [about_prompt(message, part) for part in late]


def too_many(message: Generate) -> list[Any]:
    return [about_prompt(message, columns([*message.token_ids, 1], 1))]


def misshapen(message: Generate) -> list[Any]:
    return [about_prompt(message, dataclasses.replace(columns(message.token_ids, 1), ranks=b""))]


@pytest.mark.parametrize("wrong", [without_prompt, with_a_gap, too_many, misshapen])
async def test_what_does_not_fit_the_prompt_is_never_shown(
    mesh: FakeMesh, http: aiohttp.ClientSession, wrong: Callable[[Generate], list[Any]]
) -> None:
    async def script(target: FakeTarget, message: Generate, out: StreamWriter) -> None:
        if message.attempt:
            await says(ANSWER)(target, message, out)
            return
        for each in wrong(message):
            await out.send(each)
        await out.send(finished(message, 1, "length"))

    await started(mesh, script)
    body = await post(http, mesh, echo=True, logprobs=1, max_tokens=1)
    assert body["choices"][0]["text"] == PROMPT + "hello"
    assert len(body["choices"][0]["logprobs"]["tokens"]) == len(IDS) + 1


# What is refused -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"echo": 1}, "echo"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"prompt_logprobs": True}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"echo": True, "max_tokens": 0, "min_tokens": 1}, "min_tokens"),
    ],
)
def test_what_cannot_be_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse_completion({"model": "m", "prompt": "hi", **fields}, RequestLimits())
    assert (caught.value.status, caught.value.param) == (400, param)


def test_a_chat_has_no_empty_answers() -> None:
    with pytest.raises(ApiError):
        parse_chat({"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 0}, RequestLimits())


# Piece by piece ----------------------------------------------------------------------------------------------

VOCABULARIES = {"byte level": TOKENIZER, "byte fallback": byte_fallback_tokenizer()}


@given(st.sampled_from(sorted(VOCABULARIES)), st.text(min_size=1, max_size=30), st.integers(1, 9))
@settings(max_examples=200, deadline=None)
def test_pieces_of_a_prompt_add_up_to_its_text_and_tokens(kind: str, text: str, most: int) -> None:
    tokenizer = VOCABULARIES[kind]
    ids = list(tokenizer.encode(text, add_special_tokens=False).ids)
    echo = Echo(ids, Delivery(Vocabulary(tokenizer).of_prompt(), min_tokens=0, tokens_shown=True), scored=True)
    told: list[Piece] = []
    for part in parts(columns(ids, 0), most):
        told += echo.take(part)
    told += echo.take(None)
    assert echo.complete and all(piece.of_prompt for piece in told)
    assert "".join(piece.text for piece in told) == tokenizer.decode(ids, skip_special_tokens=False)
    assert [token for piece in told for token in piece.ids] == ids
    values = [each and each.logprob for piece in told for each in piece.logprobs]
    assert values == [None, *(-token / 4 for token in ids[1:])][: len(ids)]
    offsets = [offset for piece in told for offset in piece.offsets]
    assert len(offsets) == len(ids) and offsets == sorted(offsets) and echo.characters == sum(len(p.text) for p in told)


def test_special_tokens_are_named_but_for_those_that_the_tokenizer_has_added() -> None:
    vocabulary, end = Vocabulary(TOKENIZER), CARD.eos_token_ids[0]
    ids = [end, end, *ids_of("hello"), end]

    def echoed(text: str | None) -> tuple[str, list[int]]:
        delivery = Delivery(vocabulary.of_prompt(), min_tokens=0, tokens_shown=True)
        added = 0 if text is None else vocabulary.added_before(ids, text)
        [piece] = Echo(ids, delivery, added=added, scored=False).take(None)
        assert piece.ids == ids and piece.logprobs == [None] * len(ids)
        return piece.text, piece.offsets

    size = len(END_OF_TEXT)
    for written in range(3):
        text = END_OF_TEXT * written + "hello" + END_OF_TEXT
        begins = {0: [0, 0], 1: [0, 0], 2: [0, size]}[written]
        assert echoed(text) == (text, [*begins, size * written, size * written + 5])
    # Token ids are the caller's own.
    assert echoed(None)[1] == [0, size, 2 * size, 2 * size + 5]


def test_special_tokens_that_were_added_are_left_out_of_the_text_once() -> None:
    ids = [int(TOKENIZER.token_to_id(END_OF_TEXT)), *ids_of("the quick fox says")]
    text = Delivery(Vocabulary(TOKENIZER).of_prompt(), min_tokens=0, tokens_shown=True)
    echo = Echo(ids, text, added=1, scored=True)
    pieces = [piece for part in parts(columns(ids, 0), 2) for piece in echo.take(part)]
    assert len(pieces) > 2 and "".join(piece.text for piece in pieces) == "the quick fox says"
    assert [token for piece in pieces for token in piece.ids] == ids
