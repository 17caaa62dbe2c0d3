"""One of two workers is in a network namespace of its own, and nothing gets through to it for some seconds while
streams run: each goes on elsewhere, with its text."""

from __future__ import annotations

import subprocess
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from far_worker import mesh_with_far_worker

from bench.failures.failover import NAME, seen_after, until_ready
from bench.running_mesh import RunningMesh
from bench.streams import chunks

STREAMS, TOKENS, PARTED = 8, 300, 5.0
MOCK = {"engine": "mock", "mock_profile": '{"step_ms": 20, "vocab_size": 49152}', "method": "ngram"}


def ask(mesh: RunningMesh, number: int, texts: dict[int, str]) -> None:
    body = {"model": NAME, "prompt": f"Story number {number}", "max_tokens": TOKENS, "temperature": 0}
    heard = chunks(mesh.port, {**body, "ignore_eos": True})
    texts[number] = heard.text if heard.ended else ""


def all_at_once(mesh: RunningMesh) -> tuple[list[threading.Thread], dict[int, str]]:
    texts: dict[int, str] = {}
    streams = [threading.Thread(target=ask, args=(mesh, number, texts)) for number in range(STREAMS)]
    for stream in streams:
        stream.start()
    return streams, texts


@pytest.mark.slow
def test_streams_of_a_worker_that_is_cut_off_go_on_with_their_texts(tmp_path: Path) -> None:
    with ExitStack() as running:
        try:
            mesh, link = running.enter_context(mesh_with_far_worker(tmp_path, served_model_name=NAME, **MOCK))
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no network namespace can be made here: {error}")
        until_ready(mesh)
        calm, expected = all_at_once(mesh)
        for stream in calm:
            stream.join()
        streams, texts = all_at_once(mesh)
        time.sleep(1.0)
        link.cut()
        threading.Timer(PARTED, link.mend).start()
        assert seen_after(mesh, "worker-far") < PARTED
        for stream in streams:
            stream.join()
        assert len(expected) == STREAMS and all(expected.values()) and texts == expected
