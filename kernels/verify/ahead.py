"""Compiles kernels/verify/cpu.py. The worker runs this in a process of its own while it loads a model: the model's
loops take about as long to compile, on another core. What is on disk isn't compiled again.

    python -m kernels.verify.ahead
"""

from __future__ import annotations

import torch

from kernels.cpu_cache import on_disk
from kernels.verify.cpu import logprobs, verify
from kernels.verify.cpu_rows import judge_all
from kernels.verify.questions import Asked, Rule, gather

# Nothing that is compiled depends on it.
_VOCABULARY = 64


def is_compiled() -> bool:
    return on_disk(judge_all)


def compile_all() -> None:
    logits, first = torch.zeros(1, _VOCABULARY), torch.zeros(1, dtype=torch.int32)
    verify(logits, gather([Asked(Rule())], _VOCABULARY))
    logprobs(logits, first, first, 1)


if __name__ == "__main__":
    compile_all()
