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

import one_process
import pytest
from running_mesh import RunningMesh, running_mesh
from tiny_folder import _tokenizer, write_tiny_model

from kernels import interpreter

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.models.gpu.interpreted import FAMILIES, HYBRIDS, save

pytestmark = pytest.mark.skipif(not interpreter.in_use(), reason="about the interpreter's device")

# Steps that take prompts in pieces.
SETTINGS: dict[str, Any] = {
    "dtype": "float32", "page_tokens": 8, "kv_cache_mb": 1, "max_context": 64, "max_step_tokens": 16,
    "max_sequences": 4, "draft_trees": "true", "draft_deadline_ms": 2000,
}  # fmt: skip
GREEDY = {"temperature": 0}
SEEDED = {"temperature": 0.9, "seed": 11, "top_p": 0.9}


PROMPTS = [[*range(5, 24)], [*range(5, 22), 90], [3, 4] * 3, [200, 201]]
SAMPLING: list[dict[str, Any]] = [
    {"max_tokens": 8, "ignore_eos": True, **how} for how in (GREEDY, SEEDED, GREEDY, SEEDED)
]


def texts(folder: Path, model: Path, methods: Sequence[str], hybrid: bool) -> dict[str, list[str]]:
    """By method; of requests that run at the same time."""
    # A draft model has no states.
    own = {} if hybrid else {"draft_model": model}
    with running_mesh(folder, model=model, executor="triton", **own, **SETTINGS) as mesh:
        found = {method: all_at_once(mesh, method) for method in methods}
        counts = mesh.by_label("worker", "specmesh:gpu_steps_total", "way")
        assert counts["graph"] > 3, counts
        seen = mesh.metrics("worker")
        assert seen["specmesh:ranks"] == 1 and seen["specmesh:kernels_compiled_late_total"] == 0
        assert seen["specmesh:spec_decode_num_draft_tokens_total"] > 0
        assert seen["specmesh:prefix_cache_hits_total"] >= 16
        return found


def all_at_once(mesh: RunningMesh, method: str) -> list[str]:
    bodies: list[dict[str, Any]] = [
        {"prompt": " ".join(f"w{k}" for k in prompt), **how} for prompt, how in zip(PROMPTS, SAMPLING, strict=True)
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
    whole = {"model": "tiny", **body}
    head = {"content-type": "application/json"}
    request = urllib.request.Request(f"{mesh.url}/v1/completions", json.dumps(whole).encode(), head)
    with urllib.request.urlopen(request, timeout=600) as answer:
        return str(json.load(answer)["choices"][0]["text"])


def check(model: Path, folder: Path, methods: Sequence[str], hybrid: bool = False) -> None:
    expected = one_process.texts(model, PROMPTS, SAMPLING, "plain")
    assert all(len(text.split()) == 8 for text in expected)
    assert texts(folder, model, methods, hybrid) == dict.fromkeys(methods, expected)


def test_a_llama_through_the_mesh_gives_the_text_of_plain_torch(tmp_path: Path) -> None:
    small = {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 32}
    check(write_tiny_model(tmp_path / "tiny", **small), tmp_path, ["auto"])


@pytest.mark.slow
@pytest.mark.parametrize("family", list(FAMILIES | HYBRIDS))
def test_every_family_through_the_mesh_gives_the_text_of_plain_torch(family: str, tmp_path: Path) -> None:
    model = tmp_path / "tiny"
    save(family, model, vocab_size=304, eos_token_id=0)
    (model / "tokenizer.json").write_text(json.dumps(_tokenizer()))
    methods = ["naive", "suffix", "draft_model", "auto"]
    hybrid = family in HYBRIDS
    check(model, tmp_path, [each for each in methods if not hybrid or each != "draft_model"], hybrid)
