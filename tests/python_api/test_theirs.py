"""The scripts that other servers' pages begin with, their import line changed: run whole, on the default model and on a
DeepSeek with an MTP block, each text that of a server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_families import write_families

from bench.running_mesh import running_mesh

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.model]
PROMPTS = ["Hi, pls intro yourself", "Shanghai is"]
LMDEPLOY = f"""
import json, sys
from specmesh import PytorchEngineConfig, pipeline
from specmesh import SpeculativeConfig

if __name__ == "__main__":
    model_path, method = sys.argv[1:]
    spec_cfg = SpeculativeConfig(method=method, num_speculative_tokens=3)
    pipe = pipeline(model_path, backend_config=PytorchEngineConfig(max_batch_size=128), speculative_config=spec_cfg)
    response = pipe({PROMPTS!r})
    print(json.dumps([each.text for each in response]))
"""
# Their quick start gives no seed: each run has another text.
VLLM = f"""
import json, sys
from specmesh import LLM, SamplingParams

sampling_params = SamplingParams(temperature=0.8, top_p=0.95, seed=7)
llm = LLM(model=sys.argv[1], speculative_config={{"method": sys.argv[2], "num_speculative_tokens": 3}})
outputs = llm.generate({PROMPTS!r}, sampling_params)
print(json.dumps([output.outputs[0].text for output in outputs]))
print(sum(output.acceptance["num_draft_tokens"] for output in outputs))
"""


class Served:
    """A model, the head that scripts ask for, and a server of it."""

    def __init__(self, model: str, method: str, executor: str, url: str) -> None:
        self.model, self.method, self.executor, self.url = model, method, executor, url

    def run(self, script: str) -> list[Any]:
        command = [sys.executable, "-c", script, self.model, self.method]
        environment = os.environ | {"SPECMESH_EXECUTOR": self.executor}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
        return [json.loads(line) for line in done.stdout.splitlines()]

    def ask(self, path: str, **body: Any) -> Any:
        data = json.dumps({"model": "served", **body}).encode()
        request = urllib.request.Request(self.url + path, data, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=300) as answer:
            return json.load(answer)["choices"][0]


@pytest.fixture(scope="module", params=["default model", "DeepSeek"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    model, method, executor = "smollm2-135m-instruct", "eagle3", "auto"
    if request.param == "DeepSeek":
        model = write_families(tmp_path_factory.mktemp("families"))["deepseek-ai/DeepSeek-V3"]
        # plain compiles nothing for a family that no other test serves.
        method, executor = "deepseek_mtp", "plain"
        template = "{% for message in messages %}{{ message['role'] }} {{ message['content'] }} {% endfor %}"
        (Path(model) / "chat_template.jinja").write_text(template)
    settings = {"model": model, "served_model_name": "served", "executor": executor}
    with running_mesh(**settings, method="naive", store_dir="none") as mesh:
        yield Served(model, method, executor, mesh.url)


def test_lmdeploys_script(served: Served) -> None:
    [texts] = served.run(LMDEPLOY)
    greedy = {"temperature": 0, "max_tokens": 512}
    asked = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
    answers = [served.ask("/v1/chat/completions", messages=each, **greedy) for each in asked]
    assert texts == [each["message"]["content"] for each in answers] and all(texts)


def test_vllms_quick_start(served: Served) -> None:
    texts, drafted = served.run(VLLM)
    sampled = {"temperature": 0.8, "top_p": 0.95, "seed": 7, "max_tokens": 16}
    answers = [served.ask("/v1/completions", prompt=prompt, **sampled) for prompt in PROMPTS]
    assert texts == [each["text"] for each in answers] and all(texts)
    assert drafted > 0
