"""What the page says when the server is full (429) or goes down (503), and that it goes on afterwards.

The only place of a small server is taken by a long stream from outside. In a real Chromium, before a real mesh with the
mock engine.
"""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from browser import Page, executable
from running_mesh import RunningMesh, running_mesh

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(executable() is None, reason="there is no chromium: apt-get install chromium"),
]

SLOW = '{"step_ms": 20, "vocab_size": 49152}'
FAILURE = "(document.querySelector('#turns .failure')?.innerText ?? '')"
ENDED = "!document.getElementById('send').hidden"
VERDICT = "document.getElementById('verdict').textContent"


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMesh]:
    """With room for one request at a time."""
    folder = tmp_path_factory.mktemp("mesh")
    with running_mesh(folder, engine="mock", mock_profile=SLOW, max_waiting=1) as running:
        yield running


@asynccontextmanager
async def place_taken(mesh: RunningMesh) -> AsyncIterator[None]:
    """By an answer that is under way, and goes on until we leave."""
    model = json.loads(mesh.get("/v1/models")[1])["data"][0]["id"]
    body: dict[str, Any] = {"model": model, "prompt": "1 2 3", "max_tokens": 6000, "ignore_eos": True, "stream": True,
                            "speculation": {"off": True}}  # fmt: skip
    async with aiohttp.ClientSession() as http, http.post(mesh.url + "/v1/completions", json=body) as answer:
        assert answer.status == 200
        await answer.content.readline()
        yield


async def send(tab: Page, prompt: str = "Hello") -> None:
    await tab.run("document.querySelector('#ask [name=max_tokens]').value = 8")
    await tab.run(f"document.getElementById('prompt').value = {json.dumps(prompt)}")
    await tab.click("#send")


async def answered(tab: Page) -> None:
    await tab.until(f"{ENDED} && document.querySelectorAll('#turns .turn:last-child .step').length > 0", 60)
    assert await tab.run(FAILURE) == ""


async def try_again(tab: Page) -> None:
    """Until there is a place: the server learns in its own time that whoever had it has left."""
    await tab.until(
        f"""(() => {{
            const again = document.querySelector('#turns .failure button');
            if (again && {ENDED}) again.click();
            return !again && {ENDED} && document.querySelectorAll('#turns .turn:last-child .step').length > 0;
        }})()""",
        60,
    )


async def test_a_full_server_is_said_to_be_busy_and_the_question_can_be_asked_again(
    mesh: RunningMesh, opened: Page
) -> None:
    async with place_taken(mesh):
        await send(opened)
        await opened.until(f"{ENDED} && {FAILURE} !== ''")
        said = await opened.run(FAILURE)
        assert said.startswith("The server is busy The server has as many requests as it can hold; try again. It asks")
        assert "It asks to wait 1 second." in said and "Try again" in said
        # Nothing of it is lost, and the page still knows how the server is.
        assert await opened.run("document.querySelector('#turns .asked').textContent") == "Hello"
        assert await opened.run("document.getElementById('gone').hidden") is True
        assert await opened.run("document.getElementById('told').textContent") in said
    await try_again(opened)
    await answered(opened)
    assert await opened.run("document.getElementById('turns').childElementCount") == 1


async def test_a_race_before_a_full_server_says_why_it_cannot_be_and_can_be_started_again(
    mesh: RunningMesh, opened: Page
) -> None:
    await opened.click("nav a[href='#race']")
    await opened.run("document.querySelector('#race-form [name=max_tokens]').value = 8")
    async with place_taken(mesh):
        await opened.click("#race-start")
        await opened.until(f"{VERDICT}.includes('wait')")
        assert "as many requests as it can hold; try again. It asks to wait 1 second." in await opened.run(VERDICT)
        assert await opened.run("document.getElementById('race-start').hidden") is False
    await opened.until(
        f"""(() => {{
            const start = document.getElementById('race-start');
            if (!start.hidden && !{VERDICT}.startsWith('Identical')) start.click();
            return {VERDICT} === 'Identical text: yes';
        }})()""",
        60,
    )


async def test_a_server_that_goes_down_says_so_and_the_page_goes_on_with_the_next_one(
    mesh: RunningMesh, opened: Page
) -> None:
    door = mesh.pid("streamer")
    async with place_taken(mesh):
        mesh.kill("streamer", signal.SIGTERM)
        await opened.until("document.getElementById('health').dataset.state === 'unready'", 60)
        await send(opened)
        await opened.until(f"{ENDED} && {FAILURE} !== ''")
        said = await opened.run(FAILURE)
        assert said.startswith("Not ready The server is shutting down; try again. It asks to wait 5 seconds.")
    mesh.wait_for_another("streamer", door)
    await try_again(opened)
    await answered(opened)
    await opened.until("document.getElementById('gone').hidden", 30)
    await opened.until("document.getElementById('health').dataset.state === 'ready'", 60)
