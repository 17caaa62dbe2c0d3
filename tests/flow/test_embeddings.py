"""/v1/embeddings of a real mesh: transformers' hidden states, in any batch, beside generation and after a death."""

from __future__ import annotations

import base64
import json
import os
import signal
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from running_mesh import RunningMesh, running_mesh, until
from sse_client import MODEL
from test_two_workers import wait_for_two_workers, workers
from tiny_folder import write_tiny_model

pytestmark = pytest.mark.model

TEXTS = [
    "The keeper of the lighthouse climbs one hundred and forty steps every evening.",
    "At what time does the last ferry leave?",
    "def mean(values): return sum(values) / len(values)",
]
INPUTS = 64


@pytest.fixture(scope="module")
def folder() -> Path:
    from models.sources import ensure_model
    from services.api.settings import Settings, cache_dir

    return Path(ensure_model(MODEL, cache_dir(Settings.for_tests()), dtype="float32"))


def post(mesh: RunningMesh, path: str, **fields: Any) -> dict[str, Any]:
    data = json.dumps({"model": MODEL} | fields).encode()
    request = urllib.request.Request(f"{mesh.url}{path}", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def embeddings(mesh: RunningMesh, inputs: Any, **fields: Any) -> list[bytes]:
    data = post(mesh, "/v1/embeddings", input=inputs, encoding_format="base64", **fields)["data"]
    assert [each["index"] for each in data] == list(range(len(data)))
    return [base64.b64decode(each["embedding"]) for each in data]


def test_the_openai_client_gets_the_hidden_states_of_transformers(float32_mesh: RunningMesh, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    encode = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).model
    client = openai.OpenAI(base_url=f"{float32_mesh.url}/v1", api_key="any", max_retries=0)
    for pooling in ("last", "mean"):
        made = client.embeddings.create(model=MODEL, input=TEXTS, extra_body={"pooling": pooling})
        count = 0
        for text, each in zip(TEXTS, made.data, strict=True):
            ids = encode(text)["input_ids"]
            count += len(ids)
            with torch.inference_mode():
                states = model(torch.tensor([ids])).last_hidden_state[0].double().numpy()
            pooled = states[-1] if pooling == "last" else states.mean(0)
            assert np.abs(np.array(each.embedding) - pooled / np.linalg.norm(pooled)).max() < 1e-5
        assert made.usage.prompt_tokens == count
    [short] = client.embeddings.create(model=MODEL, input=TEXTS[0], dimensions=64).data
    assert np.linalg.norm(short.embedding) == pytest.approx(1.0, abs=1e-6) and len(short.embedding) == 64


def test_64_inputs_beside_generation_have_the_bits_that_each_has_alone(float32_mesh: RunningMesh) -> None:
    asked = {"prompt": TEXTS[:2], "max_tokens": 60, "temperature": 0, "ignore_eos": True}

    def texts() -> list[str]:
        choices = post(float32_mesh, "/v1/completions", **asked)["choices"]
        return [each["text"] for each in sorted(choices, key=lambda each: int(each["index"]))]

    calm = texts()
    inputs = [f"{TEXTS[place % 3]} {place}" for place in range(INPUTS)]
    fields = {"normalize": False, "cache_salt": "crowd"}
    with ThreadPoolExecutor(4) as pool:
        beside = [pool.submit(texts) for _ in range(2)]
        crowds = [pool.submit(embeddings, float32_mesh, inputs, pooling=each, **fields) for each in ("last", "mean")]
        assert [each.result() for each in beside] == [calm, calm]
        last, mean = (each.result() for each in crowds)
    for place in (0, 17, 63):
        assert embeddings(float32_mesh, inputs[place], normalize=False, pooling="last") == [last[place]]
        assert embeddings(float32_mesh, inputs[place], normalize=False, pooling="mean") == [mean[place]]
    assert len({*last, *mean}) == 2 * INPUTS


@pytest.mark.slow
def test_a_request_goes_on_at_the_other_worker_when_one_is_killed(tmp_path: Path) -> None:
    """In plain torch, row by row, so that it takes its time."""
    model = write_tiny_model(tmp_path / "tiny")
    slow = {"executor": "plain", "dtype": "float32", "max_step_tokens": 32, "kv_cache_mb": 16, "method": "ngram"}
    inputs = [[1 + (place * 7 + at) % 300 for at in range(100)] for place in range(INPUTS)]

    def asked(mesh: RunningMesh) -> list[bytes]:
        return embeddings(mesh, inputs, pooling="mean", model="tiny")

    with running_mesh(tmp_path, model=model, workers=2, **slow) as mesh, ThreadPoolExecutor() as pool:
        wait_for_two_workers(mesh)
        calm = asked(mesh)
        running = pool.submit(asked, mesh)
        until(lambda: mesh.metrics("streamer")["specmesh:door_requests_running"] > 0, 60.0, why=lambda: "nothing runs")
        os.kill(workers(mesh)[0], signal.SIGKILL)
        assert running.result(timeout=300) == calm
        assert mesh.metrics("streamer")["specmesh:request_retries_total"] > 0
