"""Arrival times of tokens: all tokens of a chunk arrive together. Knows outcomes, no sockets.

The server reports the number of tokens in a chunk (token ids, runs, log-probabilities, or usage in every chunk).
Otherwise the tokens of the final usage are distributed over the chunks by their characters.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from loadtest.outcome import Outcome

Counts = np.ndarray[Any, np.dtype[np.int64]]
Seconds = np.ndarray[Any, np.dtype[np.float32]]


def tokens_of(outcome: Outcome) -> int:
    """From usage. Without it chunks are counted, which undercounts chunks with several tokens."""
    if outcome.completion_tokens is not None:
        return outcome.completion_tokens
    return max(outcome.chunks, sum(outcome.told))


def are_told(outcome: Outcome) -> bool:
    return 0 not in outcome.told


def per_chunk(outcome: Outcome) -> Counts:
    told = np.asarray(outcome.told, dtype=np.int64)
    if are_told(outcome) or not len(told):
        return told
    # The token that ends an answer counts in usage and has no text.
    spare = tokens_of(outcome) - len(told) - (outcome.finish == "stop")
    counts = np.ones(len(told), dtype=np.int64)
    if spare <= 0:
        return counts
    sizes = np.maximum(np.asarray(outcome.sizes, dtype=np.float64), 1.0)
    # A chunk's proportional share of all tokens, minus the one it has already; never negative.
    shares = np.maximum(sizes / sizes.sum() * (spare + len(told)) - 1.0, 0.0)
    shares *= spare / max(shares.sum(), 1e-9)
    counts += shares.astype(np.int64)
    left = spare + len(told) - int(counts.sum())
    counts[np.argsort(shares.astype(np.int64) - shares, kind="stable")[:left]] += 1
    return counts


def gaps(outcome: Outcome) -> Seconds:
    """Times between tokens of one choice; all but the first token of a chunk have gap 0."""
    between = chunk_gaps(outcome)
    at_once = int(per_chunk(outcome).sum()) - len(outcome.gaps)
    return np.concatenate([between, np.zeros(max(0, at_once), dtype=np.float32)])


def chunk_gaps(outcome: Outcome) -> Seconds:
    seconds = np.asarray(outcome.gaps, dtype=np.float32)
    return seconds[seconds >= 0]


def per_token(outcome: Outcome) -> float | None:
    """Seconds per token after the first; None with a single token."""
    count = tokens_of(outcome)
    if outcome.first is None or outcome.last is None or count < 2:
        return None
    return (outcome.last - outcome.first) / (count - 1)
