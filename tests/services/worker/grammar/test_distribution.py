"""Verified by rejection, a draft leaves the distribution what it is within the grammar: the model's, with what is
forbidden left out. Also for drafts that the grammar forbids, and for those drawn from probabilities."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from driving import new_sequence, request
from tokenizers import Tokenizer

from services.api.drafter import NO_DRAFT, Draft
from services.api.strategies import Verification
from services.streamer.agents.grammars import regex
from services.worker.grammar.compiled import Grammars
from services.worker.grammar.drafting import drafts_within
from services.worker.running.runner import Facts
from services.worker.running.sampler import Sampler, questions_of
from services.worker.running.verifier import verifier
from services.worker.running.work import SequenceWork
from tests.services.tokenizer.conftest import make_tokenizer

LETTERS = "abcde"
DRAWS = 6000
# Chi-square with four degrees of freedom: exceeded once in 10 000 times.
CRITICAL = 23.51


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return make_tokenizer()


@pytest.fixture(scope="module")
def small(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Grammars:
    file: Path = tmp_path_factory.mktemp("small") / "tokenizer.json"
    tokenizer.save(str(file))
    return Grammars(file, tokenizer.get_vocab_size(), (1,))


def firsts(
    grammars: Grammars, strategy: str, draft_of: Callable[[int], Draft], logits: np.ndarray, cut: bool = True
) -> np.ndarray:
    """How often each id came first, over seeds; all as the worker does it."""
    size = grammars.vocab_size
    facts = Facts(size, 64, (1,), 4, 32)
    items, samplers, masked = [], [], {}
    for seed in range(DRAWS):
        wanted = request([5], temperature=1.0, seed=seed, grammar=regex(f"[{LETTERS}]{{2}}"))
        sampler = Sampler(new_sequence(wanted, Verification(strategy=strategy), seed), facts, grammars)
        assert sampler.grammar is not None and sampler.rows is not None
        draft = draft_of(seed)
        if cut:
            draft = drafts_within({0: sampler.grammar}, {0: draft}, {0: 4})[0]
        items.append(SequenceWork(seed, [5], 0, [0], True, draft))
        samplers.append(sampler)
        masked[seed] = sampler.rows.masks(1, draft.tokens, draft.parents, [[]] * (len(draft.tokens) + 1))
    questions = questions_of(items, samplers, size, masked)
    rows = torch.from_numpy(logits).float().repeat(len(questions.drafted), 1)
    answers = verifier("compiled").verify(rows, questions)
    assert not answers.failed.any()
    return np.bincount(answers.tokens[questions.begins[:-1].long()].numpy(), minlength=size)


@pytest.mark.parametrize("strategy", ["rejection", "block"])
@pytest.mark.parametrize("drafts", ["none", "allowed", "forbidden", "forbidden uncut", "drawn"])
def test_the_distribution_is_the_models_within_the_grammar(
    small: Grammars, tokenizer: Tokenizer, strategy: str, drafts: str
) -> None:
    ids = [tokenizer.token_to_id(letter) for letter in LETTERS]
    chance = np.random.default_rng(11)
    logits = chance.normal(0, 1, small.vocab_size)
    logits[ids] += 2
    # What drafts are drawn from: half of it is outside the grammar.
    drawn_from = np.full(small.vocab_size, 0.5 / (small.vocab_size - 5))
    drawn_from[ids] = [0.2, 0.05, 0.05, 0.1, 0.1]
    drawn_from = (drawn_from / drawn_from.sum()).astype(np.float32)

    def draft(seed: int) -> Draft:
        if drafts == "none":
            return NO_DRAFT
        if drafts == "drawn":
            token = int(chance.choice(small.vocab_size, p=drawn_from / drawn_from.sum()))
            return Draft([token], probs=drawn_from[None])
        return Draft([ids[1] if drafts == "allowed" else tokenizer.token_to_id("z")])

    seen = firsts(small, strategy, draft, logits, cut=drafts != "forbidden uncut")
    assert seen.sum() == seen[ids].sum() == DRAWS
    expected = np.exp(logits[ids]) / np.exp(logits[ids]).sum() * DRAWS
    assert float(((seen[ids] - expected) ** 2 / expected).sum()) < CRITICAL
