"""determinism=portable: the bits of logits, and so texts, are the same on every processor of x86 with AVX2.

Loops are compiled for several processors on this one, where it can run them, and what the default model says is held to
what it said on another machine: `same_bits.json`, written by

    python tests/models/test_same_bits.py
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import parity
import pytest
import routing
import run_compiled
from test_smollm2 import PROMPTS, greedy, prompt_ids
from transformers import DeepseekV3Config, LlamaConfig, Qwen3MoeConfig

from kernels.cpu_cache import AMX_SWITCH
from models.batch import Stretch
from services.worker.running.load_torch_model import Wanted, load_torch_model

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="promised for processors of x86 alone"),
]

TESTS = Path(__file__).parent
HASHES = TESTS / "same_bits.json"
DTYPES = ("bfloat16", "int8", "float32")
TOKENS = 48
AVX2 = "+avx,+avx2,+bmi,+bmi2,+f16c,+fma,+lzcnt,+popcnt,+sse4.2"
# What numba compiles for. Emulated tiles stand for a processor with AMX, whose instructions for bfloat16 must not be
# used, and those for bytes may be.
BUILDS = {
    "this": {},
    "AVX2 alone": {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": AVX2},
    "AMX": {AMX_SWITCH: "1"},
}
FAMILIES: dict[str, tuple[Any, dict[str, Any]]] = {
    # Rows in whole tiles.
    "dense": (LlamaConfig, {"hidden_size": 128, "intermediate_size": 192, "head_dim": 32}),
    "experts": (Qwen3MoeConfig, {"head_dim": 16, "num_experts": 8, "num_experts_per_tok": 3,
                                 "moe_intermediate_size": 64, "norm_topk_prob": True}),
    "latent": (DeepseekV3Config, routing.DEEPSEEK),
}  # fmt: skip


def logits(folder: Path, out: Path, build: str, *more: str) -> dict[str, np.ndarray]:
    environment = os.environ | BUILDS[build] | {"PYTHONPATH": str(TESTS.parents[1])}
    command = [sys.executable, str(TESTS / "run_compiled.py"), str(folder), str(out), *more, *DTYPES]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    found = np.load(out)
    return {dtype: found[dtype] for dtype in DTYPES}


@pytest.mark.parametrize("family", FAMILIES)
def test_loops_for_other_processors_give_the_same_bits(family: str, tmp_path: Path) -> None:
    config, changes = FAMILIES[family]
    parity.save_tiny(config, tmp_path / "model", **changes)
    assert len(run_compiled.TOKENS) > 32, "more rows than two tiles"
    found = {build: logits(tmp_path / "model", tmp_path / f"{build}.npz", build, "--same-bits") for build in BUILDS}
    for dtype in DTYPES:
        first = found["this"][dtype].view(np.uint32)
        for build, each in found.items():
            assert (each[dtype].view(np.uint32) == first).all(), f"{dtype}: {build}"
    # Otherwise nothing would be shown.
    tiles = logits(tmp_path / "model", tmp_path / "tiles.npz", "AMX")["bfloat16"]
    assert (tiles != found["this"]["bfloat16"]).any()


def said(folder: Path, dtype: str) -> dict[str, Any]:
    """Of the default model: a hash of the logits of all prompts, and one of each prompt's text."""
    wanted = Wanted(dtype=dtype, same_bits=True, page_tokens=32, kv_cache_mb=512)
    model = load_torch_model(folder, wanted)
    prompts = [prompt_ids(folder, prompt) for prompt in (*PROMPTS, *(f"In other words: {each}" for each in PROMPTS))]
    sums = hashlib.sha256()
    for prompt in prompts:
        # The logits behind the prompt's last token.
        sums.update(model.forward([Stretch(prompt, 0, list(range(1, 13)), len(prompt) - 1)]).logits.numpy().tobytes())
    texts = greedy(model, prompts, TOKENS)
    return {"logits": sums.hexdigest(), "texts": [hashlib.sha256(repr(text).encode()).hexdigest() for text in texts]}


@pytest.mark.model
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_default_model_says_what_it_said_on_another_machine(dtype: str, smollm2: Path) -> None:
    assert said(smollm2, dtype) == json.loads(HASHES.read_text("utf-8"))[dtype]


if __name__ == "__main__":
    from models.sources import ensure_model
    from services.api.settings import Settings, cache_dir

    default = Settings.for_tests()
    smollm2_folder = ensure_model("smollm2-135m-instruct", cache_dir(default))
    made = {each: said(smollm2_folder, each) for each in DTYPES}
    HASHES.write_text(json.dumps(made, indent=1) + "\n", "utf-8")
