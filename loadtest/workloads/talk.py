"""Endless generated text: short questions, dialogues of several turns, questions after one long prefix, long texts.

Words are combined at random, so no two prompts are alike and any model and context length will do, but the prompts make
little sense. The kinds that show speculation are in the other files.
"""

from __future__ import annotations

import random
from typing import Any

from loadtest.workloads.session import Session, Turn, alone, user

THINK_MEAN = 1.0  # seconds


def questions(draw: random.Random, seed: int) -> Session:
    """A short question, sometimes after earlier turns; nothing to copy from."""
    asked = [user(_question(draw))]
    if draw.random() >= 0.7:
        asked = [user(_question(draw)), _turn("assistant", _paragraph(draw, 3)), *asked]
    return alone({"messages": asked})


def dialogue(draw: random.Random, seed: int) -> Session:
    """Two to five turns with pauses; each prompt contains the server's earlier answers."""
    turns = [Turn({"messages": [user(_question(draw))]})]
    for _ in range(draw.randrange(1, 5)):
        asked = draw.choice(_FOLLOW_UPS).format(a=draw.choice(_TOPICS))
        turns.append(Turn({"messages": [user(asked)]}, think=draw.expovariate(1 / THINK_MEAN)))
    return Session(tuple(turns))


def shared_prefix(draw: random.Random, seed: int) -> Session:
    """One long system prompt, equal for all requests of a seed, and a short question."""
    rules = random.Random(f"prefix/{seed}")
    system = "You answer by these rules.\n" + "\n".join(f"{n}. {_sentence(rules)}" for n in range(1, 81))
    return alone({"messages": [_turn("system", system), user(_question(draw))]})


def long_prompt(draw: random.Random, seed: int) -> Session:
    """About a thousand words to summarise: prefill beside the decoding of other requests."""
    return alone({"messages": [user(f"{prose(draw, 14)}\n\nSummarise the text above in three sentences.")]})


def prose(draw: random.Random, paragraphs: int) -> str:
    return "\n\n".join(_paragraph(draw, 8) for _ in range(paragraphs))


def _question(draw: random.Random) -> str:
    return draw.choice(_QUESTIONS).format(a=draw.choice(_TOPICS), b=draw.choice(_TOPICS))


def _turn(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def _sentence(draw: random.Random) -> str:
    subject = f"{draw.choice(_QUALITIES)} {draw.choice(_NOUNS)}"
    thing = f"{draw.choice(_QUALITIES)} {draw.choice(_NOUNS)}"
    when = draw.randrange(1500, 2020)
    return f"The {subject} {draw.choice(_VERBS)} the {thing} {draw.choice(_PLACES)} in {when}."


def _paragraph(draw: random.Random, sentences: int) -> str:
    return " ".join(_sentence(draw) for _ in range(sentences))


_QUESTIONS = (
    "What is the difference between {a} and {b}?",
    "Explain {a} to a child of ten.",
    "Write a short story in which {a} meets {b}.",
    "List five things one should know about {a}.",
    "I want to learn about {a}. Where do I begin?",
    "Give arguments for and against {a}.",
    "How did {a} change the way people think about {b}?",
    "Write a polite e-mail that asks a colleague about {a}.",
)
_FOLLOW_UPS = (
    "Say that in one sentence.",
    "Give an example.",
    "And what about {a}?",
    "Why is that so?",
    "Write it as a list.",
    "What would somebody say who disagrees?",
)
_TOPICS = (
    "photosynthesis", "the printing press", "compound interest", "black holes", "sourdough bread",
    "chess openings", "the water cycle", "public libraries", "sailing", "vaccines", "prime numbers",
    "jazz", "bees", "glaciers", "bridges", "recycling", "the Silk Road", "dreams", "railways",
    "electric cars", "opera", "tides", "tea", "satellites",
)  # fmt: skip
_NOUNS = (
    "harbour", "engine", "garden", "ledger", "signal", "window", "river", "market", "lantern", "archive",
    "bridge", "compass", "meadow", "workshop", "station", "tower", "voyage", "mirror", "kitchen",
    "orchard", "village", "canal",
)  # fmt: skip
_QUALITIES = (
    "old", "quiet", "northern", "broken", "golden", "narrow", "early", "distant", "wooden", "bright",
    "heavy", "plain",
)  # fmt: skip
_VERBS = (
    "replaced", "followed", "outlived", "measured", "hid", "reached", "repaired", "described", "crossed",
    "lost",
)  # fmt: skip
_PLACES = (
    "near the coast", "by the mill", "under the hill", "beyond the wall", "at the border",
    "in the valley",
)  # fmt: skip
