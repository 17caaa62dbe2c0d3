"""Texts said again, and somebody who guesses at each step how they go on: what the guesses were, what they brought and
what they took. Whoever guesses stands behind `Guesser`; nothing of ours is needed here, so that other people's guessers
are run by the same loops in an interpreter of their own (bench/oracles/arctic.py).
"""

from __future__ import annotations

import os
import random
import time
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

Text = Sequence[int]
# Of a text that is said again: what is known before the first guess.
PROMPT = 200
# Tokens of a text that are learned at a time.
PIECE = 512


class ReplayGuess(NamedTuple):
    """chances[i]: how probable it is that all up to tokens[i] stand; empty: it isn't said."""

    tokens: list[int]
    chances: list[float]


class Guesser(Protocol):
    def begin(self, key: int, prompt: Text) -> None:
        """A text of its own, with a prompt that nobody else learns from."""

    def take(self, key: int, tokens: Text) -> None:
        """So it went on. Keeps the tokens; the work is done in `learn` or `guess`, which are timed."""

    def learn(self, key: int) -> None:
        """What was taken can be guessed from; no guess is wanted."""

    def guess(self, keys: Sequence[int]) -> list[Any]:
        """The same for a batch, and a guess for each, in whatever shape."""

    def told(self, keys: Sequence[int], guesses: list[Any]) -> list[ReplayGuess]:
        """In ours. Not timed."""

    def end(self, key: int) -> None:
        """What it said stays known."""

    def held_bytes(self) -> int: ...


def learn(guesser: Guesser, texts: Sequence[Text]) -> dict[str, float]:
    """All that is said in the texts; keys are below 0."""
    resident, seconds = resident_bytes(), 0.0
    for number, text in enumerate(texts):
        key = -1 - number
        guesser.begin(key, array("i"))
        for at in range(0, len(text), PIECE):
            guesser.take(key, text[at : at + PIECE])
            begun = time.perf_counter()
            guesser.learn(key)
            seconds += time.perf_counter() - begun
        guesser.end(key)
    tokens = max(1, sum(map(len, texts)))
    return {
        "tokens": tokens,
        "ns_per_token": seconds / tokens * 1e9,
        "bytes_per_token": guesser.held_bytes() / tokens,
        "resident_bytes_per_token": (resident_bytes() - resident) / tokens,
    }


def ends(text: Text, number: int) -> list[int]:
    """How long a text is after each of its steps, when a step brings one to four tokens."""
    chance, found = random.Random(f"steps {number}"), [PROMPT]
    while found[-1] < len(text):
        found.append(min(len(text), found[-1] + chance.randint(1, 4)))
    return found[1:]


def scheduled(guesser: Guesser, texts: Sequence[Text], batch: int) -> tuple[list[list[ReplayGuess]], dict[str, float]]:
    """Every guesser sees the same steps, whatever it guesses: guesses by text and step, and the time of a step."""
    guesses: list[list[ReplayGuess]] = [[] for _ in texts]
    seconds: list[float] = []
    for begin in range(0, len(texts), batch):
        group = range(begin, min(len(texts), begin + batch))
        lengths = {at: ends(texts[at], at) for at in group}
        for at in group:
            guesser.begin(at, texts[at][:PROMPT])
        for step in range(max(map(len, lengths.values()))):
            running = [at for at in group if step < len(lengths[at])]
            for at in running:
                guesser.take(at, texts[at][lengths[at][step - 1] if step else PROMPT : lengths[at][step]])
            begun = time.perf_counter()
            found = guesser.guess(running)
            took = time.perf_counter() - begun
            # As long as the batch is full, or nearly.
            if len(running) > batch * 3 // 4:
                seconds.append(took / len(running))
            for at, guess in zip(running, guesser.told(running, found), strict=True):
                guesses[at].append(guess)
        for at in group:
            guesser.end(at)
    return guesses, microseconds(seconds)


def free(guesser: Guesser, texts: Sequence[Text], batch: int, cut: Callable[[ReplayGuess], int]) -> dict[str, float]:
    """Every guesser goes as fast as its guesses let it, like a target that verifies `cut` tokens of each."""
    steps = drafted = accepted = 0
    for begin in range(0, len(texts), batch):
        lengths = dict.fromkeys(range(begin, min(len(texts), begin + batch)), PROMPT)
        for at in lengths:
            guesser.begin(at, texts[at][:PROMPT])
        running = list(lengths)
        while running:
            for at, guess in zip(running, guesser.told(running, guesser.guess(running)), strict=True):
                text, known = texts[at], lengths[at]
                tokens = guess.tokens[: cut(guess)]
                right = agreeing(tokens, text, known)
                steps, drafted, accepted = steps + 1, drafted + len(tokens), accepted + right
                lengths[at] = min(len(text), known + right + 1)
                guesser.take(at, text[known : lengths[at]])
            running = [at for at in running if lengths[at] < len(texts[at])]
        for at in lengths:
            guesser.end(at)
    return {
        "steps": steps,
        "accepted_per_step": accepted / max(1, steps),
        "drafted_per_step": drafted / max(1, steps),
        "accepted_of_drafted": accepted / max(1, drafted),
    }


def agreeing(draft: Sequence[int], text: Text, position: int) -> int:
    for count, token in enumerate(draft):
        if position + count >= len(text) or text[position + count] != token:
            return count
    return len(draft)


def microseconds(seconds: Sequence[float]) -> dict[str, float]:
    if not seconds:
        return {}
    return {f"p{share}_us": float(np.percentile(seconds, share)) * 1e6 for share in (50, 99)}


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]) * os.sysconf("SC_PAGE_SIZE")


# Jobs ---------------------------------------------------------------------------------------------------


def figures_of(make: Callable[[dict[str, Any]], Guesser], job: dict[str, Any]) -> dict[str, Any]:
    """A job: texts to learn, texts to say again, and how. What is said again is learned, too: each begins anew."""
    learned, said = ([array("i", text) for text in job[name]] for name in ("learned", "said"))
    guesser = make(job)
    found: dict[str, Any] = {"learn": learn(guesser, learned)}
    if job["how"] == "scheduled":
        _, found["step"] = scheduled(guesser, said, job["batch"])
    else:
        found["free"] = free(guesser, said, job["batch"], cutter(job))
    return found


def cutter(job: dict[str, Any]) -> Callable[[ReplayGuess], int]:
    """Up to where a draft is verified: as long as all of it stands with at least that chance, where that is known."""
    least = job.get("least_chance", 0.0)

    def cut(guess: ReplayGuess) -> int:
        return next((at for at, chance in enumerate(guess.chances) if chance < least), len(guess.tokens))

    return cut
