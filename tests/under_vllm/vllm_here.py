"""A real vLLM for slow tests, where there is one: VLLM names its environment. Prompts that repeat themselves, and what
vLLM has counted."""

from __future__ import annotations

import json
import os
import urllib.request
from argparse import Namespace
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from bench.oracles import vllm_drafter
from loadtest.server_metrics import parse
from models.sources import ensure_model
from services.api.settings import Settings, cache_dir

COMMAND = Path(os.environ.get("VLLM", "/nowhere")) / "bin" / "vllm"
needs_vllm = pytest.mark.skipif(not COMMAND.is_file(), reason="VLLM names no environment with vLLM")
LINES = [f"def area_{name}(width, height):\n    return width * height + {at}" for at, name in enumerate("abcd")]
PROMPTS = [f"Rewrite this code, and call area_{name} size_{name}:\n\n" + "\n".join(LINES) for name in "abc"]
PROMPTS += ["What is the capital of France, and why is it famous?"]
# In bfloat16 two tokens may be so close that the shape of a batch decides.
OPTIONS = Namespace(dtype="float32", eager=True, debug=True, draft_tokens=16)


def engine(name: str, folder: Path, namespace: str = "") -> AbstractContextManager[str]:
    """Its URL. Those of one name have one proposer."""
    model = ensure_model("smollm2-135m-instruct", cache_dir(Settings.for_tests()))
    return vllm_drafter.engine(name, folder, COMMAND, model, OPTIONS, namespace)


def ask(url: str, prompt: str, **more: object) -> list[str]:
    body = {"model": "m", "messages": [{"role": "user", "content": prompt}], "max_tokens": 64, "temperature": 0} | more
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=300) as answer:
        return [choice["message"]["content"] for choice in json.load(answer)["choices"]]


def ask_all(url: str, at_once: int, prompts: Sequence[str] = PROMPTS) -> list[list[str]]:
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(lambda prompt: ask(url, prompt), prompts))


def counted(url: str, name: str) -> float:
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
        samples = parse(answer.read().decode())
    return sum(value for (sample, _), value in samples.items() if sample == f"vllm:spec_decode_num_{name}_tokens_total")
