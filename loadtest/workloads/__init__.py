"""Workloads: seeded generators, one file for each kind, and requests from files. Knows no HTTP.

Kinds with `requests(count, seed)` have texts of ours or Python's. All but `edit` show how it is done, because small
models follow examples better than instructions. The other kinds combine random words without end.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from loadtest.workloads import agent, chat, edit, edit_favourable, records, retrieval, schemas, talk
from loadtest.workloads.files import read_folder, read_lines
from loadtest.workloads.session import BadWorkload, Body, Session, Turn, Workload, alone, user

__all__ = ["DRAWN", "NAMES", "REQUESTS", "BadWorkload", "Body", "Kind", "Session", "Turn", "Workload", "workload"]

INSTRUCTION = "Repeat the file above word for word, and correct what is wrong in it."


class Kind(NamedTuple):
    """`cold`: nothing may be drafted from other answers, so each session has a `cache_salt` of its own. `turns`: the
    requests of a session, which follow each other in the list and in time."""

    requests: Callable[[int, int], list[Body]]
    says: str
    cold: bool = False
    turns: int = 1


REQUESTS: dict[str, Kind] = {
    "edit": Kind(edit.requests, "every function of some modules is repeated under another name", cold=True),
    "edit-favourable": Kind(
        edit_favourable.requests, "a function or a text that a small model repeats well, with a small change"
    ),
    "agent": Kind(
        agent.requests, "recorded sessions with tools: calls, their results, edits of files", turns=agent.TURNS
    ),
    "retrieval": Kind(retrieval.requests, "a paragraph of the prompt is quoted and then explained"),
    "chat": Kind(chat.requests, "open questions"),
    "json": Kind(records.requests, "sentences are put down as JSON"),
    "schemas": Kind(schemas.requests, "JSON that `response_format` holds to a schema"),
}
DRAWN: dict[str, Callable[[random.Random, int], Session]] = {
    "questions": talk.questions,
    "dialogue": talk.dialogue,
    "shared-prefix": talk.shared_prefix,
    "long-prompt": talk.long_prompt,
}
NAMES = (*REQUESTS, *DRAWN)
WARM_UP_SEED = 1 << 20


def workload(
    name: str, seed: int, *, prompt: str = "", instruction: str = "", most_characters: int = 12_000, turns: int = 0,
    think: float | None = None,
) -> Workload:  # fmt: skip
    """A workload by name, or by the path of a file or folder. `prompt`, if given, is sent every time. `turns`: most
    turns of a session. `think`: mean pause of users, instead of the workload's."""
    found = _named(name, seed, prompt, instruction or INSTRUCTION, most_characters)
    if not turns and think is None:
        return found

    def changed(index: int) -> Session:
        session = found.session(index)
        draw = random.Random(f"think/{seed}/{index}")
        kept = session.turns[: turns or None]
        if think is not None:
            pauses = [draw.expovariate(1 / think) if think else 0.0 for _ in kept]
            kept = tuple(Turn(turn.body, pause) for turn, pause in zip(kept, pauses, strict=True))
        return replace(session, turns=kept)

    return replace(found, session=changed)


def _named(name: str, seed: int, prompt: str, instruction: str, most_characters: int) -> Workload:
    if prompt:
        fixed = alone({"messages": [user(prompt)]})
        return Workload("prompt", lambda index: fixed)
    if name in DRAWN:
        generate = DRAWN[name]
        return Workload(name, lambda index: generate(random.Random(f"{name}/{seed}/{index}"), seed))
    if name in REQUESTS:
        return Workload(name, _Listed(REQUESTS[name], seed), cold=REQUESTS[name].cold)
    path = Path(name)
    if path.is_dir():
        return _shuffled(name, read_folder(path, instruction, most_characters), seed)
    if path.suffix not in (".jsonl", ".json") and not path.exists():
        raise BadWorkload(
            f"no workload named {name!r}; there are {', '.join(NAMES)}, paths of .jsonl or .json files, and folders"
        )
    sessions = read_lines(path)
    if all(session.at is not None for session in sessions):
        return _trace(name, sessions)
    return _shuffled(name, sessions, seed)


def _shuffled(name: str, sessions: list[Session], seed: int) -> Workload:
    order = list(range(len(sessions)))
    random.Random(f"file/{seed}").shuffle(order)
    return Workload(name, lambda index: sessions[order[index % len(order)]])


def _trace(name: str, sessions: list[Session]) -> Workload:
    """Sessions in order of their times, relative to the first."""
    ordered = sorted(sessions, key=lambda session: session.at or 0.0)
    first = ordered[0].at or 0.0
    times = tuple((session.at or 0.0) - first for session in ordered)
    return Workload(name, lambda index: ordered[index % len(ordered)], times)


class _Listed:
    """Requests of a kind, generated on demand; a longer list starts with the shorter one."""

    def __init__(self, kind: Kind, seed: int) -> None:
        self._kind = kind
        self._seed = seed
        self._made: dict[int, list[Body]] = {}

    def __call__(self, index: int) -> Session:
        seed, at = (self._seed, index) if index >= 0 else (self._seed + WARM_UP_SEED, -1 - index)
        made = self._made.get(seed, [])
        turns = self._kind.turns
        first, end = at * turns, (at + 1) * turns
        if end > len(made):
            made = self._made[seed] = self._kind.requests(max(64, 2 * at) * turns, seed)
        return Session(tuple(map(Turn, made[first:end])), recorded=turns > 1)
