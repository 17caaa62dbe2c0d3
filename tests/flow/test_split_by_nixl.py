"""Pages that NIXL reads out of another worker's memory, between real processes: the texts are those of one worker, also
when a worker is killed or stopped in the middle."""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from running_mesh import RunningMesh, until
from split_mesh import figure, no_page_is_in_use, texts, wait_for_workers, workers
from sse_client import MODEL, Answer, body, complete
from tiny_folder import write_tiny_model

from bench.running_mesh import ROOT, SPECMESH
from services.api.page_transport import INSTALL

HAS_NIXL = importlib.util.find_spec("nixl") is not None
needs_nixl = pytest.mark.skipif(not HAS_NIXL, reason="NIXL isn't installed: make nixl")
SPLIT = {"prefill_workers": 1, "decode_workers": 1, "handover_min_tokens": 64, "page_tokens": 16}
STREAMS = 5
# By executor: a model, and the words of prompts that a worker can be struck in the middle of.
SIZES = {
    "compiled": ({"max_position_embeddings": 2048, "num_hidden_layers": 6}, 1500),
    "plain": ({"max_position_embeddings": 1024}, 400),
}


@pytest.mark.skipif(HAS_NIXL, reason="NIXL is installed")
@pytest.mark.parametrize("command", [["up"], ["run", "worker"]])
def test_without_nixl_the_start_is_refused_by_name(command: list[str], tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "tiny")
    flags = [f"--run-dir={tmp_path / 'run'}", f"--model={model}", "--page-transport=nixl", "--phase=decode"]
    done = subprocess.run(
        [*SPECMESH, *command, *flags], cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
    )
    assert done.returncode != 0 and INSTALL in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize("command", ["up", "run"])
def test_a_model_on_several_processes_is_refused_with_it(command: str, tmp_path: Path) -> None:
    flags = [f"--run-dir={tmp_path}", "--page-transport=nixl", "--tensor-parallel-size=2"]
    words = [command, "worker"] if command == "run" else [command]
    done = subprocess.run([*SPECMESH, *words, *flags], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode != 0 and "page_transport" in done.stderr and "tensor_parallel_size" in done.stderr


def prompt(number: int, words: int) -> str:
    return " ".join(f"w{1 + (number * 31 + k * k) % 300}" for k in range(words))


async def run_all(
    mesh: RunningMesh, words: int, tokens: int = 40, streams: int = STREAMS, **more: Any
) -> list[Answer]:
    asked = [body(prompt(number, words), max_tokens=tokens, ignore_eos=True, **more) for number in range(streams)]
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300)) as session:
        return list(await asyncio.gather(*(complete(session, mesh.url, each) for each in asked)))


class Mesh(RunningMesh):
    words = 0


def started(folder: Path, model: Path, environment: dict[str, str] | None = None, **settings: Any) -> Mesh:
    given = {
        "model": model, "served_model_name": MODEL, "dtype": "float32", "method": "naive", "kv_cache_mb": 64,
        "max_step_tokens": 16, **SPLIT, **settings,
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    mesh = Mesh(folder, given, environment=environment)
    try:
        mesh.wait_until_ready()
        wait_for_workers(mesh, 2)
    except BaseException:
        mesh.stop()
        raise
    return mesh


@pytest.fixture(scope="module", params=SIZES)
def mesh(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    folder = tmp_path_factory.mktemp("mesh")
    model = write_tiny_model(folder / "tiny", **SIZES[request.param][0])
    # As between machines: a read needs both sides, and doesn't end while one is stopped.
    mesh = started(folder / "mesh", model, {"UCX_TLS": "tcp"}, page_transport="nixl", executor=request.param)
    mesh.words = SIZES[request.param][1]
    numbers = itertools.count(1000)

    def read() -> bool:
        """Until all know all others, some prompts are computed where they go on."""
        asyncio.run(run_all(mesh, 100, 4, streams=1, cache_salt=f"{next(numbers)}"))
        return figure(mesh, 1, "specmesh:handover_read_pages_total") > 0

    until(read, 60.0, lambda: mesh.text()[-4000:])
    yield mesh
    mesh.stop()


@needs_nixl
@pytest.mark.shows("pages over NIXL", "tested")
@pytest.mark.nixl
async def test_pages_are_read_and_the_texts_are_those_of_one_worker(mesh: Mesh) -> None:
    before = figure(mesh, 1, "specmesh:handover_read_pages_total")
    said = texts(await run_all(mesh, 200))
    read = figure(mesh, 1, "specmesh:handover_read_pages_total")
    assert read == figure(mesh, 1, "specmesh:handover_pages_total", 'way="fetched"') >= before + STREAMS * 12
    assert read == figure(mesh, 0, "specmesh:handover_pages_total", 'way="lent"')
    # Prompts whose log-probabilities are asked for are computed where the text goes on.
    alone = await run_all(mesh, 200, cache_salt="alone", logprobs=1, echo=True)
    assert [each.text.removeprefix(prompt(k, 200)) for k, each in enumerate(alone)] == said
    assert figure(mesh, 1, "specmesh:handover_read_pages_total") == read
    no_page_is_in_use(mesh, 2)


@needs_nixl
@pytest.mark.nixl
@pytest.mark.parametrize("struck", ["prefill-1", "decode-1"])
@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_worker_that_is_lost_in_the_middle_changes_no_text(
    mesh: Mesh, struck: str, sig: signal.Signals
) -> None:
    words, salt = mesh.words, f"{struck} {sig}"
    before = figure(mesh, 0, "specmesh:handover_pages_total")
    running = asyncio.create_task(run_all(mesh, words, cache_salt=salt))
    await asyncio.to_thread(
        until,
        lambda: figure(mesh, 0, "specmesh:handover_pages_total") > before + 10,
        60.0,
        lambda: mesh.text()[-4000:],
    )
    assert not running.done()
    pid = workers(mesh)[struck]
    os.kill(pid, sig)
    said = texts(await running)
    await asyncio.to_thread(
        until, lambda: workers(mesh).get(struck, pid) != pid, 60.0, lambda: mesh.text()[-4000:]
    )
    await asyncio.to_thread(wait_for_workers, mesh, 2)
    no_page_is_in_use(mesh, 2)
    # Once more, with the worker that came back; and without what came from the other one.
    assert texts(await run_all(mesh, words, cache_salt=salt)) == said
    assert texts(await run_all(mesh, words, cache_salt=f"{salt} again")) == said
    assert "Traceback" not in mesh.text()
