"""Log-likelihoods as lm-evaluation-harness computes them over /v1/completions, against transformers.

It sends token ids with echo and logprobs: 1, leaves out the context's tokens and the generated one, and adds up the
rest; the continuation is greedy if each of its tokens is the most probable one.
"""

from __future__ import annotations

import functools
import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from running_mesh import RunningMesh
from sse_client import MODEL

pytestmark = pytest.mark.model

PAIRS = [
    ("The capital of France is", " Paris."),
    ("The capital of France is", " a banana"),
    ("1, 2, 3, 4, 5,", " 6, 7, 8, 9, 10"),
]
# More than the rows of a step of this mesh.
LONG = "The keeper climbs one hundred and forty steps, lights the lamp and writes the weather into a book. " * 8


@pytest.fixture(scope="module")
def folder() -> Path:
    from models.sources import ensure_model
    from services.api.settings import Settings, cache_dir

    return Path(ensure_model(MODEL, cache_dir(Settings.for_tests()), dtype="float32"))


@pytest.fixture(scope="module")
def encode(folder: Path) -> Any:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return lambda text: list(tokenizer.encode(text).ids)


@pytest.fixture(scope="module")
def truth(folder: Path) -> Any:
    """Token ids to the log-probability of each behind the first, and whether it is the most probable one."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    @functools.cache
    def scored(*ids: int) -> tuple[list[float], list[bool]]:
        with torch.inference_mode():
            rows = model(torch.tensor([ids])).logits[0, :-1].double().log_softmax(-1)
        own = rows.gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
        return own.tolist(), (own == rows.max(-1).values).tolist()

    return scored


def ask(mesh: RunningMesh, **fields: Any) -> dict[str, Any]:
    data = json.dumps({"model": MODEL, "temperature": 0, **fields}).encode()
    request = urllib.request.Request(f"{mesh.url}/v1/completions", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def loglikelihood(choice: dict[str, Any], context: int, generated: int) -> tuple[float, bool]:
    told = choice["logprobs"]
    end = len(told["token_logprobs"]) - generated
    values, tops = told["token_logprobs"][context:end], told["top_logprobs"][context:end]
    return sum(values), all(value == max(top.values()) for value, top in zip(values, tops, strict=True))


@pytest.mark.parametrize(("method", "max_tokens"), [("naive", 0), ("ngram", 1)])
def test_continuations_have_the_log_likelihood_that_transformers_gives(
    float32_mesh: RunningMesh, encode: Any, truth: Any, max_tokens: int, method: str
) -> None:
    contexts = [encode(context) for context, _ in PAIRS]
    prompts = [context + encode(text) for context, (_, text) in zip(contexts, PAIRS, strict=True)]
    asked = {"echo": True, "logprobs": 1, "max_tokens": max_tokens, "speculation": {"method": method}}
    choices = sorted(ask(float32_mesh, prompt=prompts, **asked)["choices"], key=lambda choice: int(choice["index"]))
    for choice, ids, context in zip(choices, prompts, contexts, strict=True):
        values, greedy = truth(*ids)
        value, is_greedy = loglikelihood(choice, len(context), max_tokens)
        assert value == pytest.approx(sum(values[len(context) - 1 :]), abs=2e-3)
        assert is_greedy == all(greedy[len(context) - 1 :])
    found = [loglikelihood(choice, len(ids), max_tokens)[0] for choice, ids in zip(choices, contexts, strict=True)]
    assert found[0] > found[1]


def test_a_long_prompt_is_scored_in_chunks(float32_mesh: RunningMesh, encode: Any, truth: Any) -> None:
    ids = encode(LONG)
    assert len(ids) > 2 * 64
    [choice] = ask(float32_mesh, prompt=LONG, echo=True, logprobs=1, prompt_logprobs=2, max_tokens=0)["choices"]
    told = choice["logprobs"]
    assert choice["text"] == "".join(told["tokens"]) == LONG
    assert told["token_logprobs"][0] is None and choice["prompt_logprobs"][0] is None
    assert told["token_logprobs"][1:] == pytest.approx(truth(*ids)[0], abs=2e-4)
    by_id = [each[str(token)] for each, token in zip(choice["prompt_logprobs"][1:], ids[1:], strict=True)]
    assert [each["logprob"] for each in by_id] == told["token_logprobs"][1:]
    assert [each["rank"] == 1 for each in by_id] == truth(*ids)[1]
