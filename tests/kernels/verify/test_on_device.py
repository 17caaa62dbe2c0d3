"""The Triton verifier as a step uses it: arrays of the host in, arrays of the host out."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from kernels.testing import device
from kernels.verify import fused, on_device, reference
from kernels.verify.on_device import OnDevice, needs_of
from kernels.verify.questions import BLOCK, MATCH, NONE, REJECTION, Answers, Asked, Questions, Rule, gather
from tests.kernels.verify.cases import batch

pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")


def test_batch_after_batch_through_the_same_memory_the_answers_are_the_references() -> None:
    """Larger and smaller ones, with and without lists: nothing of the last batch is seen in the next."""
    verifier = OnDevice()
    for seed in range(4):
        case = batch(seed, sequences=(2, 5, 1, 3)[seed], vocabularies=(33, 100, 257), longest=5)
        assert_same(verifier.verify(case.logits.to(device()), case.questions), case.logits, case.questions)


def assert_same(said: Answers, logits: torch.Tensor, questions: Questions) -> None:
    expected = reference.verify(logits, questions)
    assert said.failed.tolist() == expected.failed.tolist() and said.tokens.device.type == "cpu"
    for index, begin in enumerate(questions.begins.tolist()[:-1]):
        if expected.failed[index]:
            continue
        assert said.accepted[index] == expected.accepted[index]
        end = begin + int(expected.accepted[index]) + 1
        assert said.tokens[begin:end].tolist() == expected.tokens[begin:end].tolist()
        assert said.rows[begin:end].tolist() == expected.rows[begin:end].tolist()


def drawn(seed: int, strategy: int, lengths: Sequence[int], size: int = 100) -> tuple[torch.Tensor, Questions]:
    """Chains that a drafter drew from distributions near the target's; every third token is certain."""
    source = torch.Generator().manual_seed(seed)
    logits = torch.randn(sum(lengths) + len(lengths), size, generator=source) * 2.0
    asked, row = [], 0
    for index, length in enumerate(lengths):
        near = logits[row : row + length] + torch.randn(length, size, generator=source)
        probs = torch.softmax(near, -1)
        draft = torch.multinomial(probs, 1, generator=source)[:, 0].tolist() if length else []
        known = [None if place % 3 == 2 else each for place, each in enumerate(probs)]
        rule = Rule(temperature=1.0, seed=seed * 10 + index, strategy=strategy)
        asked.append(Asked(rule, position=row, draft=draft, draft_probs=known))
        row += length + 1
    return logits, gather(asked, size)


@pytest.mark.parametrize("strategy", [REJECTION, BLOCK])
def test_drafts_with_probabilities_get_the_answers_of_the_reference(strategy: int) -> None:
    """And answers that differ from those for the same drafts without probabilities: these are read."""
    verifier, differ, accepted = OnDevice(), 0, []
    for seed in range(4):
        logits, questions = drawn(seed, strategy, (4, 0, 7, 1)[seed % 2 :])
        assert questions.draft_probs is not None
        said = verifier.verify(logits.to(device()), questions)
        assert_same(said, logits, questions)
        certain = reference.verify(logits, dataclasses.replace(questions, draft_probs=None))
        differ += said.accepted.tolist() != certain.accepted.tolist()
        accepted += said.accepted.tolist()
    assert differ and sum(accepted) > 0 and len(set(accepted)) > 2


@pytest.mark.parametrize("strategy", [REJECTION, BLOCK])
def test_probabilities_on_the_device_are_read_in_place(strategy: int, monkeypatch: pytest.MonkeyPatch) -> None:
    logits, questions = drawn(3, strategy, (4, 2))
    assert questions.draft_probs is not None
    there = dataclasses.replace(questions.draft_probs, probs=questions.draft_probs.probs.to(device()))
    # In the interpreter the host's memory is the device's.
    monkeypatch.setattr(on_device, "_on_host", lambda array: array is not there.probs)
    seen = sent_by(monkeypatch)
    said = OnDevice().verify(logits.to(device()), dataclasses.replace(questions, draft_probs=there))
    assert_same(said, logits, questions)
    assert seen[0].draft_probs is not None and seen[0].draft_probs.probs is there.probs


def sent_by(monkeypatch: pytest.MonkeyPatch) -> list[Questions]:
    """The questions that the kernels get from now on."""
    seen: list[Questions] = []
    verify = fused.verify

    def note(logits: torch.Tensor, questions: Questions, *rest: Any) -> Answers:
        seen.append(questions)
        return verify(logits, questions, *rest)

    monkeypatch.setattr(fused, "verify", note)
    return seen


def test_probabilities_that_no_rule_reads_are_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, questions = drawn(1, MATCH, (3,))
    seen = sent_by(monkeypatch)
    assert_same(OnDevice().verify(logits.to(device()), questions), logits, questions)
    assert seen[0].draft_probs is None


def asked_in(logits: torch.Tensor, seed: int, rules: Sequence[Rule], lengths: Sequence[int]) -> Questions:
    """Chains of what is likely, and of what isn't."""
    chance, asked, row = torch.Generator().manual_seed(seed), [], 0
    for place, (rule, length) in enumerate(zip(rules, lengths, strict=True)):
        draft = logits[row : row + length].argmax(-1)
        wrong = torch.randint(0, 4, (length,), generator=chance) == 0
        asked.append(Asked(rule, position=7 * seed + place, draft=torch.where(wrong, draft // 2, draft).tolist()))
        row += length + 1
    return gather(asked, logits.shape[1])


SAMPLED, FILTERED = Rule(temperature=0.9, seed=5), Rule(temperature=0.9, seed=6, top_k=8, top_p=0.9)


@pytest.mark.parametrize(
    ("rules", "lengths"),
    [
        ([Rule()] * 3, (2, 0, 3)),
        ([SAMPLED], (0,)),
        ([Rule(), FILTERED, SAMPLED], (0, 4, 1)),
        ([Rule()] * 8, (0,) * 8),
    ],
)
def test_logits_in_their_place_are_verified_by_graphs(
    rules: Sequence[Rule], lengths: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the references' answers, batch after batch; nothing is launched one by one."""
    verifier, place = OnDevice(), torch.zeros(8, 100, device=device())
    verifier.follow(place, (1, 2, 4, 8))
    monkeypatch.setattr(OnDevice, "_send", lambda *given: pytest.fail("launched one by one"))
    for seed in range(3):
        logits = torch.randn(8, 100, generator=torch.Generator().manual_seed(seed)) * 3
        place.copy_(logits)
        rows = sum(lengths) + len(lengths)
        questions = asked_in(logits, seed, rules, lengths)
        assert_same(verifier.verify(place[:rows], questions), logits[:rows], questions)


@pytest.mark.parametrize(
    ("asked", "rows"),
    [
        # Scores that are edited, masked, judged otherwise; and more rows than a graph has.
        (Asked(Rule(presence_penalty=0.5), seen={3: 1}), 1),
        (Asked(Rule(), allowed=[4, 9]), 1),
        (Asked(Rule(temperature=1.0, strategy=REJECTION), draft=[3]), 2),
        (Asked(Rule(), draft=[3, 4, 5, 6]), 5),
    ],
)
def test_what_no_graph_is_for_is_launched_one_by_one(asked: Asked, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    verifier, seen = OnDevice(), []
    place = torch.randn(8, 100, generator=torch.Generator().manual_seed(1)).to(device())
    verifier.follow(place, (1, 2, 4))
    send = OnDevice._send
    monkeypatch.setattr(OnDevice, "_send", lambda *given: seen.append(given) or send(*given))
    questions = gather([asked], 100)
    assert_same(verifier.verify(place[:rows], questions), place[:rows].cpu().clone(), questions)
    assert len(seen) == 1


def test_other_logits_are_not_taken_for_those_of_the_graphs() -> None:
    verifier = OnDevice()
    verifier.follow(torch.zeros(2, 100, device=device()), (1, 2))
    logits = torch.randn(2, 100, generator=torch.Generator().manual_seed(4))
    questions = gather([Asked(Rule()), Asked(Rule())], 100)
    assert_same(verifier.verify(logits.to(device()), questions), logits, questions)


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
        ([Rule(temperature=1.0, top_p=0.9)], {"sampled", "filters", "long"}),
        ([Rule(temperature=1.0, top_p=0.9, top_k=50), Rule(top_p=0.9)], {"sampled", "filters"}),
        ([Rule(temperature=1.0, top_k=600)], {"sampled", "filters", "long"}),
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
