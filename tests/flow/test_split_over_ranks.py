"""Prefill and decode workers whose model is split over ranks, in real processes: the texts are those of one worker with
as many ranks, also when a rank of either side is killed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from running_mesh import RunningMesh, running_mesh, until
from split_mesh import STREAMS, ask_all, figure, no_page_is_in_use, texts, wait_for_workers, workers
from tiny_folder import write_tiny_model

pytestmark = pytest.mark.slow

# Three key heads over two ranks.
MODEL = {"num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 96, "max_position_embeddings": 1024}
RANKS: dict[str, Any] = {
    "dtype": "float32", "kv_cache_mb": 16, "threads": 2, "page_tokens": 16, "max_step_tokens": 16,
    "tensor_parallel_size": 2,
}  # fmt: skip
SPLIT = {"prefill_workers": 1, "decode_workers": 1, "handover_min_tokens": 32}


async def said(mesh: RunningMesh, prompt_tokens: int, **more: Any) -> list[str]:
    prompts = [[5 + (k + 7 * stream) % 290 for k in range(prompt_tokens)] for stream in range(STREAMS)]
    return texts(await ask_all(mesh, prompts, 24, model="tiny", **more))


def ranks_of(mesh: RunningMesh) -> dict[str, int]:
    """The second rank of each worker."""
    return workers(mesh, "services.worker.parallel.rank")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny", **MODEL)


@pytest.fixture(scope="module")
def mesh(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMesh]:
    folder = tmp_path_factory.mktemp("mesh")
    with running_mesh(folder, model=model, executor="compiled", **RANKS, **SPLIT) as mesh:
        wait_for_workers(mesh, 2)
        yield mesh


async def test_two_ranks_go_on_with_pages_of_two_others_and_say_what_one_worker_says(
    mesh: RunningMesh, model: Path, tmp_path: Path
) -> None:
    found = await handed_over(mesh, "naive", "ngram")
    with running_mesh(tmp_path, model=model, executor="compiled", **RANKS) as together:
        assert found == [await said(together, 120, speculation={"method": "naive"})] * 2


async def test_so_do_ranks_in_plain_torch(model: Path, tmp_path: Path) -> None:
    found = []
    for name, more in (("split", SPLIT), ("together", {})):
        (tmp_path / name).mkdir()
        with running_mesh(tmp_path / name, model=model, executor="plain", **RANKS, **more) as mesh:
            wait_for_workers(mesh, 2 if more else 1)
            found += await handed_over(mesh, "naive") if more else [await said(mesh, 120)]
    assert found[0] == found[1]


async def handed_over(mesh: RunningMesh, *methods: str) -> list[list[str]]:
    """Texts by method, whose prompts all came from the prefill worker."""
    assert set(ranks_of(mesh)) == {"prefill-1", "decode-1"}
    found = [await said(mesh, 120, cache_salt=method, speculation={"method": method}) for method in methods]
    assert figure(mesh, 1, "specmesh:handovers_total", 'end="complete"') == len(methods) * STREAMS
    lent = figure(mesh, 0, "specmesh:handover_pages_total", 'way="lent"')
    assert lent == figure(mesh, 1, "specmesh:handover_pages_total", 'way="fetched"') == len(methods) * STREAMS * 7
    no_page_is_in_use(mesh, 2)
    return found


@pytest.mark.parametrize("struck", ["prefill-1", "decode-1"])
async def test_a_rank_that_is_killed_in_the_middle_of_a_handover_changes_no_text(
    mesh: RunningMesh, struck: str
) -> None:
    expected = await said(mesh, 900, cache_salt="calm", speculation={"method": "naive"})
    before = figure(mesh, 0, "specmesh:handover_pages_total", 'way="lent"')
    running = asyncio.create_task(said(mesh, 900, cache_salt=struck))
    await asyncio.to_thread(
        until,
        lambda: figure(mesh, 0, "specmesh:handover_pages_total", 'way="lent"') > before + 20,
        60.0,
        lambda: mesh.text()[-4000:],
    )
    assert not running.done()
    rank = ranks_of(mesh)[struck]
    os.kill(rank, signal.SIGKILL)
    assert await running == expected
    await asyncio.to_thread(
        until, lambda: ranks_of(mesh).get(struck, rank) != rank, 120.0, lambda: mesh.text()[-4000:]
    )
    await asyncio.to_thread(wait_for_workers, mesh, 2)
    no_page_is_in_use(mesh, 2)
    assert await said(mesh, 900, cache_salt=struck) == expected


async def test_one_process_goes_on_with_pages_of_two_ranks(model: Path, tmp_path: Path) -> None:
    """Its text is that of the split; in float32 roundings decide nothing here."""
    sizes = {"prefill_tensor_parallel_size": 2, "decode_tensor_parallel_size": 1}
    settings = {**RANKS, "executor": "compiled", "tensor_parallel_size": 1}
    with running_mesh(tmp_path, model=model, **settings, **SPLIT, **sizes) as mesh:
        wait_for_workers(mesh, 2)
        assert set(ranks_of(mesh)) == {"prefill-1"}
        found = await said(mesh, 120, speculation={"method": "naive"})
        assert figure(mesh, 1, "specmesh:handovers_total", 'end="complete"') == STREAMS
        again = await said(mesh, 120, cache_salt="again", speculation={"method": "ngram"})
        assert found == again
        no_page_is_in_use(mesh, 2)
