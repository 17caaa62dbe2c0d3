"""Who sees only sizes and times of encrypted packets can't tell which text an answer is, once streams are paced.

The attack is carried out: 20 texts, each said again and again by a server that guesses from the text so far, with noise
in what is guessed and in how long a step takes. A nearest-neighbour classifier learns half of the recordings and names
the texts of the other half. All answers take as many steps: how long an answer takes is not hidden.
"""

from __future__ import annotations

import importlib
import inspect
import random
import re
import sys
from math import comb
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "services" / "streamer"))

from in_memory_wire import Answers, Arrival, Wire, chat

MODULES = (
    "argparse", "ast", "bisect", "calendar", "csv", "dataclasses", "difflib", "fractions", "gettext", "heapq",
    "html.parser", "inspect", "json.encoder", "mailbox", "pprint", "shlex", "statistics", "string", "tarfile",
    "textwrap",
)  # fmt: skip
RECORDINGS = 8  # of each text, half of them to learn from
STEPS = 48
DRAFT = 6
STEP = 0.02  # seconds
PACE = 0.05
MISSED = 0.05  # share of the steps without a draft
FEATURES = 2 * STEPS


def steps_of(text: str) -> list[list[str]]:
    """The tokens each step brings: as many as follow the last occurrence of the two before, and one more."""
    words = re.findall(r"\w+|\s+|[^\w\s]", text)[:2000]
    place, steps = 20, []
    while len(steps) < 2 * STEPS:
        seen = [at for at in range(place - 2) if words[at : at + 2] == words[place - 2 : place]]
        guess = words[seen[-1] + 2 : seen[-1] + 2 + DRAFT] if seen else []
        stands = 0
        while stands < len(guess) and guess[stands] == words[place + stands]:
            stands += 1
        steps.append(words[place : place + stands + 1])
        place += stands + 1
    return steps


def recording(steps: list[list[str]], draw: random.Random) -> list[Arrival]:
    """One answer: a step without a draft brings its tokens one by one, and none takes exactly as long as another."""
    brought: list[str] = []
    for step in steps:
        brought += step if draw.random() < MISSED else ["".join(step)]
    return [(STEP * draw.uniform(0.8, 1.2), 0, text) for text in brought[:STEPS]]


def features(wire: Wire) -> np.ndarray:
    """Sizes and gaps of what was written, in their order; how many there were is told by the zeros behind."""
    times = np.array([time for time, _ in wire.writes])
    sizes = np.array([size for _, size in wire.writes], dtype=float)
    seen = np.zeros((2, FEATURES))
    count = min(FEATURES, len(times) - 1)
    seen[0, :count] = sizes[1 : count + 1]
    seen[1, :count] = np.diff(times)[:count] * 1000
    return seen.reshape(-1)


def named(known: np.ndarray, labels: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """The text of the nearest recording. Sizes as they are; differences in one place count for no more than others."""
    spread = known.std(axis=0)
    known, asked = known[:, spread > 0] / spread[spread > 0], asked[:, spread > 0] / spread[spread > 0]
    distances = np.abs(asked[:, None, :] - known[None, :, :]).sum(axis=2)
    result: np.ndarray = labels[distances.argmin(axis=1)]
    return result


async def accuracy(pace: float) -> float:
    """How many recordings of the second half the attacker names right."""
    texts = [inspect.getsource(importlib.import_module(name)) for name in MODULES]
    draw = random.Random(7)
    plays = [
        (label, recording(steps, draw)) for label, steps in enumerate(map(steps_of, texts)) for _ in range(RECORDINGS)
    ]
    answers = Answers(pace=pace)
    wires = [answers.play(arrivals, chat()) for _, arrivals in plays]
    await answers.until_done(*wires)
    seen = np.array([features(wire) for wire in wires])
    labels = np.array([label for label, _ in plays])
    half = np.arange(len(plays)) % 2 == 0
    right = named(seen[half], labels[half], seen[~half]) == labels[~half]
    return float(right.mean())


def luckiest(tries: int, chance: float, how_rare: float) -> int:
    """So many hits, or more, come from guessing in `how_rare` of all cases at most."""
    tail, hits = 1.0, 0
    while tail > how_rare:
        tail -= comb(tries, hits) * chance**hits * (1 - chance) ** (tries - hits)
        hits += 1
    return hits


async def test_as_it_comes_a_stream_tells_which_text_it_is() -> None:
    assert await accuracy(pace=0.0) > 0.8


async def test_a_paced_stream_reveals_no_more_than_guessing() -> None:
    tries = len(MODULES) * RECORDINGS // 2
    assert await accuracy(pace=PACE) * tries < luckiest(tries, 1 / len(MODULES), how_rare=0.001)


async def test_a_paced_stream_is_one_row_of_equal_frames_whatever_is_said() -> None:
    answers = Answers(pace=PACE)
    draw = random.Random(3)
    texts = [inspect.getsource(importlib.import_module(name)) for name in MODULES]
    wires = [answers.play(recording(steps_of(text), draw)) for text in texts]
    await answers.until_done(*wires)
    assert len({size for wire in wires for _, size in wire.writes[1:-1]}) == 1
    gaps = {round(gap, 6) for wire in wires for gap in np.diff([time for time, _ in wire.writes[1:-1]])}
    assert gaps == {PACE}
