"""The acceptance of a head on prompts that it wasn't trained on, through the worker's own engine: greedy answers, every
draft verified."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from services.api.messages import Finished
from services.api.sampling import Sampling
from services.worker.in_process import InProcessEngine, runner_with_head
from services.worker.running.load_torch_model import Wanted


@dataclass(frozen=True, slots=True)
class Measured:
    """`tokens_per_step` with drafts of this head alone, and the share of drafted tokens accepted by position."""

    prompts: int
    tokens: int
    tokens_per_step: float
    accepted: list[float]


def measure(
    folder: Path, method: str, head: Path, prompts: Sequence[Sequence[int]], wanted: Wanted, max_tokens: int
) -> Measured:
    runner, _ = runner_with_head(folder, method, head, wanted)
    sampling = Sampling(max_tokens=max_tokens)
    ended = InProcessEngine(runner, method).run(dict(enumerate(prompts)), sampling)
    return _counted([each.finished for each in ended])


def _counted(ends: list[Finished]) -> Measured:
    stats = [end.speculation for end in ends]
    steps = sum(each.steps for each in stats)
    drafted, accepted = (
        [sum(column) for column in zip_longest(*rows, fillvalue=0)]
        for rows in ([each.drafted_per_position for each in stats], [each.accepted_per_position for each in stats])
    )
    shares = [kept / max(1, count) for kept, count in zip_longest(accepted, drafted, fillvalue=0)]
    tokens = sum(end.completion_tokens for end in ends)
    return Measured(len(ends), tokens, (steps + sum(each.accepted for each in stats)) / max(1, steps), shares)
