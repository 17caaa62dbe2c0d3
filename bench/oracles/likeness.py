"""How two suffix decoders' drafts differ for the same steps of the same texts, and why.

A draft that ends where the other goes on is one thing; another token is another. It may be that two tokens followed a
context equally often: then each has its own way to choose, and none is wrong. Counting by hand in all that was known at
that step tells; it is done for a sample of the differing steps.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bench.replay import PROMPT, Guess, Text, ends

SAMPLE = 200
_BETWEEN = -1  # no token: parts one text from the next


class Step(NamedTuple):
    text: int
    step: int


def compare(
    texts: tuple[list[array[int]], list[array[int]]], ours: list[list[Guess]], theirs: list[list[Guess]], batch: int
) -> dict[str, Any]:
    """Shares of all steps; `identical_but_for_ties` takes the sample's share of ties for that of all."""
    steps = sum(map(len, ours))
    differing: dict[str, list[Step]] = {"ours is longer": [], "theirs is longer": [], "another token": []}
    for text, (left, right) in enumerate(zip(ours, theirs, strict=True)):
        for step, (mine, other) in enumerate(zip(left, right, strict=True)):
            if mine.tokens != other.tokens:
                differing[difference(mine.tokens, other.tokens)].append(Step(text, step))
    others = differing["another token"]
    sample = random.Random(1).sample(others, min(SAMPLE, len(others)))
    known = Known(texts, batch)
    causes = [known.cause(each, ours[each.text][each.step], theirs[each.text][each.step]) for each in sample]
    shares = {cause: causes.count(cause) / max(1, len(causes)) for cause in sorted(set(causes))}
    identical = 1 - sum(map(len, differing.values())) / steps
    return {
        "steps": steps,
        "empty_of_ours": sum(not each.tokens for one in ours for each in one) / steps,
        "identical": identical,
        "identical_but_for_ties": identical + shares.get("tie", 0.0) * len(others) / steps,
        **{name: len(found) / steps for name, found in differing.items()},
        "another token, causes": shares,
        "examples": [
            example(ours[s.text][s.step], theirs[s.text][s.step]) for found in differing.values() for s in found[:2]
        ],
    }


def difference(mine: Sequence[int], other: Sequence[int]) -> str:
    common = min(len(mine), len(other))
    if mine[:common] != other[:common]:
        return "another token"
    return "ours is longer" if len(mine) > common else "theirs is longer"


def example(mine: Guess, other: Guess) -> dict[str, Any]:
    return {
        "ours": mine.tokens,
        "context": mine.match_length,
        "theirs": other.tokens,
        "their context": other.match_length,
    }


class Known:
    """All that both had learned at a step, and how often something occurred in it."""

    def __init__(self, texts: tuple[list[array[int]], list[array[int]]], batch: int) -> None:
        learned, self._said = texts
        self._batch = batch
        self._learned = joined([*learned])
        self._lengths = [ends(text, number) for number, text in enumerate(self._said)]

    def cause(self, at: Step, mine: Guess, other: Guess) -> str:
        """Of drafts that part at a token: a tie, or the context that each looked at."""
        part = next(k for k, (a, b) in enumerate(zip(mine.tokens, other.tokens, strict=False)) if a != b)
        text = self._said[at.text][: self._lengths[at.text][at.step]].tolist() + mine.tokens[:part]
        here, everywhere = joined([text]), self._all(at)
        for length in {mine.match_length + part, other.match_length + part}:
            context = text[-min(length, 63) :]
            for place in (here, everywhere):
                counts = [occurrences(place, [*context, token]) for token in (mine.tokens[part], other.tokens[part])]
                if counts[0] == counts[1] > 0:
                    return "tie"
        return "the same context" if mine.match_length == other.match_length else "another context"

    def _all(self, at: Step) -> npt.NDArray[np.int32]:
        """What was learned and what all texts of this batch and those before have said behind their prompts."""
        first = at.text - at.text % self._batch
        said = [text[PROMPT:] for text in self._said[:first]]
        for number in range(first, min(first + self._batch, len(self._said))):
            lengths = self._lengths[number]
            said.append(self._said[number][PROMPT : lengths[min(at.step, len(lengths) - 1)]])
        return np.concatenate([self._learned, joined(said)])


def joined(texts: Sequence[Text]) -> npt.NDArray[np.int32]:
    parts = [np.array([*text, _BETWEEN], np.int32) for text in texts]
    return np.concatenate(parts) if parts else np.empty(0, np.int32)


def occurrences(text: npt.NDArray[np.int32], tokens: Sequence[int]) -> int:
    """From the last token backwards: what is rare is soon alone. Before the first token comes the end again."""
    found = np.flatnonzero(text == tokens[-1])
    for back, token in enumerate(reversed(tokens[:-1]), 1):
        found = found[text[found - back] == token]
    return len(found)
