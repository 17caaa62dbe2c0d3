"""What a GPU's benchmarks time is what they say, and their figures add up; in the interpreter, on toys."""

from __future__ import annotations

import pytest
import torch

from bench.gpu import verify
from kernels import interpreter
from kernels.verify import fused, reference
from tests.kernels.verify.test_fused import told


@pytest.mark.skipif(not interpreter.in_use(), reason="compares in the interpreter")
@pytest.mark.parametrize("kind", verify.RULES)
def test_verification_that_is_timed_answers_as_the_reference_does(kind: str) -> None:
    copies = verify.made(torch.float32, 96, 6, torch.device("cpu"))
    [(logits, questions, work, needs)] = verify.prepared(copies, verify.RULES[kind], 2, 2)
    expected = told(reference.verify(logits, questions), questions)
    assert told(fused.verify(logits.clone(), questions, work, needs), questions) == expected
    assert kind != "greedy" or [accepted for _, accepted, *_ in expected] == [2, 2]
