"""Compiles kernels/verify/cpu.py in a process of its own, for whoever loads a model meanwhile: a model's loops and
these take about as long to compile, each on one core. Once: what is on disk isn't compiled again.

    python -m kernels.verify.ahead
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch

from kernels.cpu_cache import on_disk
from kernels.verify.cpu import logprobs, verify
from kernels.verify.cpu_judges import judge_all
from kernels.verify.questions import Asked, Rule, gather

# Nothing that is compiled depends on it.
_VOCABULARY = 64


def start() -> subprocess.Popen[bytes] | None:
    """None: it is on disk already. Who waits for it compiles nothing afterwards; who doesn't, or finds that it failed,
    compiles itself."""
    if on_disk(judge_all):
        return None
    root = Path(__file__).parents[2]
    return subprocess.Popen([sys.executable, "-m", __name__], cwd=root, stdin=subprocess.DEVNULL)


def compile_all() -> None:
    logits, first = torch.zeros(1, _VOCABULARY), torch.zeros(1, dtype=torch.int32)
    verify(logits, gather([Asked(Rule())], _VOCABULARY))
    logprobs(logits, first, first, 1)


if __name__ == "__main__":
    compile_all()
