"""The Triton verifier as a step uses it: arrays of the host in, arrays of the host out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

from kernels.testing import device
from kernels.verify import fused, on_device, reference
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


class Noted:
    """What happened, in order: launches, an event behind them, the wait, and the copy to the host."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.notes: list[str] = []
        self.over = False
        launch, cat = fused._start, torch.cat

        def start(*args: Any, **kwargs: Any) -> None:
            self.notes.append("kernel")
            launch(*args, **kwargs)

        def together(tensors: list[torch.Tensor]) -> Any:
            self.notes.append("together")
            told = cat(tensors)
            return Told(self, told)

        def end_of_all(there: torch.device) -> Callable[[], bool]:
            assert there == device()
            self.notes.append("event")
            return lambda: self.over

        monkeypatch.setattr(fused, "_start", start)
        monkeypatch.setattr(torch, "cat", together)
        monkeypatch.setattr(on_device, "_end_of_all", end_of_all)

    def waiting(self, done: Callable[[], bool]) -> None:
        assert not done()
        self.over = True
        assert done()
        self.notes.append("waiting")


class Told:
    """Answers on a device."""

    def __init__(self, noted: Noted, told: torch.Tensor) -> None:
        self.noted, self.told = noted, told

    def cpu(self) -> torch.Tensor:
        self.noted.notes.append("copy")
        return self.told.cpu()


def test_who_waits_is_told_when_all_is_launched_and_before_the_answers_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logits = torch.randn(3, 100, generator=torch.Generator().manual_seed(2)).to(device())
    questions = gather([Asked(Rule(), 2, [5, 6])], 100)
    expected = reference.verify(logits.cpu(), questions)
    noted = Noted(monkeypatch)
    said = OnDevice().verify(logits, questions, noted.waiting)
    kernels = noted.notes.count("kernel")
    assert kernels and noted.notes == ["kernel"] * kernels + ["together", "event", "waiting", "copy"]
    assert (said.accepted.tolist(), said.tokens[0]) == (expected.accepted.tolist(), expected.tokens[0])
    noted.notes.clear()
    OnDevice().verify(logits, questions)
    assert noted.notes == ["kernel"] * kernels + ["together", "copy"]


def test_the_end_is_that_of_all_on_the_stream_of_the_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    class Event:
        behind: object = None

        def record(self, stream: object) -> None:
            assert self.behind is None
            self.behind = stream

        def query(self) -> bool:
            return self.behind == "the stream of cuda:1"

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda where: f"the stream of {where}")
    assert on_device._end_of_all(torch.device("cuda", 1))()
    # Where kernels are interpreted, nothing is left to be waited for.
    assert on_device._end_of_all(torch.device("cpu"))()


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
