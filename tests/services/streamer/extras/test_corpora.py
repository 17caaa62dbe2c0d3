"""Corpora over HTTP, with a proposer that keeps them in memory."""

from __future__ import annotations

from typing import Any

import aiohttp
import msgspec
import pytest
from fake_mesh import CARD, FakeMesh, ids_of, says
from fake_proposer import FakeProposer

from services.streamer.extras.corpora import MAX_TEXTS, PIECE, parse_external, parse_part, parse_place
from services.streamer.openai.errors import ApiError

VOCABULARY = "tiny words"
Answer = tuple[int, Any]


async def start(mesh: FakeMesh, proposer: FakeProposer | None = None, **settings: Any) -> FakeProposer:
    target = await mesh.start_target(says("hello"))
    target.card = msgspec.structs.replace(CARD, vocabulary=VOCABULARY)
    proposer = proposer or FakeProposer()
    await mesh.start("proposer", "proposer-1", proposer)
    await mesh.start_door(**settings)
    return proposer


async def ask(
    http: aiohttp.ClientSession, mesh: FakeMesh, method: str, path: str, body: Any = None, key: str = ""
) -> Answer:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with http.request(method, mesh.url + path, json=body, headers=headers) as response:
        return response.status, await response.json()


# Bodies and texts, as values


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"texts": ["x"]}, "name", "missing_required_parameter"),
        ({"name": "n"}, "texts", "missing_required_parameter"),
        ({"name": "../x", "text": "x"}, "name", "invalid_value"),
        ({"name": "", "text": "x"}, "name", "invalid_value"),
        ({"name": "n", "text": "x", "texts": ["y"]}, "texts", "invalid_value"),
        ({"name": "n", "text": 1}, "text[0]", "invalid_type"),
        ({"name": "n", "texts": ["x", None]}, "texts[1]", "invalid_type"),
        ({"name": "n", "texts": ["x"] * (MAX_TEXTS + 1)}, "texts", "array_above_max_length"),
        ({"name": "n", "text": "x", "part": -1}, "part", "out_of_range"),
        ({"name": "n", "text": "x", "last": 1}, "last", "invalid_type"),
        ({"name": "n", "text": "x", "namespace": "a b"}, "namespace", "invalid_value"),
        ({"name": "n", "url": "http://x"}, "texts", "missing_required_parameter"),
        ({"name": "n", "text": "x", "path": "/etc/passwd"}, "path", "unsupported_parameter"),
    ],
)
def test_a_refusal_names_the_field(body: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse_part(body)
    assert (caught.value.param, caught.value.code) == (param, code)


def test_of_sglangs_fields_the_path_is_refused_by_name() -> None:
    with pytest.raises(ApiError) as caught:
        parse_external({"corpus_id": "n", "file_path": "/etc/passwd"})
    assert (caught.value.param, caught.value.code) == ("file_path", "unsupported_parameter")
    assert parse_external({"documents": ["x"]}).name != parse_external({"documents": ["x"]}).name


def test_an_unknown_word_in_a_query_is_refused() -> None:
    with pytest.raises(ApiError) as caught:
        parse_place({"name_space": "x"})
    assert caught.value.param == "name_space"


# Over HTTP


async def test_a_corpus_is_added_listed_and_removed(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    proposer = await start(mesh)
    status, card = await ask(http, mesh, "POST", "/v1/corpora", {"name": "docs", "texts": ["the quick", "", "fox"]})
    expected = {"object": "corpus", "name": "docs", "state": "ready", "texts": 2, "progress": 1.0, "message": ""}
    tokens = len(ids_of("the quick") + ids_of("fox"))
    assert (status, card) == (202, {**expected, "tokens": tokens})
    ((_, vocabulary, _),) = proposer.kept
    assert vocabulary == VOCABULARY
    assert [kept.texts for kept in proposer.kept.values()] == [[ids_of("the quick"), ids_of("fox")]]
    assert await ask(http, mesh, "GET", "/v1/corpora") == (200, {"object": "list", "data": [card]})
    removed = {"object": "corpus.deleted", "name": "docs", "deleted": True}
    assert await ask(http, mesh, "DELETE", "/v1/corpora/docs") == (200, removed)
    assert await ask(http, mesh, "GET", "/v1/corpora") == (200, {"object": "list", "data": []})
    status, body = await ask(http, mesh, "DELETE", "/v1/corpora/docs")
    assert (status, body["error"]["code"]) == (404, "corpus_not_found")


async def test_a_large_corpus_comes_in_parts_in_their_order(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    proposer = await start(mesh)
    for part in range(3):
        body = {"name": "big", "text": f"part {part}", "part": part, "last": part == 2}
        status, card = await ask(http, mesh, "POST", "/v1/corpora", body)
        assert (status, card["state"]) == (202, "ready" if part == 2 else "receiving")
    assert [kept.texts for kept in proposer.kept.values()] == [[ids_of(f"part {part}") for part in range(3)]]
    body = {"name": "big", "text": "x", "part": 7}
    status, answer = await ask(http, mesh, "POST", "/v1/corpora", body)
    assert (status, answer["error"]["code"]) == (400, "invalid")


async def test_a_long_text_is_encoded_in_pieces_and_stays_one(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    proposer = await start(mesh)
    text = "".join(f"line {number} of it\n" for number in range(10_000))
    assert len(text) > 2 * PIECE
    status, card = await ask(http, mesh, "POST", "/v1/corpora", {"name": "long", "text": text})
    assert (status, card["texts"]) == (202, 1)
    assert [kept.texts for kept in proposer.kept.values()] == [[ids_of(text)]]


async def test_a_part_with_too_many_tokens_is_refused(
    mesh: FakeMesh, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    proposer = await start(mesh)
    monkeypatch.setattr("services.streamer.extras.corpora.MAX_PART_TOKENS", 10)
    for texts in (["z" * 11], ["z" * 6, "z" * 5], ["z" * 10, "z"]):
        status, body = await ask(http, mesh, "POST", "/v1/corpora", {"name": "n", "texts": texts})
        assert (status, body["error"]["code"]) == (413, "request_too_large")
    assert proposer.kept == {}
    assert (await ask(http, mesh, "POST", "/v1/corpora", {"name": "n", "texts": ["z" * 10]}))[0] == 202


async def test_corpora_of_other_keys_salts_and_namespaces_are_not_seen(
    mesh: FakeMesh, http: aiohttp.ClientSession
) -> None:
    proposer = await start(mesh, api_keys="one,two")
    assert (await ask(http, mesh, "GET", "/v1/corpora"))[0] == 401
    body = {"name": "n", "text": "secret"}
    places = [("one", {}, ""), ("two", {}, ""), ("one", {"namespace": "a"}, "?namespace=a"),
              ("one", {"cache_salt": "s"}, "?cache_salt=s")]  # fmt: skip
    for number, (key, place, query) in enumerate(places):
        assert (await ask(http, mesh, "POST", "/v1/corpora", {**body, **place}, key))[0] == 202
        assert len(proposer.kept) == number + 1
        _, listed = await ask(http, mesh, "GET", "/v1/corpora" + query, key=key)
        assert len(listed["data"]) == 1
    assert (await ask(http, mesh, "DELETE", "/v1/corpora/n?namespace=a", key="two"))[0] == 404
    assert (await ask(http, mesh, "DELETE", "/v1/corpora/n?namespace=a", key="one"))[0] == 200
    assert len(proposer.kept) == 3


async def test_without_a_proposer_a_corpus_is_answered_503(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_target(says("hello"))
    await mesh.start_door()
    for method, path, body in (
        ("POST", "/v1/corpora", {"name": "n", "text": "x"}),
        ("GET", "/v1/corpora", None),
        ("DELETE", "/v1/corpora/n", None),
        ("GET", "/list_external_corpora", None),
    ):
        status, answer = await ask(http, mesh, method, path, body)
        assert (status, answer["error"]["code"], answer["error"]["type"]) == (503, "no_proposer", "server_error")


async def test_a_proposer_that_keeps_no_corpora_says_so(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    proposer = await start(mesh)
    proposer.can_keep = False
    status, answer = await ask(http, mesh, "POST", "/v1/corpora", {"name": "n", "text": "x"})
    assert (status, answer["error"]["code"]) == (503, "unavailable")


async def test_beyond_the_quota_a_corpus_is_answered_429(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    proposer = await start(mesh)
    proposer.quota_is_used_up = True
    status, answer = await ask(http, mesh, "POST", "/v1/corpora", {"name": "n", "text": "x"})
    assert (status, answer["error"]["code"]) == (429, "overloaded")
    assert "64 of your namespaces" in answer["error"]["message"]


async def test_the_routes_that_sglangs_users_know(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    proposer = await start(mesh)
    status, added = await ask(http, mesh, "POST", "/add_external_corpus", {"documents": ["the fox"]})
    assert status == 200 and added["success"] and added["loaded_token_count"] == len(ids_of("the fox"))
    chunks = {"corpus_id": "c", "token_chunks": [[1, 2], [3]]}
    assert (await ask(http, mesh, "POST", "/add_external_corpus", chunks))[1]["corpus_id"] == "c"
    assert [kept.texts for (*_, name), kept in proposer.kept.items() if name == "c"] == [[[1, 2], [3]]]
    status, answer = await ask(http, mesh, "POST", "/add_external_corpus", {"token_chunks": [[10**6]]})
    assert (status, answer["error"]["param"]) == (400, "token_chunks[0]")
    counts = {"c": 3, added["corpus_id"]: added["loaded_token_count"]}
    _, listed = await ask(http, mesh, "GET", "/list_external_corpora")
    assert (listed["success"], listed["corpus_token_counts"]) == (True, counts)
    assert (await ask(http, mesh, "POST", "/remove_external_corpus", {"corpus_id": "c"})) == (
        200,
        {"success": True, "message": ""},
    )
    assert len(proposer.kept) == 1
