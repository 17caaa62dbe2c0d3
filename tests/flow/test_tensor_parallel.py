"""A worker whose model is split over processes, through the whole mesh: the text of one process with drafts and
without, and streams that go on when one of its ranks is killed."""

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
from sse_client import Answer
from test_deaths import all_complete_and_equal, calm_texts, run_all, struck_under_way
from test_gpu_executor import PROMPTS, SAMPLING, all_at_once
from tiny_folder import write_tiny_model

from bench.running_mesh import descendants

SETTINGS: dict[str, Any] = {"dtype": "float32", "kv_cache_mb": 4, "draft_deadline_ms": 2000, "threads": 2}
WIDER = {"num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 96}


def ranks_of(mesh: RunningMesh) -> list[int]:
    found = descendants(mesh.process.pid)
    return sorted(pid for pid, command in found.items() if "services.worker.parallel.rank" in command)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny", **WIDER)


@pytest.fixture(scope="module")
def split_mesh(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMesh]:
    """Three key heads over two ranks; the draft model is whole, on rank 0."""
    folder, more = tmp_path_factory.mktemp("mesh"), {"tensor_parallel_size": 2, "draft_model": model, **SETTINGS}
    with running_mesh(folder, model=model, **more) as mesh:
        yield mesh


def test_text_is_the_same_with_drafts_and_without_and_in_one_process(split_mesh: RunningMesh, model: Path) -> None:
    assert len(ranks_of(split_mesh)) == 1
    found = {method: all_at_once(split_mesh, method) for method in ("naive", "ngram", "draft_model", "auto")}
    assert split_mesh.metrics("worker")["specmesh:spec_decode_num_draft_tokens_total"] > 0
    seen = split_mesh.metrics("worker")
    assert seen["specmesh:ranks"] == 2 and seen["specmesh:rank_exchange_seconds_total"] > 0
    assert found == dict.fromkeys(found, one_process.texts(model, PROMPTS, SAMPLING, "compiled"))


@pytest.fixture(scope="module")
def calm(split_mesh: RunningMesh) -> list[str]:
    said = asyncio.run(run_all(split_mesh, 160, streams=4, speculation={"method": "naive"}, model="tiny"))
    return [answer.text for answer in said]


@pytest.mark.parametrize("sig", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)])
async def test_streams_go_on_when_a_rank_is_killed_or_stopped(
    split_mesh: RunningMesh, calm: list[str], sig: signal.Signals
) -> None:
    worker, (rank,) = split_mesh.pid("worker"), ranks_of(split_mesh)

    async def asked_until_served() -> list[Answer]:
        """A new request waits 15 s for a worker, which may take longer to come back on a busy machine."""
        while True:
            later = await run_all(split_mesh, 160, streams=1, speculation={"method": "ngram"}, model="tiny")
            if not any(each.error and each.error["code"] == "no_worker" for each in later):
                return later

    async def strike() -> None:
        os.kill(rank, sig)
        # The streams may have ended just before: only a step that needs the rank finds that it is stopped.
        all_complete_and_equal(await asked_until_served(), calm[:1])
        await asyncio.to_thread(split_mesh.wait_for_another, "worker", worker)
        until(lambda: rank not in ranks_of(split_mesh), 30.0, why=lambda: split_mesh.text()[-2000:])

    answers = await struck_under_way(split_mesh, 160, 4, strike, speculation={"method": "ngram"}, model="tiny")
    all_complete_and_equal(answers, calm)


@pytest.mark.shows("a worker split over processes of one machine", "served")
@pytest.mark.slow
@pytest.mark.model
async def test_the_embedded_model_over_two_processes_says_the_same_with_drafts(tmp_path: Path) -> None:
    with running_mesh(tmp_path, dtype="float32", tensor_parallel_size=2) as mesh:
        expected = await calm_texts(mesh, 48, streams=3)
        for method in ("ngram", "auto"):
            all_complete_and_equal(await run_all(mesh, 48, streams=3, speculation={"method": method}), expected)
