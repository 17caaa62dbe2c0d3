"""The embedded default against transformers, on the same folder, in float32."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from jinja2 import Template
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, PreTrainedModel

from models.batch import Stretch
from services.worker.running.load_torch_model import Wanted, load_torch_model
from services.worker.running.torch_model import TorchModel

pytestmark = pytest.mark.model

PROMPTS = [
    "What is the capital of France?",
    "Write a Python function that reverses a linked list.",
    "Explain why the sky is blue, in three sentences.",
    "Translate to German: 'The weather is nice today.'",
    "List ten animals that live in the sea.",
    "Tell me a story about a robot who learns to paint.",
    "If a train travels 60 miles in 1.5 hours, what is its average speed? Think step by step.",
    "Summarise: The quick brown fox jumps over the lazy dog. The dog does not react. The fox is pleased.",
    "def fibonacci(n):",
    "Write a short e-mail to a colleague who missed a meeting.",
]


@pytest.fixture(scope="module")
def ours(smollm2: Path) -> TorchModel:
    return load_torch_model(smollm2, Wanted(dtype="float32", threads=2, page_tokens=32, kv_cache_mb=256))


@pytest.fixture(scope="module")
def theirs(smollm2: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32).eval()


def prompt_ids(folder: Path, prompt: str) -> list[int]:
    template = json.loads((folder / "tokenizer_config.json").read_text())["chat_template"]
    turns = [{"role": "user", "content": prompt}]
    text = Template(template).render(messages=turns, add_generation_prompt=True)
    return Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids


def greedy(model: TorchModel, prompts: list[list[int]], count: int) -> list[list[int]]:
    """All prompts at once, one token each a step; ends are not looked at."""
    texts = [list(prompt) for prompt in prompts]
    pages = [list(range(1 + 12 * i, 13 + 12 * i)) for i in range(len(prompts))]
    rows = [Stretch(p, 0, at, len(p) - 1) for p, at in zip(prompts, pages, strict=True)]
    for _ in range(count):
        for text, token in zip(texts, model.forward(rows).logits.argmax(-1).tolist(), strict=True):
            text.append(token)
        rows = [Stretch(t[-1:], len(t) - 1, at, 0) for t, at in zip(texts, pages, strict=True)]
    return [text[len(prompt) :] for text, prompt in zip(texts, prompts, strict=True)]


def their_greedy(model: PreTrainedModel, prompt: list[int], count: int) -> list[int]:
    # min_new_tokens would ban the ends; an end id no token has lets the text run on as ours does.
    out = model.generate(torch.tensor([prompt]), max_new_tokens=count, do_sample=False, eos_token_id=-1, pad_token_id=0)
    return out[0, len(prompt) :].tolist()


def test_logits_equal_those_of_transformers(smollm2: Path, ours: TorchModel, theirs: PreTrainedModel) -> None:
    ids = prompt_ids(smollm2, " ".join(PROMPTS))
    with torch.no_grad():
        expected = theirs(torch.tensor([ids])).logits[0]
    logits = ours.forward([Stretch(ids, 0, list(range(40)), 0)]).logits
    assert (logits - expected).abs().max() <= 1e-4 * expected.abs().max()


def test_greedy_text_equals_that_of_transformers(smollm2: Path, ours: TorchModel, theirs: PreTrainedModel) -> None:
    prompts = [prompt_ids(smollm2, prompt) for prompt in PROMPTS[:2]]
    texts = greedy(ours, prompts, 32)
    assert texts == [their_greedy(theirs, prompt, 32) for prompt in prompts]
    answer = Tokenizer.from_file(str(smollm2 / "tokenizer.json")).decode(texts[0])
    assert "The capital of France is Paris." in answer


@pytest.mark.slow
def test_long_greedy_texts_equal_those_of_transformers(
    smollm2: Path, ours: TorchModel, theirs: PreTrainedModel
) -> None:
    prompts = [prompt_ids(smollm2, prompt) for prompt in PROMPTS]
    expected = [their_greedy(theirs, prompt, 256) for prompt in prompts]
    assert greedy(ours, prompts, 256) == expected
    assert [greedy(ours, [prompt], 256)[0] for prompt in prompts] == expected
