"""`block` on cases that its likely faults decide: reference, compiled loops and Triton give the right answers.

Batches drawn at random hardly ever hold such a case."""

from __future__ import annotations

import functools

import pytest
import torch

from kernels.verify import cpu, reference
from kernels.verify.on_device import needs_of
from kernels.verify.questions import Questions, gather
from tests.kernels.verify.block_faults import ENOUGH, FAULTS, BlockCase, Spoken, by_vocabulary, cases
from tests.kernels.verify.plainly import spoken
from tests.kernels.verify.test_fused import ask

# The interpreter tells of infinities and of products that wrap.
pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")


def _triton(logits: torch.Tensor, questions: Questions) -> list[Spoken]:
    told = ask(logits, questions, needs=needs_of(questions))
    assert not any(failed for failed, *_ in told)
    assert [accepted for _, accepted, *_ in told] == [len(tokens) - 1 for _, _, tokens, _ in told]
    return [(tokens, rows) for _, _, tokens, rows in told]


IMPLEMENTATIONS = {"reference": reference.verify, "compiled": cpu.verify, "triton": _triton}


@functools.cache
def answers(implementation: str) -> dict[int, Spoken]:
    """By the case's seed: accepted draft tokens and the next one, and their rows. One call for each vocabulary."""
    found: dict[int, Spoken] = {}
    for size, these in by_vocabulary():
        asked = [case.asked for case in these]
        logits, questions = torch.cat([case.logits for case in these]), gather(asked, size)
        said = IMPLEMENTATIONS[implementation](logits, questions)
        told = said if isinstance(said, list) else spoken(said, asked)
        found |= {case.seed: each for case, each in zip(these, told, strict=True)}
    return found


def decided_by(fault: str) -> list[BlockCase]:
    return [case for case in cases() if fault in case.faults]


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_has_cases_whose_answer_it_changes(fault: str) -> None:
    found = decided_by(fault)
    assert len(found) >= ENOUGH
    assert all(case.faults[fault] != case.right for case in found)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_the_answers_that_a_fault_would_change_are_right(implementation: str, fault: str) -> None:
    """The reference's answers are those of the rule in plain floats; all others give the reference's."""
    told, truth = answers(implementation), answers("reference")
    for case in decided_by(fault):
        expected = case.right if implementation == "reference" else truth[case.seed]
        assert told[case.seed] == expected, (case.seed, case.asked)
