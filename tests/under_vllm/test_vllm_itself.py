"""The page's commands with a real vLLM, where there is one: VLLM names its environment. docs/use/vllm.md."""

from __future__ import annotations

import json
import os
import urllib.request
from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bench.oracles import vllm_drafter
from bench.running_mesh import descendants
from loadtest.server_metrics import parse
from models.sources import ensure_model
from services.api.settings import Settings, cache_dir

VLLM = Path(os.environ.get("VLLM", "/nowhere"))
COMMAND = VLLM / "bin" / "vllm"
LINES = [f"def area_{name}(width, height):\n    return width * height + {at}" for at, name in enumerate("abcd")]
PROMPTS = [f"Rewrite this code, and call area_{name} size_{name}:\n\n" + "\n".join(LINES) for name in "abc"]
PROMPTS += ["What is the capital of France, and why is it famous?"]
# In bfloat16 two tokens may be so close that the shape of a batch decides.
OPTIONS = Namespace(dtype="float32", eager=True, debug=True, draft_tokens=16)


def ask(url: str, prompt: str, **more: object) -> list[str]:
    body = {"model": "m", "messages": [{"role": "user", "content": prompt}], "max_tokens": 64, "temperature": 0} | more
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=300) as answer:
        return [choice["message"]["content"] for choice in json.load(answer)["choices"]]


def ask_all(url: str, at_once: int) -> list[list[str]]:
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(lambda prompt: ask(url, prompt), PROMPTS))


def counted(url: str, name: str) -> float:
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
        samples = parse(answer.read().decode())
    return sum(value for (sample, _), value in samples.items() if sample == f"vllm:spec_decode_num_{name}_tokens_total")


@pytest.mark.slow
@pytest.mark.skipif(not COMMAND.is_file(), reason="VLLM names no environment with vLLM")
def test_texts_are_vllms_own_drafts_are_accepted_and_a_dead_proposer_costs_nothing_else(tmp_path: Path) -> None:
    model = ensure_model("smollm2-135m-instruct", cache_dir(Settings.for_tests()))
    vllm_drafter.make_path(tmp_path)
    with vllm_drafter.engine("off", tmp_path, COMMAND, model, OPTIONS) as url:
        expected = ask_all(url, 1)
    with (
        vllm_drafter.proposer("cold", tmp_path) as proposer,
        vllm_drafter.engine("cold", tmp_path, COMMAND, model, OPTIONS) as url,
    ):
        assert ask_all(url, 1) == expected
        assert counted(url, "accepted") > 0.3 * counted(url, "draft") > 20
        # Learned from these answers.
        before = counted(url, "accepted")
        assert ask_all(url, 1) == expected
        assert counted(url, "accepted") > 2 * before
        [worker] = descendants(proposer.pid)
        os.kill(worker, 9)
        assert len(ask_all(url, 4)) == len(expected)
        assert len(ask(url, PROMPTS[0], n=3, temperature=0.8)) == 3
        before = counted(url, "accepted")
        assert ask_all(url, 1) == expected
        assert counted(url, "accepted") > before
    log = (tmp_path / "cold.log").read_text()
    assert "specmesh drafts from" in log and "taken for other texts" not in log and "drafts no more" not in log
