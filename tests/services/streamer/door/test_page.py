"""How the page is served; what it does in a browser: tests/page/."""

from __future__ import annotations

import re
from pathlib import Path

import aiohttp
import pytest
from fake_mesh import FakeMesh

from services.api.methods import METHODS, NAIVE, OFF, PREDICTION, SOURCES
from services.streamer.door import page

FILES = sorted(file for file in page.FOLDER.iterdir() if file.is_file())
BODIES = {name: asset.body for name, asset in page.ASSETS.items()}
# Names of XML's vocabularies look like addresses, and nothing is fetched from them.
NAMESPACES = ("http://www.w3.org/2000/svg",)


async def test_the_page_is_at_the_root_and_its_files_beside_it(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_door()
    async with http.get(mesh.url + "/") as response:
        assert (response.status, response.content_type, response.charset) == (200, "text/html", "utf-8")
        text = await response.text()
    assert text == BODIES["index.html"].decode()
    named = re.findall(r'(?:src|href)="(/[^"#]+)"', text)
    assert {"/page/app.js", "/page/page.css", "/page/icon.svg", "/docs"} == set(named)
    for path in named:
        async with http.get(mesh.url + path) as response:
            assert response.status == 200, path


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
async def test_every_file_comes_with_its_type_and_the_policy(
    mesh: FakeMesh, http: aiohttp.ClientSession, file: Path
) -> None:
    await mesh.start_door()
    async with http.get(f"{mesh.url}/page/{file.name}") as response:
        assert response.status == 200
        assert await response.read() == BODIES[file.name]
        assert response.content_type == page.TYPES[file.suffix]
        policy = [each.strip() for each in response.headers["Content-Security-Policy"].split(";")]
        assert "default-src 'self'" in policy and "frame-ancestors 'none'" in policy
        assert "unsafe" not in response.headers["Content-Security-Policy"]
        assert response.headers["X-Content-Type-Options"] == "nosniff"


async def test_what_a_browser_has_is_not_sent_again(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_door()
    async with http.get(mesh.url + "/page/app.js") as response:
        etag = response.headers["ETag"]
        assert response.headers["Cache-Control"] == "no-cache"
    for known, status in ((etag, 304), (f'"other", W/{etag}', 304), ('"other"', 200)):
        async with http.get(mesh.url + "/page/app.js", headers={"If-None-Match": known}) as response:
            assert (response.status, response.headers["ETag"]) == (status, etag)
            assert bool(await response.read()) == (status == 200)


@pytest.mark.parametrize("path", ["", "other.js", "../page.py", "%2e%2e/page.py", "app.js/", "page/app.js"])
async def test_nothing_else_is_served(mesh: FakeMesh, http: aiohttp.ClientSession, path: str) -> None:
    await mesh.start_door()
    async with http.get(f"{mesh.url}/page/{path}") as response:
        assert response.status == 404


async def test_the_page_needs_no_key_and_the_api_does(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_door(api_keys="secret")
    for path, status in (("/", 200), ("/page/app.js", 200), ("/v1/models", 401)):
        async with http.get(mesh.url + path) as response:
            assert response.status == status, path


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_nothing_comes_from_elsewhere_and_nothing_the_policy_forbids(file: Path) -> None:
    text = BODIES[file.name].decode()
    for name in NAMESPACES:
        text = text.replace(name, "")
    assert re.findall(r"https?:|[\"'(]//\w|\bws:|@import|\bdata:[a-z]+/", text) == []
    # Written into the page by a script, these would be refused or, worse, run what a model said.
    assert re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text) == []
    if file.suffix == ".html":
        assert re.findall(r"\son\w+=|\sstyle=|<script(?![^>]*src=)", text) == []


def test_modules_import_only_what_is_there() -> None:
    for file in FILES:
        for name in re.findall(r'from "([^"]+)"', file.read_text() if file.suffix == ".js" else ""):
            assert (page.FOLDER / name).is_file(), f"{file.name} imports {name}"


def test_it_is_small_enough_to_read() -> None:
    assert sum(file.stat().st_size for file in FILES) < 100_000
    for file in FILES:
        assert len(file.read_text().splitlines()) < 300, file.name


def test_the_methods_to_choose_from_and_the_sources_to_colour_are_those_of_the_table() -> None:
    index, origins = BODIES["index.html"].decode(), BODIES["origins.js"].decode()
    forms = re.findall(r'<select name="method">(.*?)</select>', index, re.DOTALL)
    playground, race = [re.findall(r'<option value="([^"]*)"', form) for form in forms]
    drafting = [name for name in METHODS if name != NAIVE]
    assert playground == ["", *drafting, OFF]
    assert race == ["", *(name for name in drafting if name != PREDICTION)]
    for source in SOURCES.values():
        assert f'"id": "{source.name}", "name": "{source.label}"' in origins
        assert f".origin.{source.name} " in BODIES["page.css"].decode()
        # What is in the worker is in no legend before it has drafted.
        assert (f'"says": "{source.help}", "head": true}}' in origins) == source.head
    drawn = re.findall(r"\.origin\.(\w+) \{ --own: [^;]+;([^}]*)\}", BODIES["page.css"].decode())
    assert len({style for _, style in drawn}) == len(drawn) == len(SOURCES) + 2, "two have the same line"
    assert not [name for name, body in BODIES.items() if b"made:" in body]
