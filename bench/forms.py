"""The forms of the suite: which benchmarks each runs, with what flags, and how long each may take."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import NamedTuple

SHORT, FULL, ON_GPU = "short", "full", "on_gpu"


class Part(NamedTuple):
    name: str
    flags: str
    seconds: int  # allowance

    @property
    def command(self) -> list[str]:
        return [self.name, *shlex.split(self.flags)]


FORMS: dict[str, tuple[Part, ...]] = {
    # All that a change may make worse, in a quarter of an hour on two cores.
    SHORT: (
        Part("engine", "--turns 20", 50),
        Part("engine", "--turns 20 --dtype int8", 50),
        Part("verify", "--turns 5", 80),
        Part("proposer", "--tokens 300000 --replayed 8 --kind-tokens 40000 --kind-replayed 6", 95),
        Part("bus", "", 20),
        Part("step_overhead", "--steps 150 --rounds 4", 65),
        Part("mesh", "--seconds 8", 65),
        Part("harness", "--seconds 5 --rounds 2", 65),
        Part("speculation", "--methods naive,ngram:5,auto --concurrency 1,4,16 --requests 4 --waves 1 --rounds 1", 305),
        Part("serving", "--only speed --rounds 1 --tokens 64", 45),
        Part("peers", "--rounds 1 --tokens 64", 60),
    ),
    # What docs/results.md is best made of.
    FULL: (
        Part("engine", "", 60),
        Part("engine", "--dtype int8", 60),
        Part("verify", "", 150),
        Part("proposer", "", 900),
        Part("segments", "", 600),
        Part("bus", "", 20),
        Part("step_overhead", "", 180),
        Part("mesh", "", 120),
        Part("harness", "", 90),
        Part("serving", "", 180),
        Part("speculation", "--concurrency 1,2,4,8,16,32 --rounds 1", 2400),
        Part("restart", "", 300),
        Part("faults", "--workloads chat --seconds 25", 700),
        Part("peers", "", 240),
        Part("peers", "--dtype int8 --without 'transformers, prompt lookup'", 180),
    ),
    # One call on a machine that has a GPU, torch and triton, and little else (bench/on_gpu.py), in order of worth. What
    # is wrong isn't worth timing: first the kernels are held to their references there, and the texts to each other.
    ON_GPU: (
        Part("gpu_environment", "", 45),
        Part("parity", "--seconds 125", 130),
        Part("gpu_law3", "", 80),
        Part("gpu_steps", "", 35),
        Part("gpu_verify", "", 40),
        Part("gpu_decode", "", 30),
        Part("gpu_attention", "", 25),
        Part("gpu_runner", "", 35),
        Part("gpu_prefill", "", 25),
        Part("gpu_http", "", 90),
    ),
}


def minutes(parts: Sequence[Part]) -> int:
    return -(-sum(part.seconds for part in parts) // 60)
