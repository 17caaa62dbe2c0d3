"""From a request to its choices, over the fake mesh: forbidden words and predictions become tokens, wishes become a
verification, callers become namespaces."""

from __future__ import annotations

from typing import Any

import aiohttp
import msgspec
import pytest
from fake_mesh import CARD, MODEL, FakeMesh, FakeTarget, FakeTokenizer, finished, ids_of, says, tokens, until
from small_tokenizer import marking_tokenizer

from mesh.actor import Call
from mesh.codec import MAX_BODY
from mesh.errors import Refuse
from mesh.stream import StreamWriter
from services.api.messages import Encode, Encoded, Generate, Speculation
from services.streamer.choice.encoding import MOST_PREDICTION_BYTES, _continuation
from services.streamer.choice.namespace import NamespaceIds

TEXT = {"model": MODEL, "prompt": "hi"}


async def complete(http: aiohttp.ClientSession, mesh: FakeMesh, **fields: Any) -> tuple[int, Any]:
    async with http.post(mesh.url + "/v1/completions", json={**TEXT, **fields}) as response:
        return response.status, await response.json()


async def test_bad_words_reach_the_target_as_tokens_with_and_without_a_space(
    mesh: FakeMesh, http: aiohttp.ClientSession
) -> None:
    target = await mesh.start_target(says("hello"))
    await mesh.start_door()
    status, _ = await complete(http, mesh, n=2, bad_words=["the", "fox jumps"], bad_words_token_ids=[[1, 2], 3])
    assert status == 200
    forbidden = [[1, 2], [3], ids_of("the"), ids_of(" the"), ids_of("fox jumps"), ids_of(" fox jumps")]
    assert ids_of("the")[-1:] != ids_of(" the")
    for asked in target.asked:
        assert asked.sampling.bad_words == forbidden
    # One message for all words of all choices.
    assert mesh.tokenizer.words_asked == [["the", "fox jumps"]]


async def test_a_request_without_bad_words_asks_the_tokenizer_nothing_more(
    mesh: FakeMesh, http: aiohttp.ClientSession
) -> None:
    target = await mesh.start_target(says("hello"))
    await mesh.start_door()
    await complete(http, mesh, bad_words=[], bad_words_token_ids=[5], allowed_token_ids=[6])
    assert mesh.tokenizer.words_asked == []
    (asked,) = target.asked
    assert (asked.sampling.bad_words, asked.sampling.allowed_token_ids) == ([[5]], [6])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"bad_words": ["ok", "x" * 200]}, "bad_words[1]"),  # more tokens than a word may have
        ({"bad_words": [f"w{number}" for number in range(256)], "bad_words_token_ids": [1] * 1000}, "bad_words"),
        ({"bad_words": ["a"], "allowed_token_ids": [97]}, "allowed_token_ids"),
    ],
)
async def test_what_only_the_tokens_of_a_word_show_is_refused_by_name(
    mesh: FakeMesh, http: aiohttp.ClientSession, fields: dict[str, Any], param: str
) -> None:
    target = await mesh.start_target(says("hello"))
    door = await mesh.start_door()
    status, body = await complete(http, mesh, **fields)
    assert (status, body["error"]["param"]) == (400, param)
    assert target.asked == []
    await until(lambda: door.load() == 0)


async def test_a_word_that_is_no_token_of_the_model_is_refused(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    target = await mesh.start_target(says("hello"))
    target.card = msgspec.structs.replace(CARD, vocab_size=256)
    await mesh.start_door()
    status, body = await complete(http, mesh, bad_words=["a", "stop"])
    assert (status, body["error"]["param"]) == (400, "bad_words[1]")


# Lengths -----------------------------------------------------------------------------------------------------


class Overflowing(FakeTokenizer):
    """Its answers are larger than a message of the mesh may be."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    async def encode(self, message: Encode, call: Call) -> Encoded:
        self.asked += 1
        return Encoded(token_ids=[300] * (MAX_BODY // 3 + 1))


async def test_tokens_too_many_for_a_message_are_refused_and_not_tried_again(
    mesh: FakeMesh, http: aiohttp.ClientSession
) -> None:
    await mesh.stop("tokenizer-1")
    overflowing = Overflowing()
    await mesh.start("tokenizer", "tokenizer-2", overflowing)
    await mesh.start_target(says("hello"))
    await mesh.start_door()
    async with http.post(mesh.url + "/tokenize", json={"prompt": "a"}) as response:
        assert (response.status, (await response.json())["error"]["code"]) == (413, "request_too_large")
    assert overflowing.asked == 1


async def test_a_text_too_large_for_a_message_is_refused_before_it_is_sent(
    mesh: FakeMesh, http: aiohttp.ClientSession
) -> None:
    await mesh.start_target(says("hello"))
    await mesh.start_door(max_body_bytes=2 * MAX_BODY)
    status, body = await complete(http, mesh, prompt="a" * (MAX_BODY + 1))
    assert (status, body["error"]["code"]) == (413, "request_too_large")


@pytest.mark.parametrize("path", ["/v1/completions", "/tokenize"])
async def test_what_a_tokenizer_finds_too_long_is_the_callers_fault(
    mesh: FakeMesh, http: aiohttp.ClientSession, path: str
) -> None:
    """A prompt is too long for the context; what has no context is too large."""

    class Refusing(FakeTokenizer):
        async def encode(self, message: Encode, call: Call) -> Encoded:
            raise Refuse("too_long", "the prompt has at least 900 tokens, the limit is 255")

    await mesh.stop("tokenizer-1")
    await mesh.start("tokenizer", "tokenizer-2", Refusing())
    await mesh.start_target(says("hello"))
    await mesh.start_door()
    async with http.post(mesh.url + path, json={"model": MODEL, "prompt": "x"}) as response:
        status, error = response.status, (await response.json())["error"]
    assert error["message"].startswith("the prompt has at least 900 tokens")
    wanted = (400, "context_length_exceeded") if path == "/v1/completions" else (413, "request_too_large")
    assert (status, error["code"]) == wanted


async def verified(http: aiohttp.ClientSession, mesh: FakeMesh, **fields: Any) -> tuple[str, bool]:
    status, body = await complete(http, mesh, max_tokens=50, **fields)
    assert status == 200, body
    told = body["metrics"]["speculative_decoding"]
    return told["verify_strategy"], told["lossless"]


async def test_the_answer_says_which_strategy_judged_and_whether_it_kept_the_text(
    mesh: FakeMesh, http: aiohttp.ClientSession
) -> None:
    await mesh.start_target(says("hello the stop fox", group=3))
    await mesh.start_door()
    assert await verified(http, mesh, temperature=0) == ("greedy", True)
    assert await verified(http, mesh) == ("target_match", True)
    assert await verified(http, mesh, speculation={"verify_strategy": "auto"}) == ("target_match", True)
    assert await verified(http, mesh, speculation={"verify_strategy": "rejection"}) == ("rejection", True)
    assert await verified(http, mesh, speculation={"verify_strategy": "rejection"}, temperature=0) == ("greedy", True)
    # The door ends it itself; what the target says at an end of its own never comes.
    assert await verified(http, mesh, speculation={"verify_strategy": "block"}, stop="fox") == ("block", True)


async def test_a_server_set_to_a_lossy_strategy_says_so_in_its_answers(
    mesh: FakeMesh, http: aiohttp.ClientSession
) -> None:
    target = await mesh.start_target(says("hello the fox", group=3))
    target.card = msgspec.structs.replace(
        CARD,
        verify_strategies=[*CARD.verify_strategies, "topp"],
        accept_policies=["normal", "accept_all", "reject_all"],
        speculation=Speculation(verify_strategy="topp", accept_policy="normal"),
    )
    await mesh.start_door()
    assert await verified(http, mesh) == ("topp", False)
    assert await verified(http, mesh, temperature=0) == ("greedy", True)
    assert await verified(http, mesh, speculation={"verify_strategy": "target_match"}) == ("target_match", True)
    assert await verified(http, mesh, speculation={"accept_policy": "accept_all"}, temperature=0) == ("greedy", False)
    assert await verified(http, mesh, speculation={"accept_policy": "reject_all"}) == ("topp", True)


async def test_the_strategy_stands_beside_the_usage_of_a_stream(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    from sse_reading import streamed

    await mesh.start_target(says("hello the fox", group=3))
    await mesh.start_door()
    body = {**TEXT, "stream_options": {"include_usage": True}, "speculation": {"verify_strategy": "block"}}
    chunks = await streamed(http, mesh.url + "/v1/completions", body)
    told = chunks[-2]["metrics"]["speculative_decoding"]
    assert (told["verify_strategy"], told["lossless"]) == ("block", True)


# Predictions ----------------------------------------------------------------------------------------------


PREDICTED = "abcdefghij"  # as many tokens


def predicted(content: Any) -> dict[str, Any]:
    return {"prediction": {"type": "content", "content": content}}


async def test_a_prediction_reaches_the_target_as_tokens_with_every_choice(
    mesh: FakeMesh, http: aiohttp.ClientSession
) -> None:
    target = await mesh.start_target(says("hello"))
    await mesh.start_door()
    await complete(http, mesh, prompt=["a", "b"], n=2, **predicted(" the quick fox"))
    assert [asked.prediction for asked in target.asked] == [ids_of(" the quick fox")] * 4
    target.asked.clear()
    for nothing in ({}, predicted(""), {"prediction": None}):
        await complete(http, mesh, **nothing)
    assert [asked.prediction for asked in target.asked] == [[]] * 3


async def test_a_prediction_goes_with_every_attempt(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    async def once_more(target: FakeTarget, message: Generate, out: StreamWriter) -> None:
        if message.attempt == 0:
            await out.send(tokens(message, 0, ids_of("hello")))
        else:
            await says("hello the fox")(target, message, out)

    target = await mesh.start_target(once_more)
    await mesh.start_door()
    status, _ = await complete(http, mesh, **predicted("hello"), speculation={"namespace": "x"})
    assert (status, len(target.asked)) == (200, 2)
    first, second = target.asked
    assert first.prediction == second.prediction == ids_of("hello")
    assert first.namespace == second.namespace != ""


async def test_a_prediction_longer_than_the_context_is_cut(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    target = await mesh.start_target(says("hello"))
    await mesh.start_door()
    status, _ = await complete(http, mesh, **predicted("x" * 1000))
    assert (status, target.asked[0].prediction) == (200, ids_of("x" * 256))
    # Far beyond it, not even the tokenizer sees the rest.
    status, _ = await complete(http, mesh, **predicted("🦊" * 100_000))
    assert (status, target.asked[1].prediction) == (200, ids_of("🦊" * 64))
    assert MOST_PREDICTION_BYTES < 4 * 2**20


async def test_a_prediction_of_tokens_that_the_model_does_not_know_is_refused(
    mesh: FakeMesh, http: aiohttp.ClientSession
) -> None:
    target = await mesh.start_target(says("hello"))
    target.card = msgspec.structs.replace(CARD, vocab_size=256)
    await mesh.start_door()
    status, body = await complete(http, mesh, **predicted("the stop"))
    assert (status, body["error"]["param"]) == (400, "prediction")


class Marking:
    """The part of the peers that encodes, with a tokenizer that marks spaces."""

    def __init__(self) -> None:
        self.tokenizer = marking_tokenizer()

    async def encode(self, message: Encode) -> list[int]:
        assert not message.add_special_tokens and message.text is not None
        return list(self.tokenizer.encode(message.text, add_special_tokens=False).ids)


@pytest.mark.parametrize(
    ("text", "chat", "spelled"),
    [
        # Behind a text, what is written together stays together, and a space is one.
        ("hello the", False, ["hello", "▁the"]),
        (" hello the", False, ["▁hello", "▁the"]),
        (" hello the", True, ["▁hello", "▁the"]),
        # The answer of a chat begins as a text does.
        ("hello the", True, ["▁hello", "▁the"]),
    ],
)
async def test_the_first_word_is_spelled_as_the_model_would_write_it(text: str, chat: bool, spelled: list[str]) -> None:
    peers: Any = Marking()
    ids = await _continuation(text, peers, chat=chat, byte_level=False)
    assert [peers.tokenizer.id_to_token(each) for each in ids] == spelled


async def test_of_a_prediction_usage_says_what_stood_and_what_did_not(
    mesh: FakeMesh, http: aiohttp.ClientSession
) -> None:
    async def script(target: FakeTarget, message: Generate, out: StreamWriter) -> None:
        ids = ids_of(PREDICTED)
        await out.send(tokens(message, 0, ids[:1]))
        await out.send(tokens(message, 1, ids[1:3], drafted=4, source="prediction"))
        await out.send(tokens(message, 3, ids[3:5], drafted=1, source="ngram"))
        await out.send(tokens(message, 5, ids[5:], drafted=6, source="prediction"))
        await out.send(finished(message, len(ids)))

    await mesh.start_target(script)
    await mesh.start_door()
    _, body = await complete(http, mesh, max_tokens=50, **predicted("x"))
    whole = {"accepted_prediction_tokens": 1 + 4, "rejected_prediction_tokens": 3 + 2}
    assert body["usage"]["completion_tokens_details"] == whole
    _, body = await complete(http, mesh, max_tokens=50, n=2, **predicted("x"))
    assert body["usage"]["completion_tokens_details"] == {name: 2 * count for name, count in whole.items()}
    # What a stop string cuts off isn't part of the answer.
    for stop, details in (("c", (1, 3)), ("g", (1 + 2, 3 + 4))):
        _, body = await complete(http, mesh, max_tokens=50, stop=stop, **predicted("x"))
        assert tuple(body["usage"]["completion_tokens_details"].values()) == details
    _, body = await complete(http, mesh, max_tokens=50)
    assert "completion_tokens_details" not in body["usage"]


# NamespaceIds -----------------------------------------------------------------------------------------------


async def namespace_of(http: aiohttp.ClientSession, mesh: FakeMesh, target: FakeTarget, key: str, **fields: Any) -> str:
    url, headers = mesh.url + "/v1/completions", {"Authorization": f"Bearer {key}"} if key else {}
    async with http.post(url, json={**TEXT, **fields}, headers=headers) as response:
        assert response.status == 200, await response.text()
    return target.asked.pop().namespace


async def test_every_key_salt_and_name_is_a_namespace_of_its_own(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    target = await mesh.start_target(says("hello"))
    await mesh.start_door(api_keys="key-one,key-two")
    callers: list[tuple[str, dict[str, Any]]] = [
        (key, fields)
        for key in ("key-one", "key-two")
        for fields in (
            {},
            {"cache_salt": "s"},
            {"speculation": {"namespace": "s"}},
            {"cache_salt": "s", "speculation": {"namespace": "s"}},
        )
    ]
    ids = [await namespace_of(http, mesh, target, key, **fields) for key, fields in callers]
    assert len(set(ids)) == len(callers)
    again = [await namespace_of(http, mesh, target, key, **fields) for key, fields in callers]
    assert again == ids
    assert ids[0] == NamespaceIds().id_of(b"key-one")


async def test_a_server_without_keys_has_one_caller(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    target = await mesh.start_target(says("hello"))
    await mesh.start_door()
    assert len({await namespace_of(http, mesh, target, key) for key in ("", "one", "two")}) == 1
    assert await namespace_of(http, mesh, target, "", cache_salt="s") != await namespace_of(http, mesh, target, "")


async def test_a_key_is_in_no_message_log_or_answer(
    mesh: FakeMesh, http: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    key = "a-key-to-be-kept"

    async def fails(target: FakeTarget, message: Generate, out: StreamWriter) -> None:
        raise RuntimeError("the engine fell over")

    target = await mesh.start_target(fails)
    await mesh.start_door(api_keys=key)
    headers = {"Authorization": f"Bearer {key}"}
    told = []
    with caplog.at_level("DEBUG"):
        for body in (TEXT, {**TEXT, "speculation": {"namespace": "a b"}}, {**TEXT, "speculation": {"off": 5}}):
            async with http.post(mesh.url + "/v1/completions", json=body, headers=headers) as response:
                assert response.status >= 400
                told.append(await response.text())
    messages = [str(asked) for asked in target.asked]
    assert messages and caplog.records
    for text in (*told, *messages, caplog.text):
        assert key not in text
