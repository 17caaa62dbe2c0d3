from __future__ import annotations

import aiohttp
import pytest
from fake_mesh import MODEL, FakeMesh, says

from services.api.settings import Settings

PAGE = "https://chat.example.com"
TEXT = {"model": MODEL, "prompt": "hi", "max_tokens": 3}
KEYS = [("", {}), ("one,two", {"Authorization": "Bearer two"})]
ALLOWED = "Access-Control-Allow-Origin"


async def preflight(http: aiohttp.ClientSession, mesh: FakeMesh, origin: str, **more: str) -> aiohttp.ClientResponse:
    headers = {"Origin": origin, "Access-Control-Request-Method": "POST", **more}
    async with http.options(mesh.url + "/v1/chat/completions", headers=headers) as response:
        await response.read()
        return response


async def post(http: aiohttp.ClientSession, mesh: FakeMesh, **headers: str) -> aiohttp.ClientResponse:
    async with http.post(mesh.url + "/v1/completions", json=TEXT, headers=headers) as response:
        await response.read()
        return response


@pytest.mark.parametrize(("keys", "header"), KEYS)
@pytest.mark.parametrize("listed", [f"http://localhost:3000, {PAGE}", "*"])
async def test_a_page_of_a_listed_origin_may_ask_and_read(
    mesh: FakeMesh, http: aiohttp.ClientSession, keys: str, header: dict[str, str], listed: str
) -> None:
    await mesh.start_target(says("hello"))
    await mesh.start_door(api_keys=keys, cors_origins=listed)
    asked = {"Access-Control-Request-Headers": "authorization, content-type,x-stainless-lang"}
    first = await preflight(http, mesh, PAGE, **asked)
    assert first.status == 204
    assert first.headers[ALLOWED] == PAGE
    assert first.headers["Access-Control-Allow-Headers"] == "authorization, content-type, x-stainless-lang"
    assert "POST" in first.headers["Access-Control-Allow-Methods"]
    answer = await post(http, mesh, Origin=PAGE, **header)
    assert (answer.status, answer.headers[ALLOWED]) == (200, PAGE)
    assert "Origin" in answer.headers["Vary"]
    assert "x-request-id" in answer.headers["Access-Control-Expose-Headers"]
    assert "Access-Control-Allow-Credentials" not in answer.headers


async def test_streams_and_errors_may_be_read_too(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_target(says("hello"))
    await mesh.start_door(cors_origins=PAGE)
    for body, status in (({**TEXT, "stream": True}, 200), ({**TEXT, "n": 0}, 400)):
        async with http.post(mesh.url + "/v1/completions", json=body, headers={"Origin": PAGE}) as response:
            assert (response.status, response.headers[ALLOWED]) == (status, PAGE)
            await response.read()


async def test_a_key_is_needed_all_the_same(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_door(api_keys="one", cors_origins=PAGE)
    answer = await post(http, mesh, Origin=PAGE)
    # The page may read that its key is wrong.
    assert (answer.status, answer.headers[ALLOWED]) == (401, PAGE)


@pytest.mark.parametrize("keys", ["", "one"])
@pytest.mark.parametrize("origin", ["https://evil.example", PAGE + ":8443", "http://chat.example.com", "null", ""])
async def test_other_origins_get_nothing(
    mesh: FakeMesh, http: aiohttp.ClientSession, keys: str, origin: str
) -> None:
    await mesh.start_target(says("hello"))
    await mesh.start_door(api_keys=keys, cors_origins=PAGE)
    first = await preflight(http, mesh, origin)
    assert first.status == 403 and ALLOWED not in first.headers
    answer = await post(http, mesh, Origin=origin, Authorization="Bearer one")
    assert ALLOWED not in answer.headers
    # Without keys, a page could have an effect that it needn't read.
    assert answer.status == (200 if keys else 403)


async def test_without_the_setting_nothing_is_said_of_origins(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_target(says("hello"))
    await mesh.start_door(api_keys="one")
    first = await preflight(http, mesh, PAGE)
    answer = await post(http, mesh, Origin=PAGE, Authorization="Bearer one")
    for response in (first, answer):
        assert not [name for name in response.headers if name.startswith("Access-Control") or name == "Vary"]
    assert first.status == 405


async def test_a_listed_origin_opens_no_door_for_a_rebound_name(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_door(cors_origins="*")
    assert (await preflight(http, mesh, PAGE, Host="evil.example")).status == 421
    assert (await post(http, mesh, Origin=PAGE, Host="evil.example")).status == 421


async def test_only_names_of_headers_are_repeated(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_door(cors_origins=PAGE)
    many = ",".join(["content-type", "a b", "é", "x" * 65, *(f"x-{number}" for number in range(100))])
    first = await preflight(http, mesh, PAGE, **{"Access-Control-Request-Headers": many})
    repeated = first.headers["Access-Control-Allow-Headers"].split(", ")
    assert repeated == ["content-type", *(f"x-{number}" for number in range(28))]


@pytest.mark.parametrize("bad", ["chat.example.com", "https://chat.example.com/", "https://a.example/x", "https://"])
def test_what_is_no_origin_stops_the_start(bad: str) -> None:
    with pytest.raises(ValueError, match="is no origin: scheme"):
        Settings.for_tests(cors_origins=f"*,{bad}")
