"""A parser fed with a text in pieces, and what came out of it in all."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator

from services.streamer.agents.parts import CallParser, Part

Make = Callable[[], CallParser]
# The content, and of each call its name and its arguments.
Read = tuple[str, list[tuple[str, str]]]


def read(make: Make, pieces: Iterable[str]) -> Read:
    parser = make()
    parts: list[Part] = [part for piece in pieces for part in parser.feed(piece)]
    return joined([*parts, *parser.flush()])


def joined(parts: Iterable[Part]) -> Read:
    content, calls = "", list[tuple[str, str]]()
    for part in parts:
        if isinstance(part, str):
            content += part
            continue
        if part.name:
            assert part.index == len(calls), "calls are numbered as they come"
            calls.append((part.name, ""))
        assert part.index == len(calls) - 1, "a call's parts come before the next call"
        calls[-1] = (calls[-1][0], calls[-1][1] + part.arguments)
    return content, calls


def cuts(text: str, draws: int = 100) -> Iterator[list[str]]:
    """In two at every place, into single characters, and at random."""
    yield from ([text[:place], text[place:]] for place in range(len(text) + 1))
    yield list(text)
    draw = random.Random(text)
    for _ in range(draws):
        places = sorted(draw.sample(range(len(text) + 1), min(len(text), draw.randint(1, 12))))
        yield [text[begin:end] for begin, end in zip([0, *places], [*places, len(text)], strict=True)]


def read_at_every_cut(make: Make, text: str) -> Read:
    whole = read(make, [text])
    for pieces in cuts(text):
        assert read(make, pieces) == whole, pieces
    return whole
