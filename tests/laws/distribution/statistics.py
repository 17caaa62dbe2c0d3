"""Whether counts are what probabilities say: chi-square over whole blocks and over each place, Holm's correction."""

from __future__ import annotations

import numpy as np
import torch

# Cells that should hold less are counted together.
LEAST_EXPECTED = 10.0


def p_values(counts: np.ndarray, probs: np.ndarray, vocab_size: int, length: int) -> list[float]:
    """Of the joint counts, and of those of each place and each pair of neighbours, which see less and see it better."""
    found = [p_value(counts, probs)]
    shape = (vocab_size,) * length
    for kept in [(i,) for i in range(length)] + [(i, i + 1) for i in range(length - 1)]:
        gone = tuple(i for i in range(length) if i not in kept)
        if gone:
            found.append(p_value(*(values.reshape(shape).sum(gone).reshape(-1) for values in (counts, probs))))
    return found


def p_value(counts: np.ndarray, probs: np.ndarray) -> float:
    """0 where something came that can't; 1 where only one thing could."""
    if counts[probs == 0].sum():
        return 0.0
    expected = probs * counts.sum()
    order = np.argsort(expected, kind="stable")
    expected, seen = expected[order], counts[order].astype(np.float64)
    # The rarest make one cell that is large enough.
    rare = int(np.searchsorted(np.cumsum(expected), LEAST_EXPECTED)) + 1
    rare = max(rare, int(np.searchsorted(expected, LEAST_EXPECTED)))
    expected = np.concatenate([[expected[:rare].sum()], expected[rare:]])
    seen = np.concatenate([[seen[:rare].sum()], seen[rare:]])
    degrees = len(expected) - 1
    if degrees < 1:
        return 1.0
    chi = float(((seen - expected) ** 2 / expected).sum())
    return float(torch.special.gammaincc(torch.tensor(degrees / 2).double(), torch.tensor(chi / 2).double()))


def holm(values: list[float]) -> list[float]:
    """Adjusted so that one below x among all of them happens with probability x at most, if all is well."""
    order = np.argsort(values)
    adjusted = np.empty(len(values))
    reached = 0.0
    for rank, index in enumerate(order):
        reached = max(reached, min(1.0, values[index] * (len(values) - rank)))
        adjusted[index] = reached
    return [float(value) for value in adjusted]


def total_variation(counts: np.ndarray, probs: np.ndarray) -> float:
    """Half the sum of differences: the largest difference in the probability of any event."""
    return float(np.abs(counts / counts.sum() - probs).sum() / 2)


def total_variation_of_chance(probs: np.ndarray, count: int) -> float:
    """What `count` honest draws show by chance alone, on average: sqrt(2 p (1 - p) / (pi n)) for each cell."""
    return float(np.sqrt(2 * probs * (1 - probs) / (np.pi * count)).sum() / 2)
