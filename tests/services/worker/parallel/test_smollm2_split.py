"""The embedded model in float32 over 2 and 4 processes: the greedy text of one process in plain torch. On two nodes:
the same bits as on one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from other_nodes import other_node
from test_ranks import loaded
from test_smollm2 import PROMPTS
from test_worker_nodes import bits, mesh_at
from tokenizers import Tokenizer

from models.batch import Stretch
from models.sources import ensure_model
from services.worker.running.torch_model import TorchModel

pytestmark = [pytest.mark.model, pytest.mark.slow]

TOKENS = 256


def texts(model: TorchModel, prompts: list[list[int]]) -> list[list[int]]:
    """All at once."""
    size = model.facts.page_tokens
    count = -(-(max(map(len, prompts)) + TOKENS) // size)
    pages = [list(range(at * count, (at + 1) * count)) for at in range(len(prompts))]
    found = [list(prompt) for prompt in prompts]
    fresh = found
    with torch.inference_mode():
        for _ in range(TOKENS):
            rows = [
                Stretch(list(new), len(text) - len(new), own, len(new) - 1)
                for new, text, own in zip(fresh, found, pages, strict=True)
            ]
            fresh = [[token] for token in model.forward(rows).logits.argmax(-1).tolist()]
            found = [text + new for text, new in zip(found, fresh, strict=True)]
    return [text[len(prompt) :] for text, prompt in zip(found, prompts, strict=True)]


def model_folder() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specmesh"
    return ensure_model("smollm2-135m-instruct", cache, dtype="float32")


@pytest.mark.parametrize("ranks", [2, 4])
def test_two_nodes_compute_the_bits_of_one(ranks: int, tmp_path: Path) -> None:
    folder = model_folder()
    sizes = {"executor": "compiled", "ranks": ranks, "kv_cache_mb": 64, "page_tokens": 32}
    with torch.inference_mode():
        with loaded(folder, **sizes) as (model, _):
            expected = bits(model)
        with (
            mesh_at(tmp_path) as mesh,
            other_node(tmp_path / "node.log", **mesh.flags(folder, ranks)),
            loaded(folder, **sizes, nodes=mesh.nodes(ranks)) as (model, _),
        ):
            found = bits(model)
    assert len(found) == len(expected) and all(map(torch.equal, found, expected))


def test_twenty_texts_are_those_of_plain_torch() -> None:
    folder = model_folder()
    encode = Tokenizer.from_file(str(folder / "tokenizer.json")).encode
    asked = [*PROMPTS, *(f"Question: {prompt}" for prompt in PROMPTS)]
    prompts = [encode(f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n").ids for text in asked]
    sizes = {"strict": False, "kv_cache_mb": 600, "page_tokens": 32}
    with loaded(folder, executor="plain", **sizes) as (model, _):
        expected = texts(model, prompts)
    for ranks in (2, 4):
        with loaded(folder, executor="compiled", ranks=ranks, **sizes) as (model, _):
            assert texts(model, prompts) == expected
