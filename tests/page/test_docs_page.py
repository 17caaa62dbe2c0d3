"""/docs in a real Chromium, before a real mesh with the mock engine: its examples are commands that work."""

from __future__ import annotations

import json
import shlex
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import pytest
from browser import Page, executable, page
from running_mesh import MOCK, RunningMesh, running_mesh

from services.api.methods import METHODS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(executable() is None, reason="there is no chromium: apt-get install chromium"),
]

DRAWN = "document.querySelector('#about').textContent.startsWith('Version')"
COMMANDS = """[...document.querySelectorAll('details')].map((route) => [
    route.querySelector('.method').textContent + ' ' + route.querySelector('summary code').textContent,
    route.querySelector('pre').textContent])"""
WITH_PARAMETERS = ("GET /v1/corpora", "DELETE /v1/corpora/{name}")
# An example that the server doesn't do: kills need the setting demo.
REFUSED = {"POST /v1/mesh/kill": 404}


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMesh]:
    with running_mesh(tmp_path_factory.mktemp("mesh"), engine="mock", mock_profile=MOCK) as running:
        yield running


@pytest.fixture
async def docs(mesh: RunningMesh, browser: str) -> AsyncIterator[Page]:
    async with page(browser) as tab:
        await tab.goto(mesh.url + "/docs")
        await tab.until(DRAWN)
        yield tab
        assert tab.complaints == []
        assert [url for url in tab.requested if not url.startswith(mesh.url)] == []


async def commands(docs: Page) -> dict[str, list[str]]:
    """The words of each route's example, as a shell reads them."""
    return {route: shlex.split(command) for route, command in await docs.run(COMMANDS)}


def option(words: list[str], name: str) -> str:
    return words[words.index(name) + 1]


def fields(docs: Page, route: str) -> Any:
    """The rows of a route's fields: name, type and limits, help, indentation in pixels."""
    return docs.run(f"""[...document.querySelectorAll('details')]
        .find((each) => each.querySelector('summary code').textContent === {json.dumps(route)})
        .querySelectorAll('tr').values().map((row) => [
            row.cells[0].textContent, row.cells[1].innerText || row.cells[1].textContent, row.cells[2].textContent,
            parseFloat(row.cells[0].style.paddingLeft)]).toArray()""")


async def test_nothing_is_undefined(docs: Page) -> None:
    shown = await docs.run("about.textContent + routes.textContent")
    assert "/v1/chat/completions" in shown
    for wrong in ("undefined", "[object Object]", "NaN"):
        assert wrong not in shown


async def test_every_post_has_a_body_and_nothing_else_has(docs: Page) -> None:
    shown = await commands(docs)
    assert len(shown) > 20
    for route, words in shown.items():
        method = route.split()[0]
        assert ("-d" in words) == ("Content-Type: application/json" in words) == (method == "POST"), route
        assert ("-X" in words) == (method == "DELETE"), route
        if method == "POST":
            assert isinstance(json.loads(option(words, "-d")), dict)


async def test_an_example_shows_parameters_in_the_url_and_a_key_where_one_may_be_asked_for(
    docs: Page, mesh: RunningMesh
) -> None:
    shown = await commands(docs)
    query = "?namespace=NAMESPACE&cache_salt=CACHE_SALT"
    assert f"{mesh.url}/v1/corpora{query}" in shown["GET /v1/corpora"]
    assert f"{mesh.url}/v1/corpora/notes{query}" in shown["DELETE /v1/corpora/{name}"]
    assert option(shown["DELETE /v1/corpora/{name}"], "-X") == "DELETE"
    secured = [route for route, words in shown.items() if "Authorization: Bearer KEY" in words]
    assert {"POST /v1/completions", "GET /v1/models", *WITH_PARAMETERS} <= {*secured}
    assert not {"GET /health", "GET /version", "GET /docs"} & {*secured}


async def test_the_server_does_what_the_examples_ask(docs: Page, mesh: RunningMesh) -> None:
    for route, words in (await commands(docs)).items():
        if not route.startswith("POST"):
            continue
        headers = dict(words[at + 1].split(": ") for at, word in enumerate(words) if word == "-H")
        (url,) = [word for word in words if word.startswith(mesh.url)]
        body = option(words, "-d")
        async with aiohttp.ClientSession() as http, http.post(url, data=body, headers=headers) as answer:
            status, said = answer.status, await answer.text()
        assert status in ((REFUSED[route],) if route in REFUSED else (200, 202)), f"{route}: {said}"


async def test_nested_fields_are_shown_with_their_values_and_ranges(docs: Page) -> None:
    rows = {name: rest for name, *rest in await fields(docs, "/v1/chat/completions")}
    kind, _, indentation = rows["speculation.method"]
    assert ", ".join(METHODS) in kind and indentation > rows["speculation"][2] == 0
    assert "one of system, developer" in rows["messages[].role *"][0]
    assert rows["messages[].content[].text *"][2] > rows["messages[].content"][2] > 0
    assert "0 to 2" in rows["temperature"][0]
    assert "above 0" in rows["speculation.typical_epsilon"][0] and "at most 1" in rows["speculation.typical_epsilon"][0]
    assert "items: at most 16" in rows["speculation.corpora"][0]
    assert "each: at least 0" in rows["allowed_token_ids"][0]
    assert "default false" in rows["stream"][0]
