"""The Triton verifier as a step uses it: arrays of the host in, arrays of the host out."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from kernels.testing import device
from kernels.verify import reference
from kernels.verify.on_device import OnDevice, needs_of
from kernels.verify.questions import NONE, REJECTION, Asked, Rule, gather
from tests.kernels.verify.cases import batch

pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")


def test_batch_after_batch_through_the_same_memory_the_answers_are_the_references() -> None:
    """Larger and smaller ones, with and without lists: nothing of the last batch is seen in the next."""
    verifier = OnDevice()
    for seed in range(8):
        case = batch(seed, sequences=(2, 5, 1, 3)[seed % 4], vocabularies=(33, 100, 257), longest=5)
        if case.questions.draft_probs is not None:
            questions = dataclasses.replace(case.questions, draft_probs=None)
        else:
            questions = case.questions
        expected = reference.verify(case.logits, questions)
        said = verifier.verify(case.logits.to(device()), questions)
        assert said.failed.tolist() == expected.failed.tolist() and said.tokens.device.type == "cpu"
        for index, begin in enumerate(questions.begins.tolist()[:-1]):
            if expected.failed[index]:
                continue
            assert said.accepted[index] == expected.accepted[index]
            end = begin + int(expected.accepted[index]) + 1
            assert said.tokens[begin:end].tolist() == expected.tokens[begin:end].tolist()
            assert said.rows[begin:end].tolist() == expected.rows[begin:end].tolist()


def test_log_probabilities_are_the_references() -> None:
    logits = torch.randn(4, 100, generator=torch.Generator().manual_seed(2))
    rows, tokens = torch.tensor([0, 2, 3], dtype=torch.int32), torch.tensor([5, 99, 0], dtype=torch.int32)
    expected = reference.logprobs(logits, rows, tokens, 3)
    said = OnDevice().logprobs(logits.to(device()), rows, tokens, 3)
    assert said[1].tolist() == expected[1].tolist()
    torch.testing.assert_close(said[0], expected[0])
    torch.testing.assert_close(said[2], expected[2])


@pytest.mark.parametrize(
    ("rules", "needed"),
    [
        ([Rule()], set()),
        # Filters of a greedy sequence say nothing.
        ([Rule(top_k=5, strategy=REJECTION)], set()),
        ([Rule(temperature=1.0), Rule()], {"sampled"}),
        ([Rule(temperature=1.0, top_p=0.9)], {"sampled", "filters"}),
        ([Rule(temperature=1.0, min_p=0.1)], {"sampled", "filters"}),
        ([Rule(temperature=1.0), Rule(top_k=3)], {"sampled"}),
        ([Rule(temperature=0.5, strategy=REJECTION)], {"sampled", "judged"}),
        ([Rule(accept=NONE)], {"judged"}),
        ([Rule(), Rule(presence_penalty=0.5)], {"penalties"}),
    ],
)
def test_launches_are_left_out_that_no_rule_needs(rules: list[Rule], needed: set[str]) -> None:
    needs = needs_of(gather([Asked(rule) for rule in rules], 100))
    assert {each.name for each in dataclasses.fields(needs) if getattr(needs, each.name)} == needed
