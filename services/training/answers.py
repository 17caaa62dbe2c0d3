"""Texts that the model writes: continuations of prompts, made by the worker's engine in batches and appended to a file.

A line of such a file is one text: its ids, and how many of them are the prompt. A file that was cut short is continued:
its lines say which prompts are done.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from services.api.sampling import Sampling
from services.worker.in_process import InProcessEngine
from services.worker.running.runner import Runner

TOLD_EVERY_S = 10.0


class ModelAnswer(msgspec.Struct, frozen=True):
    """`number` is that of its prompt. `stopped`: an end token followed, which is not among `ids`."""

    number: int
    prompt_tokens: int
    ids: list[int]
    stopped: bool = False


def read(file: Path) -> list[ModelAnswer]:
    """All whole lines. A last one that was cut short is removed from the file."""
    if not file.exists():
        return []
    data = file.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        os.truncate(file, whole)
    return [msgspec.json.decode(line, type=ModelAnswer) for line in data[:whole].splitlines()]


def make(runner: Runner, prompts: Mapping[int, Sequence[int]], file: Path, sampling: Sampling) -> Iterator[ModelAnswer]:
    """Answers these prompts, and appends each answer to the file as it ends. The text of a prompt depends on its number
    and the seed, whatever else is answered."""
    with file.open("ab") as out:
        for ended in InProcessEngine(runner).run(prompts, sampling):
            prompt = prompts[ended.number]
            stopped = ended.finished.reason == "stop"
            text = ModelAnswer(ended.number, len(prompt), [*prompt, *ended.ids], stopped)
            out.write(msgspec.json.encode(text) + b"\n")
            out.flush()
            yield text


def all_of(
    what: str, load: Callable[[], Runner], prompts: Mapping[int, Sequence[int]], file: Path, sampling: Sampling
) -> list[ModelAnswer]:
    """What the model writes behind these prompts, by number. What is in the file isn't made again, and if nothing is
    lacking, no model is loaded."""
    texts = {text.number: text for text in read(file)}
    lacking = {number: prompt for number, prompt in prompts.items() if number not in texts}
    made, last = 0, 0.0
    for text in make(load(), lacking, file, sampling) if lacking else ():
        texts[text.number] = text
        made += len(text.ids) - text.prompt_tokens
        if time.monotonic() - last > TOLD_EVERY_S:
            last = time.monotonic()
            print(f"{what}: {len(texts)} of {len(prompts)}, {made} new tokens", flush=True)
    return [texts[number] for number in sorted(prompts)]
