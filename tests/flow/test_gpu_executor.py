"""The whole mesh, four processes, with the GPU executor in Triton's interpreter: a tiny random model of each family
gives the text of the plain executor, greedy and seeded, with drafts, chunks, shared pages and trees.
Preemption: tests/laws/test_law_3_on_the_gpu_executor.py.

The worker's device checks the order of use (kernels/interpreted_device.py): a mistake ends the worker, and so the text.
"""

from __future__ import annotations

import json
import sys
import threading
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from running_mesh import RunningMesh, running_mesh
from tiny_folder import _tokenizer, write_tiny_model

from kernels import interpreter

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.models.gpu.interpreted import FAMILIES, save

pytestmark = pytest.mark.skipif(not interpreter.in_use(), reason="about the interpreter's device")

# Steps that take prompts in pieces.
SETTINGS: dict[str, Any] = {
    "dtype": "float32", "page_tokens": 8, "kv_cache_mb": 1, "max_context": 64, "max_step_tokens": 16,
    "max_sequences": 4, "draft_trees": "true", "draft_deadline_ms": 2000,
}  # fmt: skip
GREEDY = {"temperature": 0}
SEEDED = {"temperature": 0.9, "seed": 11, "top_p": 0.9}


def texts(folder: Path, model: Path, executor: str, methods: Sequence[str]) -> dict[str, list[str]]:
    """By method; of requests that run at the same time."""
    folder.mkdir()
    with running_mesh(folder, model=model, executor=executor, draft_model=model, **SETTINGS) as mesh:
        found = {method: all_at_once(mesh, method) for method in methods}
        if executor == "triton":
            counts = mesh.by_label("worker", "specmesh:gpu_steps_total", "way")
            assert counts["graph"] > 3, counts
            assert mesh.metrics("worker")["specmesh:kernels_compiled_late_total"] == 0
            assert mesh.metrics("worker")["specmesh:spec_decode_num_draft_tokens_total"] > 0
            assert mesh.metrics("worker")["specmesh:prefix_cache_hits_total"] >= 16
        return found


def all_at_once(mesh: RunningMesh, method: str) -> list[str]:
    prompts = [[*range(5, 24)], [*range(5, 22), 90], [3, 4] * 3, [200, 201]]
    bodies: list[dict[str, Any]] = [
        {"prompt": " ".join(f"w{k}" for k in prompt), **(SEEDED if place % 2 else GREEDY)}
        for place, prompt in enumerate(prompts)
    ]
    found = [""] * len(bodies)

    def ask(place: int, body: dict[str, Any]) -> None:
        found[place] = complete(mesh, {**body, "speculation": {"method": method}})

    asking = [threading.Thread(target=ask, args=each) for each in enumerate(bodies)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    return found


def complete(mesh: RunningMesh, body: dict[str, Any]) -> str:
    whole = {"model": "tiny", "max_tokens": 8, "ignore_eos": True, **body}
    head = {"content-type": "application/json"}
    request = urllib.request.Request(f"{mesh.url}/v1/completions", json.dumps(whole).encode(), head)
    with urllib.request.urlopen(request, timeout=600) as answer:
        return str(json.load(answer)["choices"][0]["text"])


def check(model: Path, folder: Path, methods: Sequence[str]) -> None:
    expected = texts(folder / "plain", model, "plain", ["naive"])["naive"]
    assert all(len(text.split()) == 8 for text in expected)
    assert texts(folder / "triton", model, "triton", methods) == dict.fromkeys(methods, expected)


def test_a_llama_through_the_mesh_gives_the_text_of_plain_torch(tmp_path: Path) -> None:
    small = {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 32}
    check(write_tiny_model(tmp_path / "tiny", **small), tmp_path, ["auto"])


@pytest.mark.slow
@pytest.mark.parametrize("family", list(FAMILIES))
def test_every_family_through_the_mesh_gives_the_text_of_plain_torch(family: str, tmp_path: Path) -> None:
    model = tmp_path / "tiny"
    save(family, model, vocab_size=304, eos_token_id=0)
    (model / "tokenizer.json").write_text(json.dumps(_tokenizer()))
    check(model, tmp_path, ["naive", "suffix", "draft_model", "auto"])
