"""From a request to its choices, over the fake mesh: forbidden words become tokens, wishes become a verification."""

from __future__ import annotations

from typing import Any

import aiohttp
import msgspec
import pytest
from fake_mesh import CARD, MODEL, FakeMesh, ids_of, says, until

from services.messages import Speculation

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
