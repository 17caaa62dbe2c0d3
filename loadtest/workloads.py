"""What is asked: seeded generators of prompts, prompts from a file, or one fixed prompt. Knows no HTTP.

A workload is a pure function of (seed, index): the same request has the same text whatever ran beside it,
and two servers, or one server with two settings, can be given the same work.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

Messages = list[dict[str, Any]]
Workload = Callable[[int], "Prompt"]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A conversation. Plain text is one user turn; where plain text is wanted, the turns are joined."""

    messages: Messages
    max_tokens: int | None = None  # overrides the run's

    def text(self) -> str:
        return "\n\n".join(str(message.get("content") or "") for message in self.messages)


class BadWorkload(ValueError):
    """No such workload, or a file that holds something else."""


def workload(name: str, seed: int, prompt: str = "") -> Workload:
    """By name from `GENERATORS`, or the path of a JSONL file; `prompt`, when given, is asked every time."""
    if prompt:
        fixed = Prompt(_user(prompt))
        return lambda index: fixed
    if name in GENERATORS:
        generate = GENERATORS[name]
        return lambda index: Prompt(generate(random.Random(f"{name}/{seed}/{index}"), seed))
    path = Path(name)
    if path.suffix != ".jsonl" and not path.exists():
        known = ", ".join(GENERATORS)
        raise BadWorkload(f"no workload named {name!r}; there are {known}, and paths of .jsonl files")
    prompts = read_jsonl(path)
    order = list(range(len(prompts)))
    random.Random(f"file/{seed}").shuffle(order)
    return lambda index: prompts[order[index % len(order)]]


def read_jsonl(path: Path) -> list[Prompt]:
    """One request a line: {"messages": […]}, {"prompt": "…"} or {"turns": ["…"]}, perhaps with max_tokens."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as problem:
        raise BadWorkload(f"{path}: {problem.strerror}") from None
    prompts = [_prompt_of(line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise BadWorkload(f"{path}: no requests in it")
    return prompts


def _prompt_of(line: bytes, where: str) -> Prompt:
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError as problem:
        raise BadWorkload(f"{where}: {problem}") from None
    if not isinstance(row, dict):
        raise BadWorkload(f"{where}: not a JSON object")
    limit = row.get("max_tokens")
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        raise BadWorkload(f"{where}: max_tokens must be a whole number of at least 1")
    messages, turns = row.get("messages"), row.get("turns")
    if isinstance(messages, list) and messages and all(isinstance(turn, dict) for turn in messages):
        return Prompt(messages, limit)
    first = row.get("prompt") or (turns[0] if isinstance(turns, list) and turns else None)
    if isinstance(first, str) and first:
        return Prompt(_user(first), limit)
    raise BadWorkload(f"{where}: neither messages nor prompt nor turns")


# The generators ------------------------------------------------------------------------------------------


def chat(draw: random.Random, seed: int) -> Messages:
    """A short question, now and then after an exchange of turns: nothing to copy from."""
    question = draw.choice(_QUESTIONS).format(a=draw.choice(_TOPICS), b=draw.choice(_TOPICS))
    if draw.random() < 0.7:
        return _user(question)
    before = draw.choice(_QUESTIONS).format(a=draw.choice(_TOPICS), b=draw.choice(_TOPICS))
    return [*_user(before), _turn("assistant", _paragraph(draw, 3)), *_user(question)]


def edit(draw: random.Random, seed: int) -> Messages:
    """A source file to be repeated with one name changed: almost every token can be copied."""
    names = draw.sample(_NOUNS, 6)
    functions = "\n\n".join(_function(draw, name) for name in names)
    old = draw.choice(names)
    return _user(
        f"Here is a file:\n\n```python\n{functions}\n```\n\n"
        f"Rename the function compute_{old} to measure_{old}, change nothing else, and show the whole file."
    )


def retrieval(draw: random.Random, seed: int) -> Messages:
    """Numbered paragraphs and a request to quote one of them."""
    paragraphs = [_paragraph(draw, 4) for _ in range(10)]
    wanted = draw.randrange(len(paragraphs))
    listing = "\n\n".join(f"[{number}] {text}" for number, text in enumerate(paragraphs, 1))
    task = f"Quote paragraph [{wanted + 1}] word for word, then say in one sentence what it is about."
    return _user(f"{listing}\n\n{task}")


def agentic(draw: random.Random, seed: int) -> Messages:
    """The fifth step of a loop of calls and observations with one shape: calls repeat with small changes."""
    rule = 'Work in steps. Answer each time with one JSON object {"thought", "tool", "arguments"}.'
    messages = [_turn("system", rule)]
    files = draw.sample(_NOUNS, 5)
    messages.append(_turn("user", f"Find out which file defines {draw.choice(files)} and count its lines."))
    for name in files[:4]:
        arguments = {"path": f"src/{name}.py", "limit": 200}
        call = {"thought": f"I look into {name}.py next.", "tool": "read_file", "arguments": arguments}
        messages.append(_turn("assistant", orjson.dumps(call).decode()))
        messages.append(_turn("user", f"Observation:\n{_function(draw, name)}"))
    return messages


def shared_prefix(draw: random.Random, seed: int) -> Messages:
    """One long system prompt, the same for every request of a seed, and a short question of its own."""
    rules = random.Random(f"prefix/{seed}")
    system = "You answer by these rules.\n" + "\n".join(f"{n}. {_sentence(rules)}" for n in range(1, 81))
    return [_turn("system", system), *chat(draw, seed)[-1:]]


def long_prompt(draw: random.Random, seed: int) -> Messages:
    """About a thousand words to be summarised: prefill against decoding of others."""
    text = "\n\n".join(_paragraph(draw, 8) for _ in range(14))
    return _user(f"{text}\n\nSummarise the text above in three sentences.")


GENERATORS: dict[str, Callable[[random.Random, int], Messages]] = {
    "chat": chat,
    "edit": edit,
    "retrieval": retrieval,
    "agentic": agentic,
    "shared-prefix": shared_prefix,
    "long-prompt": long_prompt,
}


# What they are made of -----------------------------------------------------------------------------------


def _turn(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def _user(content: str) -> Messages:
    return [_turn("user", content)]


def _sentence(draw: random.Random) -> str:
    subject = f"{draw.choice(_QUALITIES)} {draw.choice(_NOUNS)}"
    thing = f"{draw.choice(_QUALITIES)} {draw.choice(_NOUNS)}"
    when = draw.randrange(1500, 2020)
    return f"The {subject} {draw.choice(_VERBS)} the {thing} {draw.choice(_PLACES)} in {when}."


def _paragraph(draw: random.Random, sentences: int) -> str:
    return " ".join(_sentence(draw) for _ in range(sentences))


def _function(draw: random.Random, name: str) -> str:
    factor = draw.randrange(2, 90)
    return (
        f"def compute_{name}(values: list[float], limit: int = {draw.randrange(5, 500)}) -> float:\n"
        f'    """The {draw.choice(_QUALITIES)} {name} of the values, at most `limit` of them."""\n'
        f"    total = 0.0\n"
        f"    for index, value in enumerate(values[:limit]):\n"
        f"        if value > {draw.randrange(1, 50)}:\n"
        f"            total += value * {factor} - index\n"
        f"    return total / max(1, len(values))"
    )


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
