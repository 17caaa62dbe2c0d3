"""Prompts computed by one worker and continued by another, in real processes: the texts are those of one worker,
also when either of the two is killed or stopped."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from running_mesh import RunningMesh, running_mesh, until
from split_mesh import STREAMS, figure, no_page_is_in_use, run_all, texts, wait_for_workers, workers

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
    mock_split: RunningMesh, struck: str, sig: signal.Signals
) -> None:
    words, salt = 150, f"{struck} {sig}"
    expected = await alone(mock_split, 40, words)
    before = figure(mock_split, 0, "specmesh:handover_pages_total")
    running = asyncio.create_task(run_all(mock_split, 40, words, cache_salt=salt))
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
    assert texts(await running) == expected
    await asyncio.to_thread(
        until, lambda: workers(mock_split).get(struck, pid) != pid, 60.0, lambda: mock_split.text()[-4000:]
    )
    await asyncio.to_thread(wait_for_workers, mock_split, 2)
    no_page_is_in_use(mock_split, 2)
    assert texts(await run_all(mock_split, 40, words, cache_salt=salt)) == expected


@pytest.mark.model
async def test_the_model_says_what_one_worker_says(tmp_path: Path) -> None:
    ways: tuple[dict[str, Any], ...] = (
        {"speculation": {"method": "naive"}},
        {"speculation": {"method": "ngram"}},
        {},
        {"temperature": 0.9, "seed": 7},
    )
    said: dict[str, list[list[str]]] = {}
    for name, settings in (("together", {}), ("split", SPLIT)):
        folder = tmp_path / name
        folder.mkdir()
        with running_mesh(folder, max_step_tokens=64, **settings) as mesh:
            wait_for_workers(mesh, 2 if settings else 1)
            said[name] = [texts(await run_all(mesh, 24, 25, streams=3, cache_salt=str(way), **way)) for way in ways]
            # With what is in the caches, too.
            said[name] += [texts(await run_all(mesh, 24, 25, streams=3, cache_salt=str(ways[0]), **ways[3]))]
            if settings:
                fetched = figure(mesh, 1, "specmesh:handover_pages_total", 'way="fetched"')
                assert fetched == figure(mesh, 0, "specmesh:handover_pages_total", 'way="lent"') > 20
            no_page_is_in_use(mesh, 2 if settings else 1)
    assert said["split"] == said["together"]
