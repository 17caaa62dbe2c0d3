"""A drafter that reads what the model computed and gives probabilities, through the whole mesh: it is one file and one
row, the text of greedy requests doesn't change, and rejection sampling verifies its drafts."""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from running_mesh import RunningMesh

sys.path.insert(0, str(Path(__file__).parents[1]))

from copied_sources import copy_sources
from tiny_folder import write_tiny_model

DRAFTER = '''"""A drafter for a test: it reads features and draws from a distribution of its own."""

from __future__ import annotations

import torch

from services.api.drafter import NO_DRAFT, Draft, Needs


class ToyHead:
    needs = Needs.FEATURES
    gives_probs = True
    taps = (0, "final")

    def __init__(self, name, settings, model):
        self.name = name
        self.vocabulary = model.facts.vocab_size
        self.seen = {}
        self.last = {}

    def commit(self, results):
        for each in results:
            assert each.features.shape[0] == len(each.tokens) and torch.isfinite(each.features).all()
            assert each.start == self.seen.get(each.text_id, each.start), "every computed token, once"
            self.seen[each.text_id] = each.start + len(each.tokens)
            self.last[each.text_id] = each.features[-1]

    def draft(self, requests):
        return [self._draft(each) for each in requests]

    def _draft(self, request):
        feature = self.last.get(request.text.text_id)
        if feature is None:
            return NO_DRAFT
        # Nonsense, but a function of the features: half of the mass on a few ids, the rest on all.
        ids = feature.float().abs().topk(4).indices % self.vocabulary
        probs = torch.full((self.vocabulary,), 0.5 / self.vocabulary)
        probs.index_add_(0, ids, torch.full((4,), 0.125))
        source = torch.Generator().manual_seed(request.seed + len(request.text.tokens))
        tokens = torch.multinomial(probs, request.budget, replacement=True, generator=source).tolist()
        return Draft(tokens, "toy", probs=probs.repeat(len(tokens), 1))

    def forget(self, text_ids):
        for text_id in text_ids:
            self.last.pop(text_id, None)
            self.seen.pop(text_id, None)
'''

ROW = '''        Method(
            "toy", "services.worker.speculation.heads.toy:ToyHead", "A test's", runs="worker",
        ),
'''


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMesh]:
    root = copy_sources(tmp_path_factory.mktemp("sources"))
    (root / "services/worker/speculation/heads/toy.py").write_text(DRAFTER)
    path = root / "services/api/methods.py"
    table = path.read_text()
    place = table.index("        Method(\n", table.index("METHODS"))
    path.write_text(table[:place] + ROW + table[place:])
    settings = {
        "model": write_tiny_model(root / "tiny"), "executor": "plain", "dtype": "float32", "method": "toy",
        "max_step_tokens": 16, "num_speculative_tokens": 4,
    }  # fmt: skip
    running = RunningMesh(tmp_path_factory.mktemp("mesh"), settings, root=root)
    try:
        running.wait_until_ready()
        yield running
    finally:
        running.stop()


def complete(mesh: RunningMesh, **more: Any) -> dict[str, Any]:
    body = {"model": "tiny", "prompt": " ".join(f"w{k}" for k in range(5, 45)), "max_tokens": 60, **more}
    head = {"content-type": "application/json"}
    request = urllib.request.Request(f"{mesh.url}/v1/completions", json.dumps(body).encode(), head)
    with urllib.request.urlopen(request, timeout=60) as answer:
        found: dict[str, Any] = json.load(answer)["choices"][0]
    return found


def drafted(mesh: RunningMesh) -> float:
    return mesh.by_label("worker", "specmesh:draft_source_tokens_total", "source").get("toy", 0.0)


def test_its_drafts_are_verified_and_change_no_greedy_text(mesh: RunningMesh) -> None:
    plain = complete(mesh, temperature=0, speculation={"method": "naive"})
    before = drafted(mesh)
    said = complete(mesh, temperature=0)
    assert said["text"] == plain["text"] and drafted(mesh) > before + 50


def test_its_probabilities_reach_rejection_sampling(mesh: RunningMesh) -> None:
    before = mesh.metrics("worker").get("specmesh:draft_source_accepted_tokens_total", 0.0)
    for seed in range(4):
        complete(mesh, temperature=1.0, seed=seed, ignore_eos=True, speculation={"verify_strategy": "rejection"})
    after = mesh.metrics("worker")
    # A random model over 304 words: drafts spread over all of them are accepted now and then, sampled as they are.
    assert after["specmesh:draft_source_accepted_tokens_total"] > before + 5
    assert after.get("specmesh:drafting_failed", 0.0) == 0.0


def test_nothing_of_the_proposer_was_asked(mesh: RunningMesh) -> None:
    complete(mesh, temperature=0)
    assert mesh.metrics("worker")["specmesh:draft_requests_total"] == 0.0
