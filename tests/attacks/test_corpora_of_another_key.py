"""One key makes more namespaces with a corpus each than the store holds namespaces. What another key has and may still
add stays as it was: its corpora, what was learned from it, and its room for uploads."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import msgspec
import pytest
from fake_mesh import CARD, FakeMesh, says
from prometheus_client import CollectorRegistry

from services.api.settings import Settings
from services.proposer import index
from services.proposer.actor import ProposerActor
from services.proposer.names import namespace_key
from services.proposer.store.library import Bounds, Library
from services.streamer.choice.namespace import NamespaceIds
from tests.mesh_doubles.clock import FakeClock

VOCABULARY = "tiny words"
# Of the store, of a key's namespaces with corpora, and what one key asks for.
NAMESPACES, OF_A_KEY, MANY = 100, 64, 150
SAID = list(range(100, 400))


@pytest.fixture
async def proposer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ProposerActor]:
    """The real one, with its library on disk."""
    monkeypatch.setattr(index, "Bounds", partial(Bounds, max_namespaces=NAMESPACES, max_corpora_namespaces=OF_A_KEY))
    settings = Settings.for_tests(method="naive", store_dir=str(tmp_path / "store"))
    directory = SimpleNamespace(on_change=lambda change: None, members=lambda role: [])
    context: Any = SimpleNamespace(
        settings=settings, registry=CollectorRegistry(), clock=FakeClock(), directory=directory
    )
    actor = ProposerActor(context, {})
    actor.registry = context.registry  # type: ignore[attr-defined]
    # A mesh that ends waits for nobody: the library is closed below.
    monkeypatch.setattr(actor, "on_stop", partial(asyncio.sleep, 0))
    yield actor
    await asyncio.to_thread(actor._index.close)


@pytest.fixture
async def mesh(proposer: ProposerActor) -> AsyncIterator[FakeMesh]:
    mesh = FakeMesh()
    await mesh.start_tokenizer()
    target = await mesh.start_target(says("hello"))
    target.card = msgspec.structs.replace(CARD, vocabulary=VOCABULARY)
    await mesh.start("proposer", "proposer-1", proposer)
    await mesh.start_door(api_keys="good,bad")
    yield mesh
    await mesh.close()


async def add(http: aiohttp.ClientSession, mesh: FakeMesh, key: str, name: str, **more: Any) -> int:
    body = {"name": name, "texts": ["five six seven"], **more}
    async with http.post(f"{mesh.url}/v1/corpora", json=body, headers={"Authorization": f"Bearer {key}"}) as answer:
        said = await answer.json()
        assert answer.status in (202, 429), said
        if answer.status == 429:
            assert said["error"]["code"] == "overloaded"
        return answer.status


async def cards(http: aiohttp.ClientSession, mesh: FakeMesh, key: str) -> list[dict[str, Any]]:
    async with http.get(f"{mesh.url}/v1/corpora", headers={"Authorization": f"Bearer {key}"}) as answer:
        return list((await answer.json())["data"])


async def built(library: Library) -> None:
    """The library's threads have nothing left to do."""
    while library._state.uploads.complete() or library._builder._corpora.waiting() or library._state.to_seal:
        library._wake()
        await asyncio.to_thread(threading.Event().wait, 0.01)


def library_of(proposer: ProposerActor) -> Library:
    library = proposer._index._libraries.of(namespace_key(VOCABULARY, "any"))
    assert library is not None
    return library


async def test_another_keys_corpus_learned_text_and_room_are_what_they_were(
    mesh: FakeMesh, proposer: ProposerActor
) -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=20)) as http:
        assert await add(http, mesh, "good", "manual") == 202
        library, owner = library_of(proposer), namespace_key(VOCABULARY, NamespaceIds().id_of(b"good"))
        library.learn(owner, 1, SAID)
        library.seal(owner)
        await built(library)
        [before] = await cards(http, mesh, "good")
        assert before["state"] == "ready" and library.stats().segments == 1

        statuses = Counter(
            await asyncio.gather(*(add(http, mesh, "bad", "c", cache_salt=f"{number}") for number in range(MANY)))
        )
        assert statuses == {202: OF_A_KEY, 429: MANY - OF_A_KEY}
        await built(library)

        assert await cards(http, mesh, "good") == [before]
        stats = library.stats()
        assert stats.evicted_tokens == 0
        assert (stats.segments, stats.corpora) == (1, 1 + OF_A_KEY)
        assert await add(http, mesh, "good", "more") == 202
        assert await add(http, mesh, "good", "c", cache_salt="x") == 202
        large = ["nine " * 2000]
        assert await add(http, mesh, "bad", "c", cache_salt="0", texts=large, last=False) == 202
        assert await add(http, mesh, "good", "large", texts=large, last=False) == 202

    refused = proposer.registry.get_sample_value(  # type: ignore[attr-defined]
        "specmesh:corpora_refused_total", {"reason": "overloaded"}
    )
    assert refused == MANY - OF_A_KEY
