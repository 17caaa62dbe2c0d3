"""The heads that come with specmesh: whole, small, made for their model, and trained on nothing that is held out."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path

import pytest

from bench.held_out import WINDOW, normalised, overlapping
from bench.workloads import WORKLOADS
from models.config import read_network
from models.heads.folder import read_head
from models.heads.head import Head
from models.heads.shipped import shipped_heads
from models.heads.sources import method_of
from models.heads.weights import target_ids
from models.sources import MODEL_NAMES, ensure_model
from models.weights import Weights
from services.api.settings import Settings, cache_dir

TRAINED = Path(__file__).parents[3] / "models" / "heads" / "trained"
MOST_BYTES = 25 << 20
# sha256 (16 digits) of Spec-Bench's turns, normalised; of longer ones also of the first twelve words.
HELD_OUT = frozenset((Path(__file__).parent / "held_out_hashes.txt").read_text().split())


def heads() -> list[tuple[str, Path]]:
    """Of each the model, and its folder, which is called like its method."""
    return [(folder.parent.name, folder) for folder in sorted(TRAINED.glob("*/*"))]


def prompts(folder: Path) -> list[str]:
    return gzip.decompress((folder / "prompts.txt.gz").read_bytes()).decode().splitlines()


def digest(words: list[str]) -> str:
    return hashlib.sha256(" ".join(words).encode()).hexdigest()[:16]


def is_held_out(prompt: str, hashes: frozenset[str] = HELD_OUT) -> bool:
    words = normalised(prompt)
    windows = [words[at : at + WINDOW] for at in range(len(words) - WINDOW + 1)]
    return any(digest(each) in hashes for each in (words, *windows))


def test_there_is_one_for_the_embedded_model_and_none_for_others() -> None:
    found = shipped_heads("SmolLM2-135M-Instruct")
    assert list(found) == ["eagle3", "mtp", "medusa"], "the best one first"
    assert all(folder == TRAINED / "smollm2-135m-instruct" / method for method, folder in found.items())
    assert shipped_heads("no-such-model") == shipped_heads("") == {}
    assert {name for name, _ in heads()} <= {*MODEL_NAMES}


def test_together_they_are_small() -> None:
    assert 0 < sum(file.stat().st_size for file in TRAINED.rglob("*") if file.is_file()) <= MOST_BYTES


@pytest.mark.parametrize(("model", "folder"), heads(), ids=lambda value: getattr(value, "name", value))
def test_each_fits_its_model_and_says_what_it_was_trained_on(model: str, folder: Path) -> None:
    cache = cache_dir(Settings.for_tests())
    said = json.loads((folder / "training.json").read_text())
    assert method_of(str(folder), cache) == said["method"] == folder.name and said["model"] == model
    network = read_network(ensure_model(model, cache))
    head = read_head(said["method"], folder, network)
    output = head.network.head if isinstance(head, Head) else head.heads[0].head
    assert output.outputs == said["vocabulary"]
    ids = target_ids(head, Weights(folder), network.vocab_size)
    assert (ids is None) == (output.outputs == network.vocab_size)
    assert said["answers"] == len(prompts(folder)) and said["tokens"] > 100 * said["answers"]
    card = (folder / "README.md").read_text()
    assert f"{said['tokens']} tokens" in card and f"{said['tokens_per_step']:.2f} tokens per step" in card
    curve = [right for _, right in said["curve"]]
    assert curve[-1] > curve[0] > 0


@pytest.mark.parametrize(("model", "folder"), heads(), ids=lambda value: getattr(value, "name", value))
def test_no_prompt_that_is_measured_was_trained_on(model: str, folder: Path) -> None:
    trained = prompts(folder)
    assert not [prompt for prompt in trained if is_held_out(prompt)]
    ours = [
        body["messages"][-1]["content"] if "messages" in body else body["prompt"]
        for workload in WORKLOADS.values()
        for body in workload.requests(40, 5)
    ]
    assert overlapping(trained, ours) == 0


def test_a_prompt_that_is_held_out_is_found() -> None:
    words = [f"w{place}" for place in range(WINDOW)]
    hashes = frozenset({digest(["why", "not?"]), digest(words)})
    assert is_held_out("Why  not?", hashes) and not is_held_out("Why not that?", hashes)
    assert is_held_out(" ".join(["Then", *words, "and", "more"]), hashes)
    assert len(HELD_OUT) > 900
