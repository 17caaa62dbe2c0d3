"""Forward passes over any number of rows: as many calls of the executor as they need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from models.batch import Bounds, Stretch, make_batch
from models.executor import Contexts, Executor, Output


def forward(
    executor: Executor, stretches: Sequence[Stretch], page_tokens: int, hidden: torch.Tensor | None = None,
    bounds: Bounds | None = None,
) -> Output:  # fmt: skip
    """The output of all rows, in the order of the stretches. With one call it is the executor's own: the next call may
    write over it."""

    def run(part: Sequence[Stretch], given: torch.Tensor | None) -> Output:
        batch = make_batch(part, page_tokens)
        if bounds is not None:
            bounds.check(batch)
        return executor.forward(batch, given)

    if sum([len(each.tokens) for each in stretches]) <= executor.max_rows:
        return run(stretches, hidden)
    made: list[Output] = []
    row = 0
    for part in split(stretches, executor.max_rows):
        begin, row = row, row + sum(len(each.tokens) for each in part)
        given = None if hidden is None else hidden[begin:row]
        output = run(part, given)
        made.append(Output(output.logits.clone(), _copied(output.features), _copied(output.final)))
    finals = [(each.final, len(each.logits)) for each in made if each.final is not None]
    return Output(
        torch.cat([each.logits for each in made]),
        _joined([each.features for each in made]),
        # First of all rows with logits, then of those without.
        _joined([final[:count] for final, count in finals] + [final[count:] for final, count in finals]),
    )


def store(executor: Contexts, stretches: Sequence[Stretch], page_tokens: int, hidden: torch.Tensor) -> None:
    """Of all rows."""
    row = 0
    for part in split(stretches, executor.max_rows):
        begin, row = row, row + sum(len(each.tokens) for each in part)
        executor.store(make_batch(part, page_tokens), hidden[begin:row])


def _copied(rows: torch.Tensor | None) -> torch.Tensor | None:
    return None if rows is None else rows.clone()


def _joined(parts: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    made = [each for each in parts if each is not None]
    return torch.cat(made) if made else None


def split(stretches: Sequence[Stretch], limit: int) -> list[list[Stretch]]:
    """Calls of at most `limit` rows. A sequence may go on in the next call, a tree or a block may not."""
    parts: list[list[Stretch]] = []
    room = 0
    for each in stretches:
        if each.parents or each.block:
            assert len(each.tokens) <= limit
            if room < len(each.tokens):
                parts.append([])
                room = limit
            parts[-1].append(each)
            room -= len(each.tokens)
            continue
        first = 0
        while first < len(each.tokens):
            if room == 0:
                parts.append([])
                room = limit
            tokens = each.tokens[first : first + room]
            wanted_from = min(max(each.logits_from - first, 0), len(tokens))
            parts[-1].append(replace(each, tokens=tokens, start=each.start + first, logits_from=wanted_from))
            first += len(tokens)
            room -= len(tokens)
    return parts
