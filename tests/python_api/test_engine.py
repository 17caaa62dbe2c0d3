"""A model in the process of the program: the same answers as from a mesh."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from specmesh import LLM, SamplingParams
from specmesh.engine import Engine

from .conftest import MOCK

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.model
GREEDY = SamplingParams(temperature=0, max_tokens=20)
PROMPTS = ["The capital of France is", "One, two, three,"]


def test_it_answers_as_a_mesh_does(mock_llm: LLM) -> None:
    engine, prompts = Engine(**MOCK), [[100, 101], [107, 102, 103]]
    ours = engine.generate(prompts, GREEDY)
    assert [each.outputs for each in ours] == [each.outputs for each in mock_llm.generate(prompts, GREEDY)]
    assert [each.prompt_token_ids for each in ours] == prompts


def test_what_only_a_server_knows_is_refused_by_name() -> None:
    engine = Engine(**MOCK)
    for name, value in {"stop": ["."], "n": 2, "temperature": 9.0, "structured_outputs": {"json": {}}}.items():
        with pytest.raises(ValueError, match=name):
            engine.generate([[100]], SamplingParams(**{name: value}))
    with pytest.raises(ValueError, match="method suffix"):
        Engine(method="suffix", **MOCK)
    with pytest.raises(ValueError, match="num-speculativ-tokens"):
        Engine(num_speculativ_tokens=3)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["naive", "eagle3"])
def test_texts_of_the_model_are_those_of_a_mesh(llm: LLM, method: str) -> None:
    engine = Engine(dtype="float32", method=method, kv_cache_mb=256)
    outputs = engine.generate(PROMPTS, GREEDY)
    assert [each.outputs for each in outputs] == [each.outputs for each in llm.generate(PROMPTS, GREEDY)]
    assert [bool(each.acceptance["num_draft_tokens"]) for each in outputs] == [method == "eagle3"] * 2
    drawn = [SamplingParams(temperature=0.9, seed=seed, max_tokens=20) for seed in (5, 6)]
    texts = [each.outputs[0].text for each in engine.generate(PROMPTS, drawn[0])]
    assert texts == [each.outputs[0].text for each in llm.generate(PROMPTS, drawn)]


@pytest.mark.slow
def test_the_pages_example_runs() -> None:
    page = (ROOT / "docs" / "use" / "python.md").read_text()
    [code] = [each for each in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "specmesh.engine" in each]
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "Paris" in done.stdout
