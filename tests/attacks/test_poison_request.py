"""A request that kills its worker, sent to a whole mesh under other requests."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from attacks.poisoned_up import POISON, POISON_TEXT
from flow.running_mesh import RunningMesh
from flow.sse_client import Answer, body, complete

UP = (sys.executable, str(Path(__file__).with_name("poisoned_up.py")))
GOOD, TOKENS = 4, 150


async def good_ones(session: aiohttp.ClientSession, url: str, on_chunk: Any = None) -> list[Answer]:
    asked = [
        body(f"Story number {k}", max_tokens=TOKENS, ignore_eos=True, seed=k, speculation={"method": "naive"})
        for k in range(GOOD)
    ]
    return await asyncio.gather(*(complete(session, url, each, on_chunk) for each in asked))


class Poisoned:
    """A mesh whose worker and tokenizer one request each kills, and a client."""

    def __init__(self, mesh: RunningMesh, session: aiohttp.ClientSession, deaths: Path) -> None:
        self.url, self.session, self._deaths = mesh.url, session, deaths

    @property
    def deaths(self) -> int:
        return self._deaths.read_text().count("died")


@pytest.fixture
async def poisoned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Poisoned]:
    deaths = tmp_path / "deaths"
    monkeypatch.setenv("POISON_DEATHS", str(deaths))
    # It is no command of specmesh, which finds its own code.
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    mesh = RunningMesh(tmp_path, {"engine": "mock"}, specmesh=UP)
    try:
        await asyncio.to_thread(mesh.wait_until_ready)
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as session:
            yield Poisoned(mesh, session, deaths)
    finally:
        mesh.stop()


@pytest.mark.model
async def test_a_poison_request_ends_after_two_deaths_and_all_others_keep_their_text(poisoned: Poisoned) -> None:
    session, url = poisoned.session, poisoned.url
    expected = [each.text for each in await good_ones(session, url)]
    begun = asyncio.Event()
    late: set[int] = set()

    def count(answer: Answer) -> None:
        # In the second chunk of each: from then on none of them is as suspicious as the poison.
        if answer.chunks > 1:
            late.add(id(answer))
        if len(late) == GOOD:
            begun.set()

    running = asyncio.create_task(good_ones(session, url, count))
    await begun.wait()
    poison = await complete(session, url, body("Once", max_tokens=9, seed=POISON))
    answers = await running
    assert poisoned.deaths == 2
    assert poison.error is not None and poison.error["code"] == "worker_died"
    assert [(each.completed, each.text) for each in answers] == [(True, text) for text in expected]


@pytest.mark.slow
@pytest.mark.model
async def test_a_text_that_kills_tokenizers_ends_after_two_deaths_and_others_wait_for_the_next(
    poisoned: Poisoned,
) -> None:
    session, url = poisoned.session, poisoned.url
    expected = [each.text for each in await good_ones(session, url)]
    async with session.post(url + "/tokenize", json={"prompt": f"Of {POISON_TEXT} texts"}) as response:
        status, told = response.status, await response.json()
    # There is no tokenizer just now.
    answers = await good_ones(session, url)
    assert (status, told["error"]["code"], poisoned.deaths) == (500, "tokenizer_died", 2)
    assert [(each.completed, each.text) for each in answers] == [(True, text) for text in expected]
