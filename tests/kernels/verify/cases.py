"""Batches of questions for comparing implementations: drawn from a seed, small, and full of what goes wrong.

A batch mixes strategies, parameters, chains, trees, lengths and kinds of logits, as a server's does. Drafted tokens
are mostly made likely, so that walks go deep. Nothing here computes a verdict.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch

from kernels.verify.questions import (
    ALL,
    BLOCK,
    MATCH,
    NONE,
    NORMAL,
    REJECTION,
    TOPP,
    TYPICAL,
    Asked,
    Questions,
    Rule,
    gather,
)

VOCABULARIES = (10, 11, 33, 64, 100, 127, 257, 1000, 1024, 2049, 4095, 4096)
TEMPERATURES = (0.0, 1e-6, 2e-5, 0.05, 0.3, 0.7, 1.0, 1.0, 1.0, 1.5, 10.0, 1e4, 1e30, 1e39)
KINDS = ("normal", "normal", "normal", "peaked", "peaked", "steps", "halves", "flat", "one-hot", "few", "zeros", "huge")


@dataclass(frozen=True, slots=True)
class Case:
    seed: int
    logits: torch.Tensor  # [R, V]
    questions: Questions
    asked: list[Asked]

    def __repr__(self) -> str:
        return f"batch({self.seed})"


def batch(
    seed: int,
    sequences: int = 5,
    vocabularies: tuple[int, ...] = VOCABULARIES,
    longest: int = 16,
    broken: float = 0.02,
    dtype: torch.dtype | None = None,
    **fixed: object,
) -> Case:
    """`broken`: share of rows that hold NaN or infinity. `fixed`: fields that every Rule shall have."""
    draw = random.Random(seed)
    size = draw.choice(vocabularies)
    dtype = dtype or draw.choice((torch.float32, torch.bfloat16))
    asked, logits = [], []
    for _ in range(sequences):
        one, rows = _sequence(draw, size, longest, broken, dtype, fixed)
        asked.append(one)
        logits.append(rows)
    return Case(seed, torch.cat(logits), gather(asked, size), asked)


def _sequence(
    draw: random.Random, size: int, longest: int, broken: float, dtype: torch.dtype, fixed: dict[str, object]
) -> tuple[Asked, torch.Tensor]:
    length = min(draw.choice((0, 1, 1, 2, 3, 3, 4, 5, 7, 16)), longest)
    branches = length > 1 and draw.random() < 0.35
    parents = [draw.randint(max(0, i - 3), i) for i in range(length)] if branches else list(range(length))
    kind = draw.choice(KINDS)
    rows = torch.stack(
        [_row(draw, size, kind if draw.random() < 0.8 else draw.choice(KINDS)) for _ in range(length + 1)]
    )
    rows = rows.to(dtype)
    rule = _rule(draw, fixed)
    chain = parents == list(range(length))
    # As sampled by a drafter: the distribution and a token of it; certain where there is none.
    dense = chain and draw.random() < 0.4
    draft, probs = [], []
    for parent in parents:
        distribution = _draft_probs(draw, rows[parent], rule.temperature) if dense and draw.random() < 0.8 else None
        probs.append(distribution)
        draft.append(_drafted(draw, rows, parent, distribution, size))
    for row in range(length + 1):
        if draw.random() < broken:
            rows[row, draw.randrange(size)] = draw.choice((float("nan"), float("inf")))
            if draw.random() < 0.3:
                rows[row] = float("-inf")
    return (
        Asked(
            rule=rule,
            position=draw.choice((0, 1, draw.randrange(100_000), 2**32 - 2, 2**40)),
            draft=draft,
            parents=() if chain else parents,
            seen=_seen(draw, size, draft) if rule.penalised and draw.random() < 0.8 else None,
            bias=_bias(draw, size, draft) if draw.random() < 0.25 else None,
            forbidden=_forbidden(draw, size, length, draft) if draw.random() < 0.25 else (),
            allowed=_allowed(draw, size, draft) if draw.random() < 0.25 else None,
            draft_probs=probs if any(p is not None for p in probs) else (),
        ),
        rows,
    )


def _rule(draw: random.Random, fixed: dict[str, object]) -> Rule:
    penalised = draw.random() < 0.3
    fields: dict[str, object] = {
        "temperature": draw.choice(TEMPERATURES),
        "top_k": draw.choice((0, 0, 0, 1, 2, 5, 20, 50, 100_000)),
        "top_p": draw.choice((1.0, 1.0, 1.0, 0.0, 1e-6, 0.3, 0.5, 0.9, 0.95, 0.9999)),
        "min_p": draw.choice((0.0, 0.0, 0.0, 1e-6, 0.05, 0.5, 1.0)),
        "seed": draw.choice((0, draw.getrandbits(16), draw.getrandbits(64))),
        "repetition_penalty": draw.choice((1.0, 1.1, 0.7, 2.0)) if penalised else 1.0,
        "presence_penalty": draw.choice((0.0, 0.5, -1.3)) if penalised else 0.0,
        "frequency_penalty": draw.choice((0.0, 0.3, -0.2)) if penalised else 0.0,
        "strategy": draw.choice((MATCH, MATCH, REJECTION, REJECTION, BLOCK, BLOCK, TYPICAL, TOPP)),
        "accept": draw.choice((NORMAL,) * 8 + (ALL, NONE)),
        "max_candidate_len": draw.choice((1, 2, 5, 5, 1000)),
        "verify_window": draw.choice((0, 1, 2, 2, 3)),
        "typical_epsilon": draw.choice((0.09, 0.0, 0.5, 1e-4)),
        "typical_delta": draw.choice((0.3, 0.0, 1.0)),
    }
    return Rule(**(fields | fixed))  # type: ignore[arg-type]


def _generator(draw: random.Random) -> torch.Generator:
    return torch.Generator().manual_seed(draw.getrandbits(40))


def _row(draw: random.Random, size: int, kind: str) -> torch.Tensor:
    """float32 [V]"""
    normal = torch.randn(size, generator=_generator(draw))
    match kind:
        case "normal":
            return normal * draw.choice((0.1, 1.0, 3.0, 8.0))
        case "peaked":
            normal[draw.randrange(size)] += draw.choice((4.0, 8.0, 20.0, 40.0))
            return normal * 2.0
        case "steps":  # many equal ones
            return (normal * 2.0).round()
        case "halves":  # the likeliest are equal
            return normal.clamp(max=draw.choice((0.5, 1.5)))
        case "flat":
            return torch.full((size,), draw.choice((0.0, -3.0, 7.0)))
        case "one-hot":
            row = torch.full((size,), float("-inf"))
            row[draw.randrange(size)] = draw.choice((0.0, 1.0, -50.0))
            return row
        case "few":  # most can't be
            few = torch.randperm(size, generator=_generator(draw))[: draw.randint(2, 6)]
            row = torch.full((size,), float("-inf"))
            row[few] = normal[few].round()
            return row
        case "zeros":  # of both signs
            return torch.where(normal > 0, 0.0, -0.0)
        case "huge":
            return normal * draw.choice((1e3, 1e30, 3e37))
    raise AssertionError(kind)


def _drafted(draw: random.Random, rows: torch.Tensor, parent: int, distribution: torch.Tensor | None, size: int) -> int:
    """Mostly what its row finds likely, or made so."""
    if draw.random() < 0.04:
        return draw.choice((-1, size, size + 31, 2**31 - 1, -(2**31)))
    if distribution is not None and draw.random() < 0.8:
        return int(torch.multinomial(distribution, 1, generator=_generator(draw)))
    luck = draw.random()
    if luck < 0.35:
        return int(rows[parent].argmax())
    if luck < 0.6:
        return int(rows[parent].float().topk(min(4, size)).indices[draw.randrange(min(4, size))])
    token = draw.randrange(size)
    if luck < 0.85 and rows[parent].float().max() < 1e3:
        rows[parent, token] = rows[parent].float().max() + draw.choice((-1.0, 0.0, 2.0, 10.0))
    return token


def _draft_probs(draw: random.Random, row: torch.Tensor, temperature: float) -> torch.Tensor:
    """float32 [V]: near to what the target thinks, the same, far from it, or one-hot."""
    size = row.shape[0]
    logits = row.float().nan_to_num(neginf=-1e30, posinf=1e30) / max(temperature, 0.05)
    luck = draw.random()
    if luck < 0.5:
        logits = logits + torch.randn(size, generator=_generator(draw)) * draw.choice((0.1, 1.0))
    elif luck < 0.65:
        logits = torch.randn(size, generator=_generator(draw)) * 2.0
    elif luck < 0.75:
        probs = torch.zeros(size)
        probs[draw.randrange(size)] = 1.0
        return probs
    return torch.softmax(logits.clamp(-1e30, 1e30), -1)


def _some(draw: random.Random, size: int, draft: list[int]) -> list[int]:
    """Distinct ids of the vocabulary, drafted ones among them."""
    ids = {draw.randrange(size) for _ in range(draw.choice((0, 1, 3, 10, 40)))}
    return sorted(ids | {token for token in draft if 0 <= token < size and draw.random() < 0.4})


def _seen(draw: random.Random, size: int, draft: list[int]) -> dict[int, int]:
    return {token: draw.choice((0, 0, 1, 2, 7)) for token in _some(draw, size, draft)}


def _bias(draw: random.Random, size: int, draft: list[int]) -> dict[int, float]:
    values = (1.0, -1.0, 5.0, 0.1, -100.0, float("-inf"))
    return {token: draw.choice(values) for token in _some(draw, size, draft)}


def _forbidden(draw: random.Random, size: int, length: int, draft: list[int]) -> list[list[int]]:
    return [_some(draw, size, draft)[:5] if draw.random() < 0.5 else [] for _ in range(length + 1)]


def _allowed(draw: random.Random, size: int, draft: list[int]) -> list[int]:
    ids = [token for token in range(size) if draw.random() < draw.choice((0.05, 0.5, 0.9))]
    return sorted(
        {*ids, draw.randrange(size), *(token for token in draft if 0 <= token < size and draw.random() < 0.8)}
    )
