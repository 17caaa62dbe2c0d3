"""/v1/embeddings: what is taken, what is refused, and what becomes of a request when workers die."""

from __future__ import annotations

import asyncio
import base64
import math
from array import array
from typing import Any

import aiohttp
import msgspec
import openai
import pytest
from fake_mesh import CARD, MODEL, FakeMesh, FakeTarget, failed, finished, ids_of, pooled, says, tokens, until

from mesh.stream import StreamWriter
from services.api.messages import Generate
from services.streamer.choice.embedding import MOST_AT_ONCE
from services.streamer.openai import embeddings
from services.streamer.openai.embeddings import MAX_INPUTS

embeds = says("")
SIZE = CARD.embedding_size


def scaled(numbers: list[float]) -> list[float]:
    length = math.hypot(*numbers)
    return [number / length for number in numbers]


async def start(mesh: FakeMesh, script: Any = embeds, **settings: Any) -> FakeTarget:
    target = await mesh.start_target(script)
    await mesh.start_door(**settings)
    return target


async def ask(http: aiohttp.ClientSession, mesh: FakeMesh, **fields: Any) -> tuple[int, Any]:
    async with http.post(mesh.url + "/v1/embeddings", json={"model": MODEL, **fields}) as answer:
        return answer.status, await answer.json()


async def test_inputs_of_every_kind_have_an_embedding_each_in_their_order(
    mesh: FakeMesh, http: aiohttp.ClientSession
) -> None:
    target = await start(mesh)
    texts = ["hello the fox", "hello", "hello the quick fox"]
    for given in (texts, [ids_of(text) for text in texts]):
        status, body = await ask(http, mesh, input=given)
        assert status == 200 and (body["object"], body["model"]) == ("list", MODEL)
        assert [(each["object"], each["index"]) for each in body["data"]] == [("embedding", at) for at in range(3)]
        asked = sorted(target.asked[-3:], key=lambda message: message.request_id)
        assert [message.token_ids for message in asked] == [ids_of(text) for text in texts]
        for message, each in zip(asked, body["data"], strict=True):
            assert each["embedding"] == pytest.approx(scaled(pooled(message)), abs=1e-7)
        total = sum(len(ids_of(text)) for text in texts)
        assert body["usage"] == {"prompt_tokens": total, "total_tokens": total}
    status, body = await ask(http, mesh, input="hello")
    assert status == 200 and len(body["data"]) == 1
    assert (await ask(http, mesh, input=ids_of("hello")))[1]["data"] == body["data"]
    message = target.asked[-1]
    assert (message.sampling.max_tokens, message.speculation.method, message.pooling) == (0, "naive", "last")


async def test_fields_choose_the_pooling_the_length_and_the_form(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    target = await start(mesh)
    _, body = await ask(http, mesh, input="hello", pooling="mean", normalize=False, user="me", priority=3)
    assert body["data"][0]["embedding"] == pooled(target.asked[-1]) and target.asked[-1].pooling == "mean"
    assert target.asked[-1].priority == 3
    _, body = await ask(http, mesh, input="hello", dimensions=3)
    assert body["data"][0]["embedding"] == pytest.approx(scaled(pooled(target.asked[-1])[:3]), abs=1e-7)
    _, body = await ask(http, mesh, input="hello", encoding_format="base64", normalize=False)
    assert array("f", base64.b64decode(body["data"][0]["embedding"])).tolist() == pooled(target.asked[-1])


async def test_the_models_own_pooling_is_the_default(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    target = await mesh.start_target(embeds)
    target.card = msgspec.structs.replace(CARD, pooling="mean")
    await mesh.start_door()
    await ask(http, mesh, input="hello")
    await ask(http, mesh, input="hello", pooling="last")
    assert [message.pooling for message in target.asked] == ["mean", "last"]


LONG = "hello " * 300
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({}, "input", "missing_required_parameter"),
    ({"input": []}, "input", "invalid_value"),
    ({"input": ""}, "input", "invalid_value"),
    ({"input": ["hello", ""]}, "input[1]", "invalid_value"),
    ({"input": {"text": "hello"}}, "input", "invalid_type"),
    ({"input": ["hello", 3]}, "input[1]", "invalid_type"),
    ({"input": [[1], "hello"]}, "input[1]", "invalid_type"),
    ({"input": [1, -1]}, "input[1]", "out_of_range"),
    ({"input": [1, 10**6]}, "input", "out_of_range"),
    ({"input": ["a"] * (MAX_INPUTS + 1)}, "input", "array_above_max_length"),
    ({"input": LONG}, "input", "context_length_exceeded"),
    ({"input": [[1] * 257]}, "input", "context_length_exceeded"),
    ({"input": "a", "dimensions": 0}, "dimensions", "out_of_range"),
    ({"input": "a", "dimensions": SIZE + 1}, "dimensions", "out_of_range"),
    ({"input": "a", "dimensions": "3"}, "dimensions", "invalid_type"),
    ({"input": "a", "encoding_format": "int8"}, "encoding_format", "invalid_value"),
    ({"input": "a", "pooling": "cls"}, "pooling", "invalid_value"),
    ({"input": "a", "normalize": 1}, "normalize", "invalid_type"),
    ({"input": "a", "truncate_prompt_tokens": 3}, "truncate_prompt_tokens", "unsupported_parameter"),
    ({"input": "a", "temperature": 0}, "temperature", "unsupported_parameter"),
    ({"input": "a", "model": "other"}, "model", "model_not_found"),
]


@pytest.mark.parametrize(("fields", "param", "code"), REFUSED)
async def test_bad_fields_are_named(
    mesh: FakeMesh, http: aiohttp.ClientSession, fields: dict[str, Any], param: str, code: str
) -> None:
    target = await start(mesh)
    status, body = await ask(http, mesh, **fields)
    assert (status, body["error"]["param"], body["error"]["code"]) == (404 if param == "model" else 400, param, code)
    assert not target.asked


async def test_a_prompt_may_fill_the_context(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await start(mesh)
    assert (await ask(http, mesh, input=[1] * CARD.max_context))[0] == 200


async def test_tokens_in_all_are_bounded(
    mesh: FakeMesh, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = await start(mesh)
    monkeypatch.setattr("services.streamer.choice.embedding.MAX_TOKENS_IN_ALL", 9)
    assert (await ask(http, mesh, input=[[1, 2, 3]] * 3))[0] == 200
    status, body = await ask(http, mesh, input=[[1, 2, 3]] * 4)
    assert (status, body["error"]["param"], len(target.asked)) == (400, "input", 3)
    assert embeddings.MAX_TOKENS_IN_ALL == 300_000


async def test_many_inputs_are_computed_a_few_at_a_time_and_answered_in_order(
    mesh: FakeMesh, http: aiohttp.ClientSession
) -> None:
    open_ = asyncio.Event()

    async def waits(target: FakeTarget, message: Generate, out: StreamWriter) -> None:
        await open_.wait()
        await embeds(target, message, out)

    target = await start(mesh, waits)
    inputs = [[1] * (1 + number % 7) for number in range(300)]
    running = asyncio.create_task(ask(http, mesh, input=inputs, normalize=False))
    await until(lambda: target.running >= MOST_AT_ONCE)
    for _ in range(3):
        async with http.get(mesh.url + "/v1/models") as answer:
            assert answer.status == 200
    assert target.running == MOST_AT_ONCE
    open_.set()
    status, body = await running
    assert status == 200
    assert [each["embedding"][0] for each in body["data"]] == [float(len(ids)) for ids in inputs]
    assert mesh.door is not None and mesh.door.load() == 0


async def test_a_server_that_takes_few_choices_computes_fewer_at_a_time(
    mesh: FakeMesh, http: aiohttp.ClientSession
) -> None:
    await start(mesh, max_waiting=2)
    status, body = await ask(http, mesh, input=["hello"] * 9)
    assert status == 200 and len(body["data"]) == 9


async def test_a_lost_worker_is_followed_by_another_for_each_input(
    mesh: FakeMesh, http: aiohttp.ClientSession
) -> None:
    async def hangs(target: FakeTarget, message: Generate, out: StreamWriter) -> None:
        await asyncio.Event().wait()

    first = await start(mesh, hangs)
    running = asyncio.create_task(ask(http, mesh, input=["hello", "the fox", "hello the"], normalize=False))
    await until(lambda: first.running == 3)
    mesh.network.cut("mem://worker-1")
    second = await mesh.start_target(embeds, "worker-2")
    await mesh.stop("worker-1")
    status, body = await running
    assert status == 200 and {message.attempt for message in second.asked} == {1}
    assert [each["embedding"][0] for each in body["data"]] == [
        float(len(ids_of(text))) for text in ("hello", "the fox", "hello the")
    ]


async def test_a_worker_that_ends_without_an_embedding_is_not_believed(
    mesh: FakeMesh, http: aiohttp.ClientSession
) -> None:
    async def forgets(target: FakeTarget, message: Generate, out: StreamWriter) -> None:
        if message.attempt == 0:
            await out.send(finished(message, 0, "length"))
        elif message.attempt == 1:
            await out.send(tokens(message, 0, [5]))
        else:
            await embeds(target, message, out)

    target = await start(mesh, forgets)
    assert (await ask(http, mesh, input="hello"))[0] == 200 and len(target.asked) == 3


async def test_one_input_that_fails_ends_the_request_with_its_reason_and_cancels_the_others(
    mesh: FakeMesh, http: aiohttp.ClientSession
) -> None:
    async def one_fails(target: FakeTarget, message: Generate, out: StreamWriter) -> None:
        if len(message.token_ids) == 1:
            await out.send(failed(message, "invalid"))
        else:
            await asyncio.Event().wait()

    target = await start(mesh, one_fails)
    status, body = await ask(http, mesh, input=[[1, 2], [1], [1, 2, 3]])
    assert (status, body["error"]["code"]) == (400, "invalid")
    await until(lambda: target.running == 0)


async def test_a_client_that_disconnects_cancels_its_inputs(mesh: FakeMesh) -> None:
    async def hangs(target: FakeTarget, message: Generate, out: StreamWriter) -> None:
        await asyncio.Event().wait()

    target = await start(mesh, hangs)
    async with aiohttp.ClientSession() as http:
        running = asyncio.create_task(ask(http, mesh, input=["hello"] * 40))
        await until(lambda: target.running == MOST_AT_ONCE)
        running.cancel()
    await until(lambda: target.running == 0)
    assert mesh.door is not None
    await until(lambda: mesh.door is not None and mesh.door.load() == 0)


async def test_the_openai_client_reads_both_forms(mesh: FakeMesh) -> None:
    target = await start(mesh)
    async with openai.AsyncOpenAI(
        base_url=mesh.url + "/v1", api_key="any", max_retries=0, _strict_response_validation=True
    ) as client:
        # The client asks for base64 and decodes it; its strict types have numbers alone.
        loose = client.with_options(_extra_kwargs={"_strict_response_validation": False})
        made = await loose.embeddings.create(model=MODEL, input=["hello", "the fox"])
        plain = await client.embeddings.create(model=MODEL, input=["hello", "the fox"], encoding_format="float")
        for one, other in zip(made.data, plain.data, strict=True):
            assert one.embedding == pytest.approx(other.embedding)
        assert made.data[0].embedding == pytest.approx(scaled(pooled(target.asked[0])), abs=1e-7)
        short = await loose.embeddings.create(model=MODEL, input="hello", dimensions=2, user="me")
        assert len(short.data[0].embedding) == 2 and short.usage.total_tokens == 1
        with pytest.raises(openai.BadRequestError) as bad:
            await client.embeddings.create(model=MODEL, input="hello", dimensions=99)
        assert bad.value.param == "dimensions"
