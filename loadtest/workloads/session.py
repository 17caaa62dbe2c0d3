"""What a workload is made of: sessions of turns. Knows no HTTP and no files.

A workload is a pure function of (seed, index): the same request has the same text whatever ran beside it, and two
servers, or one server with two settings, can be given the same work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Body = dict[str, Any]
Messages = list[dict[str, Any]]


class BadWorkload(ValueError):
    """No such workload, or a file that holds something else."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One request: fields of its body, with `messages` or `prompt`. In a later turn they are what is added to the
    turns before and their answers. `think` is how long the user takes before it, from the end of the last answer."""

    body: Mapping[str, Any]
    think: float = 0.0


@dataclass(frozen=True, slots=True)
class Session:
    turns: tuple[Turn, ...]
    at: float | None = None  # seconds after the beginning, in a trace


@dataclass(frozen=True, slots=True)
class Workload:
    """`session(index)` for every whole number, below 0 for warming up. `times`: when those of a trace begin."""

    name: str
    session: Callable[[int], Session]
    times: tuple[float, ...] = ()


def alone(body: Mapping[str, Any]) -> Session:
    return Session((Turn(body),))


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def extended(before: Mapping[str, Any], answer: str, asked: Body) -> Body:
    """The next turn's body: what was asked before, what the server answered, and what is asked now."""
    if "messages" in before:
        said = {"role": "assistant", "content": answer}
        return {**asked, "messages": [*before["messages"], said, *as_chat(asked)["messages"]]}
    return {**asked, "prompt": f"{before['prompt']}{answer}\n\n{as_completion(asked)['prompt']}"}


def as_chat(body: Mapping[str, Any]) -> Body:
    if "messages" in body:
        return dict(body)
    rest = {name: value for name, value in body.items() if name != "prompt"}
    return {"messages": [user(str(body["prompt"]))], **rest}


def as_completion(body: Mapping[str, Any]) -> Body:
    """Where plain text is wanted, the turns of a conversation are joined."""
    if "prompt" in body:
        return dict(body)
    rest = {name: value for name, value in body.items() if name != "messages"}
    return {"prompt": "\n\n".join(_text(message.get("content")) for message in body["messages"]), **rest}


def _text(content: Any) -> str:
    if isinstance(content, list):
        return " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return str(content or "")
