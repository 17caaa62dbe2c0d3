from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from fake_mesh import CARD, MODEL, FakeMesh, failed, hangs_after, ids_of, says, tokens, until
from sse_reading import events, streamed, text_of

from services.streamer.door import http as http_api

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
TEXT = {"model": MODEL, "prompt": "hi"}


async def post(http: aiohttp.ClientSession, url: str, body: Any, **more: Any) -> tuple[int, Any]:
    async with http.post(url, json=body, **more) as response:
        return response.status, await response.json()


async def test_a_chat_is_answered_whole(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    target = await mesh.start_target(says("hello the fox", cached=3))
    await mesh.start_door()
    status, body = await post(http, mesh.url + "/v1/chat/completions", CHAT)
    assert status == 200
    assert body["object"] == "chat.completion"
    assert body["id"].startswith("chatcmpl-")
    choice = body["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": "hello the fox"}
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", CARD.eos_token_ids[0])
    count = len(ids_of("hello the fox")) + 1
    prompt = len(ids_of("<user>hi"))
    assert body["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": count,
        "total_tokens": prompt + count,
        "prompt_tokens_details": {"cached_tokens": 3},
    }
    asked = target.asked[0]
    assert asked.token_ids == ids_of("<user>hi")
    assert (asked.attempt, asked.prompt_tokens) == (0, prompt)
    assert asked.sampling.max_tokens == CARD.max_context - prompt


async def test_priority_and_salt_reach_the_target_with_every_choice(
    mesh: FakeMesh, http: aiohttp.ClientSession
) -> None:
    target = await mesh.start_target(says("hello"))
    await mesh.start_door()
    await post(http, mesh.url + "/v1/completions", {**TEXT, "n": 2, "priority": -7, "cache_salt": "a"})
    assert [(asked.priority, asked.cache_salt) for asked in target.asked] == [(-7, "a")] * 2


async def test_a_chat_is_streamed_as_openai_streams(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_target(says("hello the fox"))
    await mesh.start_door()
    chunks = await streamed(http, mesh.url + "/v1/chat/completions", CHAT)
    assert chunks.pop() == "[DONE]"
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    choices = [chunk["choices"][0] for chunk in chunks]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert [each["finish_reason"] for each in choices] == [None] * (len(choices) - 1) + ["stop"]
    assert choices[-1]["delta"] == {}
    assert text_of(chunks) == "hello the fox"
    assert all("usage" not in chunk for chunk in chunks)


async def test_a_completion_is_streamed(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_target(says("hello the fox"))
    await mesh.start_door()
    chunks = await streamed(http, mesh.url + "/v1/completions", {**TEXT, "max_tokens": 2})
    assert chunks.pop() == "[DONE]"
    assert text_of(chunks) == "hello the"
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}


async def test_usage_comes_last_and_only_when_asked_for(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_target(says("hello the fox", group=2))
    await mesh.start_door()
    wanted = {**CHAT, "stream_options": {"include_usage": True}}
    chunks = await streamed(http, mesh.url + "/v1/chat/completions", wanted)
    assert chunks.pop() == "[DONE]"
    last = chunks.pop()
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 4
    assert last["metrics"]["speculative_decoding"]["num_spec_steps"] == 2
    assert all(chunk["usage"] is None for chunk in chunks)


@pytest.mark.parametrize(("path", "body"), [("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)])
async def test_usage_so_far_comes_with_every_chunk_for_those_who_count_by_it(
    mesh: FakeMesh, http: aiohttp.ClientSession, path: str, body: dict[str, Any]
) -> None:
    await mesh.start_target(says("hello the fox", group=2))
    await mesh.start_door()
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = await streamed(http, mesh.url + path, {**body, "stream_options": options})
    assert chunks.pop() == "[DONE]"
    last = chunks.pop()
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 4
    told = [chunk["usage"] for chunk in chunks]
    assert [usage["completion_tokens"] for usage in told] == [0] * ("messages" in body) + [2, 3, 4]
    assert all(usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] for usage in told)
    assert {usage["prompt_tokens"] for usage in told} == {last["usage"]["prompt_tokens"]}
    assert "token_ids" not in chunks[-2]["choices"][0]
    # It says how, not whether.
    silent = await streamed(http, mesh.url + path, {**body, "stream_options": {"continuous_usage_stats": True}})
    assert all("usage" not in chunk for chunk in silent[:-1])


async def test_unicode_split_over_tokens_never_breaks(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    text = "né 🦊中 fin"
    await mesh.start_target(says(list(text.encode())))
    await mesh.start_door()
    chunks = await streamed(http, mesh.url + "/v1/completions", {**TEXT, "max_tokens": 100})
    assert text_of(chunks) == text
    assert all("\ufffd" not in chunk["choices"][0]["text"] for chunk in chunks[:-1])


async def test_quotes_and_control_characters_are_escaped(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    text = 'a"b\\c\nd\u2028\x01'
    await mesh.start_target(says(list(text.encode()), group=20))
    await mesh.start_door()
    chunks = await streamed(http, mesh.url + "/v1/completions", {**TEXT, "max_tokens": 100})
    assert text_of(chunks) == text


@dataclass
class Said:
    """Of one choice: whole, or put together from its chunks. Each logprob with the name of its token."""

    text: str = ""
    ids: list[int] = field(default_factory=list)
    logprobs: list[tuple[str, float]] = field(default_factory=list)
    tops: list[Any] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    stop: Any = None

    def add(self, part: dict[str, Any]) -> None:
        said = part.get("delta") or part.get("message") or {}
        self.text += said.get("content", "") or part.get("text", "")
        self.ids += part.get("token_ids", [])
        self.stop = part.get("stop_reason", self.stop)
        told = part["logprobs"] or {}
        for each in told.get("content", []):
            self.logprobs.append((each["token"], each["logprob"]))
            self.tops.append([(top["token"], top["logprob"]) for top in each["top_logprobs"]])
        self.logprobs += zip(told.get("tokens", []), told.get("token_logprobs", []), strict=True)
        self.tops += [list(tops.items()) for tops in told.get("top_logprobs", [])]
        self.offsets += told.get("text_offset", [])


WAYS = pytest.mark.parametrize(
    ("path", "stream"),
    [(path, stream) for path in ("/v1/completions", "/v1/chat/completions") for stream in (False, True)],
)


async def said(http: aiohttp.ClientSession, mesh: FakeMesh, path: str, stream: bool, **more: Any) -> Said:
    """With the logprobs of every token and of the two likeliest there."""
    asked = {**CHAT, "logprobs": True, "top_logprobs": 2} if "chat" in path else {**TEXT, "logprobs": 2}
    wish = {**asked, "max_tokens": 50, "return_token_ids": True, **more}
    together = Said()
    if stream:
        for chunk in (await streamed(http, mesh.url + path, wish))[:-1]:
            together.add(chunk["choices"][0])
    else:
        _, body = await post(http, mesh.url + path, wish)
        together.add(body["choices"][0])
    return together


@WAYS
async def test_the_logprobs_of_an_accepted_run_are_those_of_its_tokens_one_by_one(
    mesh: FakeMesh, http: aiohttp.ClientSession, path: str, stream: bool
) -> None:
    text = "hello the 🦊 quick fox"
    target = await mesh.start_target(says(text, group=7))
    await mesh.start_door()
    run = await said(http, mesh, path, stream)
    ids = ids_of(text)
    assert (run.text, run.ids) == (text, ids)
    assert [value for _, value in run.logprobs] == [-each / 100 for each in ids]
    assert run.tops == [[("(", -0.4), (")", -0.41)]] * len(ids)
    # Whatever comes with it: drafts, and how many of them stood, don't show.
    target.script = says(text, group=1)
    assert await said(http, mesh, path, stream) == run


@WAYS
async def test_a_stop_string_inside_an_accepted_run_trims_text_ids_and_logprobs_at_one_place(
    mesh: FakeMesh, http: aiohttp.ClientSession, path: str, stream: bool
) -> None:
    target = await mesh.start_target(says("hello the stop fox", group=10))
    await mesh.start_door()
    run = await said(http, mesh, path, stream, stop=["stop"])
    assert run.text == "hello the "
    # hello, the, a space; "stop" and the rest of the run were never asked for.
    assert run.ids == ids_of("hello the ")
    assert run.logprobs == [("hello", -run.ids[0] / 100), (" the", -run.ids[1] / 100), (" ", -run.ids[2] / 100)]
    assert len(run.tops) == 3
    if path == "/v1/completions":
        assert run.offsets == [0, 5, 9]
    assert run.stop == "stop"
    await until(lambda: target.running == 0)


@WAYS
async def test_a_stop_string_that_ends_inside_a_token_of_a_run_keeps_what_has_a_part_in_the_text(
    mesh: FakeMesh, http: aiohttp.ClientSession, path: str, stream: bool
) -> None:
    await mesh.start_target(says("hello the quick fox", group=10))
    await mesh.start_door()
    run = await said(http, mesh, path, stream, stop=["uick"])
    assert run.text == "hello the q"
    assert run.ids == ids_of("hello the quick")
    assert [name for name, _ in run.logprobs] == ["hello", " the", " quick"]


async def test_a_stop_string_in_a_run_counts_the_tokens_up_to_it(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_target(says("hello the stop fox", group=10))
    await mesh.start_door()
    _, body = await post(http, mesh.url + "/v1/completions", {**TEXT, "max_tokens": 50, "stop": "stop"})
    assert body["usage"]["completion_tokens"] == 4


async def test_chat_logprobs_have_openai_shape(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_target(says("hi"))
    await mesh.start_door()
    _, body = await post(http, mesh.url + "/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 2})
    first = body["choices"][0]["logprobs"]["content"][0]
    assert first == {
        "token": "h",
        "logprob": -1.04,
        "bytes": [104],
        "top_logprobs": [
            {"token": "(", "logprob": -0.4, "bytes": [40]},
            {"token": ")", "logprob": -0.41, "bytes": [41]},
        ],
    }


async def test_n_answers_have_seeds_of_their_own_and_all_end(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    target = await mesh.start_target(says("hello"))
    await mesh.start_door()
    chunks = await streamed(http, mesh.url + "/v1/chat/completions", {**CHAT, "n": 3, "seed": 7})
    assert [text_of(chunks, index) for index in range(3)] == ["hello"] * 3
    ends = [choice["index"] for chunk in chunks[:-1] for choice in chunk["choices"] if choice["finish_reason"]]
    assert sorted(ends) == [0, 1, 2]
    seeds = {asked.request_id[-1]: asked.sampling.seed for asked in target.asked}
    # As docs/use/http.md says.
    assert seeds == {str(choice): (7 + choice * 0x9E3779B97F4A7C15) % 2**63 for choice in range(3)}


async def test_several_prompts_give_several_choices(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    target = await mesh.start_target(says("hello"))
    await mesh.start_door()
    _, body = await post(http, mesh.url + "/v1/completions", {**TEXT, "prompt": [[1, 2], [3]], "n": 2, "seed": 5})
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert body["usage"]["prompt_tokens"] == 3
    by_id = sorted(target.asked, key=lambda asked: asked.request_id)
    assert [asked.token_ids for asked in by_id] == [[1, 2], [1, 2], [3], [3]]
    # A prompt's answers don't depend on which prompts came with it.
    assert by_id[0].sampling.seed == by_id[2].sampling.seed == 5


async def test_without_a_seed_every_request_gets_another(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    target = await mesh.start_target(says("hello"))
    await mesh.start_door()
    for _ in range(2):
        await post(http, mesh.url + "/v1/chat/completions", CHAT)
    assert target.asked[0].sampling.seed != target.asked[1].sampling.seed


async def test_the_model_is_the_one_that_is_listed(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_target(says("hello"))
    await mesh.start_door()
    async with http.get(mesh.url + "/v1/models") as response:
        listed = (await response.json())["data"]
    assert [each["id"] for each in listed] == [MODEL]
    await post(http, mesh.url + "/v1/chat/completions", CHAT)  # whose worker tells what it has
    async with http.get(mesh.url + f"/v1/models/{MODEL}") as response:
        one = await response.json()
    assert (one["id"], one["max_model_len"], one["methods"]) == (MODEL, CARD.max_context, CARD.methods)
    for path, body in (("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)):
        status, answer = await post(http, mesh.url + path, {**body, "model": "another"})
        assert (status, answer["error"]["code"]) == (404, "model_not_found")
    async with http.get(mesh.url + "/v1/models/other/one") as response:
        assert response.status == 404


async def test_a_prompt_that_does_not_fit_is_a_400(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_target(says("hello"))
    await mesh.start_door()
    for prompt in ("x" * 500, [5] * 256):
        status, body = await post(http, mesh.url + "/v1/completions", {**TEXT, "prompt": prompt})
        assert (status, body["error"]["code"]) == (400, "context_length_exceeded")


@pytest.mark.parametrize("path", ["/tokenize", "/v1/messages/count_tokens"])
async def test_a_text_with_more_tokens_than_most_contexts_is_not_encoded(
    mesh: FakeMesh, http: aiohttp.ClientSession, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_api, "MOST_TOKENIZED", 300)
    await mesh.start_target(says("hello"))
    await mesh.start_door()
    for count, expected in ((200, 200), (400, 413)):
        text = "1" * count
        body = {"prompt": text} if path == "/tokenize" else {"messages": [{"role": "user", "content": text}]}
        async with http.post(mesh.url + path, json={"model": MODEL, **body}) as response:
            assert response.status == expected


async def test_what_the_tokenizer_refuses_is_a_400(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_target(says("hello"))
    await mesh.start_door()
    status, body = await post(http, mesh.url + "/v1/completions", {**TEXT, "prompt": "untokenizable"})
    assert (status, body["error"]["message"]) == (400, "the template refused the conversation")


@pytest.mark.parametrize(
    ("reason", "status"),
    [("too_long", 400), ("invalid", 400), ("overloaded", 429), ("draining", 503), ("deadline", 504), ("engine", 500)],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
async def test_a_failure_before_the_first_token_has_its_status(
    mesh: FakeMesh, http: aiohttp.ClientSession, reason: str, status: int, stream: bool
) -> None:
    async def fails(target: Any, message: Any, out: Any) -> None:
        await out.send(failed(message, reason))

    await mesh.start_target(fails)
    await mesh.start_door()
    got, body = await post(http, mesh.url + "/v1/completions", {**TEXT, "stream": stream})
    assert got == status
    assert body["error"]["message"] == f"it was {reason}"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_regex": "a{1,9}"}, "guided_regex"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "required"}, "tools"),
    ],
)  # fmt: skip
async def test_a_grammar_that_only_the_worker_can_refuse_is_a_400_that_names_its_field(
    mesh: FakeMesh, http: aiohttp.ClientSession, fields: dict[str, Any], param: str
) -> None:
    async def fails(target: Any, message: Any, out: Any) -> None:
        await out.send(failed(message, "grammar"))

    await mesh.start_target(fails)
    await mesh.start_door(tool_call_parser="hermes")
    status, body = await post(http, mesh.url + "/v1/chat/completions", {**CHAT, "stream": False, **fields})
    assert (status, body["error"]["param"], body["error"]["code"]) == (400, param, "invalid_value"), body


async def test_a_failure_mid_stream_is_an_error_event_and_the_end(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    async def fails(target: Any, message: Any, out: Any) -> None:
        await out.send(tokens(message, 0, ids_of("hello")))
        await out.send(failed(message, "engine"))

    await mesh.start_target(fails)
    await mesh.start_door()
    chunks = await streamed(http, mesh.url + "/v1/chat/completions", CHAT)
    assert "[DONE]" not in chunks
    assert chunks[-1]["error"]["message"] == "it was engine"
    assert text_of(chunks[:-1]) == "hello"


async def test_a_full_door_answers_429(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    target = await mesh.start_target(hangs_after("h"))
    await mesh.start_door(max_waiting=1)
    async with http.post(mesh.url + "/v1/completions", json={**TEXT, "stream": True}) as first:
        await target.began.wait()
        async with http.post(mesh.url + "/v1/completions", json=TEXT) as second:
            assert second.status == 429
            assert int(second.headers["Retry-After"]) >= 1
        assert first.status == 200


async def test_a_request_past_its_deadline_gets_504(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    target = await mesh.start_target(hangs_after(""))
    await mesh.start_door(request_timeout=1.0)
    status, body = await post(http, mesh.url + "/v1/completions", TEXT)
    assert (status, body["error"]["code"]) == (504, "request_timeout")
    await asyncio.wait_for(target.was_cancelled.wait(), 5)


async def test_a_stream_past_its_deadline_ends_with_an_error(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_target(hangs_after("hello"))
    await mesh.start_door(request_timeout=1.0)
    chunks = await streamed(http, mesh.url + "/v1/completions", TEXT)
    assert text_of(chunks[:-1]) == "hello"
    assert chunks[-1]["error"]["code"] == "request_timeout"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_cancels_its_work(mesh: FakeMesh, http: aiohttp.ClientSession, stream: bool) -> None:
    target = await mesh.start_target(hangs_after("hello"))
    door = await mesh.start_door()
    request = asyncio.create_task(
        post(http, mesh.url + "/v1/completions", {**TEXT, "stream": stream, "max_tokens": 50})
    )
    await target.began.wait()
    request.cancel()
    await asyncio.wait_for(target.was_cancelled.wait(), 5)
    await until(lambda: door.load() == 0 and target.running == 0)


async def test_api_keys_guard_the_api_and_not_health(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_target(says("hello"))
    await mesh.start_door(api_keys="one, two")
    url = mesh.url + "/v1/completions"
    for headers in ({}, {"Authorization": "Bearer three"}, {"Authorization": "Basic one"}, {"Authorization": "Bearer"}):
        status, body = await post(http, url, TEXT, headers=headers)
        assert (status, body["error"]["code"]) == (401, "invalid_api_key")
    for key in ("one", "two"):
        assert (await post(http, url, TEXT, headers={"Authorization": f"Bearer {key}"}))[0] == 200
    async with http.get(mesh.url + "/health/live") as response:
        assert response.status == 200
    async with http.get(mesh.url + "/v1/models") as response:
        assert response.status == 401


async def test_errors_of_http_itself_have_openai_bodies(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_target(says("hello"))
    await mesh.start_door(max_body_bytes=2048)
    url = mesh.url + "/v1/completions"
    json_type = {"Content-Type": "application/json"}
    calls: list[tuple[int, str, str, dict[str, Any]]] = [
        (404, "GET", mesh.url + "/nothing", {}),
        (405, "GET", url, {}),
        (405, "POST", mesh.url + "/v1/models", {"json": {}}),
        (415, "POST", url, {"data": b"{}", "headers": {"Content-Type": "text/plain"}}),
        (415, "POST", url, {"data": b"{}", "headers": {**json_type, "Content-Encoding": "gzip"}}),
        (413, "POST", url, {"data": b"x" * 5000, "headers": json_type}),
        (400, "POST", url, {"data": b"\xff", "headers": json_type}),
        (400, "POST", url, {"data": b"", "headers": json_type}),
    ]
    for status, method, address, more in calls:
        async with http.request(method, address, **more) as response:
            body = await response.json()
            assert response.status == status, (method, address)
            assert set(body["error"]) == {"message", "type", "param", "code"}


async def test_a_chunked_body_is_capped_too(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_target(says("hello"))
    await mesh.start_door(max_body_bytes=2048)

    async def body() -> Any:
        for _ in range(100):
            yield b"x" * 1000

    headers = {"Content-Type": "application/json"}
    async with http.post(mesh.url + "/v1/completions", data=body(), headers=headers) as response:
        assert response.status == 413


async def test_no_origin_is_allowed_in(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_target(says("hello"))
    await mesh.start_door()
    async with http.options(mesh.url + "/v1/completions", headers={"TokenOrigin": "http://evil"}) as response:
        assert response.status == 405
        assert not any(name.lower().startswith("access-control") for name in response.headers)


async def test_tokenize_and_detokenize_are_inverse(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_target(says("hello"))
    await mesh.start_door()
    _, body = await post(http, mesh.url + "/tokenize", {"prompt": "hello the 🦊"})
    assert body["tokens"] == ids_of("hello the 🦊")
    assert body["count"] == len(body["tokens"])
    _, back = await post(http, mesh.url + "/detokenize", {"tokens": body["tokens"]})
    assert back == {"prompt": "hello the 🦊"}
    _, chat = await post(http, mesh.url + "/tokenize", {"messages": CHAT["messages"]})
    assert chat["tokens"] == ids_of("<user>hi")


async def test_small_routes_answer(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_target(says("hello"))
    await mesh.start_door()
    async with http.get(mesh.url + "/version") as response:
        assert (await response.json())["version"]
    async with http.get(mesh.url + "/openapi.json") as response:
        assert (await response.json())["openapi"].startswith("3.")
    async with http.get(mesh.url + "/docs") as response:
        assert "specmesh" in await response.text()
        assert response.content_type == "text/html"


async def test_health_names_the_role_that_is_missing(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_door()
    async with http.get(mesh.url + "/health/ready") as response:
        assert response.status == 503
        assert (await response.json())["reasons"] == ["worker: none is there"]
    await mesh.start_target(says("hello"))
    async with http.get(mesh.url + "/health/ready") as response:
        assert response.status == 200
        assert (await response.json())["degraded"] == ["proposer: none is there"]


async def test_draining_finishes_what_runs_and_refuses_the_rest(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    go_on = asyncio.Event()

    async def waits(target: Any, message: Any, out: Any) -> None:
        await go_on.wait()
        await says("hello")(target, message, out)

    target = await mesh.start_target(waits)
    door = await mesh.start_door()
    running = asyncio.create_task(streamed(http, mesh.url + "/v1/completions", TEXT))
    await target.began.wait()
    draining = asyncio.create_task(door.drain(30.0))
    await asyncio.sleep(0)
    async with http.post(mesh.url + "/v1/completions", json=TEXT) as response:
        assert response.status == 503
        assert int(response.headers["Retry-After"]) >= 1
    async with http.get(mesh.url + "/health/ready") as response:
        assert response.status == 503
    async with http.get(mesh.url + "/health/live") as response:
        assert response.status == 200
    assert door.ready() == ["draining"]
    go_on.set()
    assert (await running)[-1] == "[DONE]"
    await draining


async def test_a_drain_that_takes_too_long_ends_streams_with_a_reason(
    mesh: FakeMesh, http: aiohttp.ClientSession
) -> None:
    await mesh.start_target(hangs_after("hello"))
    door = await mesh.start_door()
    async with http.post(mesh.url + "/v1/completions", json={**TEXT, "stream": True}) as response:
        await door.drain(0.0)
        chunks = events(await response.read())
    assert chunks[-1]["error"]["code"] == "draining"
