"""Sessions of turns, the parts of a workload. Knows no HTTP and no files.

A workload is a pure function of (seed, index), so two servers, or one server with two settings, can get the same
requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Body = dict[str, Any]
Messages = list[dict[str, Any]]


class BadWorkload(ValueError):
    """An unknown workload, or a file with other content."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One request: fields of its body, with `messages` or `prompt`. In later turns these are appended to the earlier
    turns and their answers, unless the session is recorded. `think` is the user's pause after the last answer."""

    body: Mapping[str, Any]
    think: float = 0.0


@dataclass(frozen=True, slots=True)
class Session:
    """`recorded`: every turn brings its whole conversation, whatever the server answered before."""

    turns: tuple[Turn, ...]
    at: float | None = None  # in a trace: seconds after its beginning
    recorded: bool = False


@dataclass(frozen=True, slots=True)
class Workload:
    """`session(index)` for every integer; negative ones are for warm-up. `times`: start times of a trace. `cold`: no
    session may find traces of another on the server."""

    name: str
    session: Callable[[int], Session]
    times: tuple[float, ...] = ()
    cold: bool = False


def alone(body: Mapping[str, Any]) -> Session:
    return Session((Turn(body),))


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def extended(before: Mapping[str, Any], answer: str, asked: Body) -> Body:
    """The next turn's body: the earlier request, the server's answer and the new messages."""
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
    """A conversation as plain text: its turns joined."""
    if "prompt" in body:
        return dict(body)
    rest = {name: value for name, value in body.items() if name != "messages"}
    return {"prompt": "\n\n".join(_text(message.get("content")) for message in body["messages"]), **rest}


def _text(content: Any) -> str:
    if isinstance(content, list):
        return " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return str(content or "")
