"""Prompts computed by one worker and continued by another, in real processes: the texts are those of one worker,
also when either of the two is killed or stopped."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from running_mesh import RunningMesh, running_mesh, until
from sse_client import Answer, body, complete

from bench.running_mesh import descendants

PROFILE = '{"step_ms": 2, "row_us": 40, "acceptance": 0.6, "vocab_size": 49152, "token_bytes": 1024}'
SPLIT = {"prefill_workers": 1, "decode_workers": 1, "handover_min_tokens": 64}
STREAMS = 6


def prompts(streams: int, words: int) -> list[str]:
    return [f"Story number {k}. " + f"Once upon a time there were {k} of them. " * words for k in range(streams)]


async def run_all(mesh: RunningMesh, tokens: int, words: int, streams: int = STREAMS, **more: Any) -> list[Answer]:
    timeout = aiohttp.ClientTimeout(total=300)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        asked = [body(each, max_tokens=tokens, ignore_eos=True, **more) for each in prompts(streams, words)]
        return list(await asyncio.gather(*(complete(session, mesh.url, each) for each in asked)))


def texts(answers: list[Answer]) -> list[str]:
    assert [each.error for each in answers if each.error] == []
    assert all(each.completed and each.ends == 1 for each in answers)
    return [each.text for each in answers]


def workers(mesh: RunningMesh) -> dict[str, int]:
    """Process ids, by instance."""
    found = {}
    for pid, command in descendants(mesh.process.pid).items():
        if " run worker" in command:
            for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                if entry.startswith(b"SPECMESH_INSTANCE="):
                    found[entry.partition(b"=")[2].decode()] = pid
    return found


def figure(mesh: RunningMesh, number: int, name: str, *labels: str) -> float:
    """A metric of the worker with this number: prefill workers come first."""
    status, text = mesh.get("/metrics", mesh.metrics_base + 3 + 10 * number)
    lines = [line for line in text.splitlines() if line.startswith(name) and all(label in line for label in labels)]
    return sum(float(line.split()[-1]) for line in lines) if status == 200 else -1.0


def wait_for_workers(mesh: RunningMesh, count: int) -> None:
    def ready() -> bool:
        return all(mesh.get("/health/ready", mesh.metrics_base + 3 + 10 * each)[0] == 200 for each in range(count))

    until(ready, 240.0, why=lambda: f"no {count} workers are ready\n{mesh.text()[-4000:]}")


def no_page_is_in_use(mesh: RunningMesh, count: int) -> None:
    def idle() -> bool:
        return all(figure(mesh, each, "specmesh:kv_pages", 'state="in_use"') == 0.0 for each in range(count))

    until(idle, 60.0, why=lambda: [figure(mesh, each, "specmesh:kv_pages") for each in range(count)])


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
