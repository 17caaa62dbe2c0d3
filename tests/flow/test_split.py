"""Prompts computed by one worker and continued by another, in real processes: the texts are those of one worker,
also when either of the two is killed or stopped."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import one_process
import pytest
from running_mesh import RunningMesh, running_mesh, until
from split_mesh import STREAMS, ask_all, figure, no_page_is_in_use, run_all, texts, wait_for_workers, workers
from tiny_folder import write_tiny_model

PROFILE = '{"step_ms": 2, "row_us": 40, "acceptance": 0.6, "vocab_size": 49152, "token_bytes": 1024}'
SPLIT = {"prefill_workers": 1, "decode_workers": 1, "handover_min_tokens": 64}


@pytest.fixture(scope="module")
def mock_split(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMesh]:
    with running_mesh(tmp_path_factory.mktemp("mesh"), engine="mock", mock_profile=PROFILE, **SPLIT) as mesh:
        wait_for_workers(mesh, 2)
        yield mesh


async def alone(mesh: RunningMesh, tokens: int, words: int) -> list[str]:
    """What a mesh without handing over says: the mock's text follows from the prompt alone."""
    return texts(await run_all(mesh, tokens, words, cache_salt="alone", speculation={"method": "naive"}))


# Long enough to be in the middle of it.
WORDS = 150


@pytest.fixture(scope="module")
def calm(mock_split: RunningMesh) -> list[str]:
    return asyncio.run(alone(mock_split, 40, WORDS))


async def test_prompts_are_handed_over_and_the_texts_are_the_same(mock_split: RunningMesh) -> None:
    first = texts(await run_all(mock_split, 60, 40))
    lent = figure(mock_split, 0, "specmesh:handover_pages_total", 'way="lent"')
    assert lent == figure(mock_split, 1, "specmesh:handover_pages_total", 'way="fetched"') > 50
    assert texts(await run_all(mock_split, 60, 40)) == first == await alone(mock_split, 60, 40)
    assert figure(mock_split, 1, "specmesh:worker_requests_total", 'end="length"') == 3 * STREAMS
    no_page_is_in_use(mock_split, 2)


@pytest.mark.parametrize("struck", ["prefill-1", "decode-1"])
@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_worker_that_is_lost_in_the_middle_of_a_handover_changes_no_text(
    mock_split: RunningMesh, calm: list[str], struck: str, sig: signal.Signals
) -> None:
    salt = f"{struck} {sig}"
    before = figure(mock_split, 0, "specmesh:handover_pages_total")
    running = asyncio.create_task(run_all(mock_split, 40, WORDS, cache_salt=salt))
    # In the middle: some pages have gone, others have yet to be computed.
    await asyncio.to_thread(
        until,
        lambda: figure(mock_split, 0, "specmesh:handover_pages_total") > before + 20,
        60.0,
        lambda: mock_split.text()[-4000:],
    )
    assert not running.done()
    pid = workers(mock_split)[struck]
    os.kill(pid, sig)
    assert texts(await running) == calm
    await asyncio.to_thread(
        until, lambda: workers(mock_split).get(struck, pid) != pid, 60.0, lambda: mock_split.text()[-4000:]
    )
    await asyncio.to_thread(wait_for_workers, mock_split, 2)
    no_page_is_in_use(mock_split, 2)
    assert texts(await run_all(mock_split, 40, WORDS, cache_salt=salt)) == calm


WAYS: tuple[dict[str, Any], ...] = (
    {"speculation": {"method": "naive"}},
    {"speculation": {"method": "ngram"}},
    {},
    {"temperature": 0.9, "seed": 7},
)


async def test_a_model_says_what_it_says_in_one_process(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "tiny", max_position_embeddings=1024)
    prompts = [[5 + (k + 7 * stream) % 290 for k in range(200)] for stream in range(3)]
    settings = {"model": model, "dtype": "float32", "kv_cache_mb": 4, "page_tokens": 16, "max_step_tokens": 64, **SPLIT}
    with running_mesh(tmp_path, **settings) as mesh:
        wait_for_workers(mesh, 2)

        async def said(salt: object, **way: Any) -> list[str]:
            return texts(await ask_all(mesh, prompts, 24, model="tiny", cache_salt=str(salt), **way))

        found = [await said(way, **way) for way in WAYS]
        # With what is in the caches, too.
        found.append(await said(WAYS[0], **WAYS[3]))
        fetched = figure(mesh, 1, "specmesh:handover_pages_total", 'way="fetched"')
        assert fetched == figure(mesh, 0, "specmesh:handover_pages_total", 'way="lent"') > 100
        no_page_is_in_use(mesh, 2)
    whole = {"max_tokens": 24, "ignore_eos": True}
    greedy, seeded = (
        one_process.texts(model, prompts, [{**whole, **how}] * 3, "compiled") for how in ({"temperature": 0}, WAYS[3])
    )
    assert found == [greedy, greedy, greedy, seeded, seeded] and greedy != seeded


@pytest.mark.slow
@pytest.mark.model
async def test_the_embedded_model_says_what_one_worker_says(tmp_path: Path) -> None:
    said: dict[str, list[list[str]]] = {}
    for name, settings in (("together", {}), ("split", SPLIT)):
        folder = tmp_path / name
        folder.mkdir()
        with running_mesh(folder, max_step_tokens=64, **settings) as mesh:
            wait_for_workers(mesh, 2 if settings else 1)
            said[name] = [texts(await run_all(mesh, 24, 25, streams=3, cache_salt=str(way), **way)) for way in WAYS]
            said[name] += [texts(await run_all(mesh, 24, 25, streams=3, cache_salt=str(WAYS[0]), **WAYS[3]))]
            if settings:
                fetched = figure(mesh, 1, "specmesh:handover_pages_total", 'way="fetched"')
                assert fetched == figure(mesh, 0, "specmesh:handover_pages_total", 'way="lent"') > 20
            no_page_is_in_use(mesh, 2 if settings else 1)
    assert said["split"] == said["together"]
