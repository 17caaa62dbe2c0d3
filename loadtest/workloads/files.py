"""Requests from files: JSON lines in common formats, one JSON list, or a folder of texts.

Each line is one of
    {"messages": [...]}  {"prompt": "..."}        one request; may have other fields of a body
    {"turns": ["...", ...]}                       the user's turns
    {"conversations": [{"from": "human", ...}]}   ShareGPT: human turns only; the server gives the answers
    {"custom_id", "url", "body": {...}}           OpenAI batch
    {"timestamp", "input_length", ...}            a trace without texts (traces.py)
and may have `timestamp` (seconds) for a replay and `think` (seconds before each later turn). Knows no HTTP.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from loadtest.workloads.session import BadWorkload, Session, Turn, alone, user
from loadtest.workloads.traces import has_no_text, invented

# Fields of a line that don't go into the body. The model of a batch is another server's.
NOT_TAKEN = {"model", "stream", "stream_options", "timestamp", "think", "turns", "question_id", "category", "reference"}
HUMAN, INSTRUCTS = {"human", "user"}, {"system"}


def read_lines(path: Path) -> list[Session]:
    try:
        content = path.read_bytes()
    except OSError as problem:
        raise BadWorkload(f"{path}: {problem.strerror}") from None
    sessions = [_session(row, where) for row, where in _rows(content, path)]
    if not sessions:
        raise BadWorkload(f"{path}: no requests in it")
    return sessions


def read_folder(path: Path, instruction: str, most_characters: int) -> list[Session]:
    """One request for each file: its name, its text and the instruction."""
    sessions = []
    for file in sorted(each for each in path.rglob("*") if each.is_file()):
        try:
            text = file.read_text(encoding="utf-8")[:most_characters]
        except (UnicodeDecodeError, OSError):
            continue
        if text.strip():
            shown = f"File {file.relative_to(path)}:\n\n{text}\n\n{instruction}"
            sessions.append(alone({"messages": [user(shown)]}))
    if not sessions:
        raise BadWorkload(f"{path}: no files with text in it")
    return sessions


def _rows(content: bytes, path: Path) -> Iterator[tuple[Any, str]]:
    if content.lstrip()[:1] == b"[":
        try:
            rows = orjson.loads(content)
        except orjson.JSONDecodeError as problem:
            raise BadWorkload(f"{path}: {problem}") from None
        yield from ((row, f"{path}[{number}]") for number, row in enumerate(rows))
        return
    for number, line in enumerate(content.splitlines(), 1):
        if line.strip():
            try:
                yield orjson.loads(line), f"{path}:{number}"
            except orjson.JSONDecodeError as problem:
                raise BadWorkload(f"{path}:{number}: {problem}") from None


def _session(row: Any, where: str) -> Session:
    if not isinstance(row, dict):
        raise BadWorkload(f"{where}: not a JSON object")
    if has_no_text(row):
        return invented(row, where)
    body = row.get("body")
    turns = _turns(body if isinstance(body, dict) else row, where)
    think = _number(row, "think", where)
    turns[1:] = [Turn(turn.body, think or 0.0) for turn in turns[1:]]
    return Session(tuple(turns), at=_number(row, "timestamp", where))


def _turns(row: Mapping[str, Any], where: str) -> list[Turn]:
    limit = row.get("max_tokens")
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        raise BadWorkload(f"{where}: max_tokens must be a whole number of at least 1")
    more = {name: value for name, value in row.items() if name not in NOT_TAKEN and name not in _ASKS}
    messages, prompt = row.get("messages"), row.get("prompt")
    if isinstance(messages, list) and messages and all(isinstance(each, dict) for each in messages):
        return [Turn({"messages": messages, **more})]
    if isinstance(prompt, str) and prompt:
        return [Turn({"prompt": prompt, **more})]
    # Only the texts of conversations are used; other fields of such lines are notes.
    said = _said(row)
    if said:
        kept = {"max_tokens": limit} if limit else {}
        return [Turn({"messages": each, **kept}) for each in said]
    raise BadWorkload(f"{where}: neither messages nor prompt nor turns nor conversations")


_ASKS = {"messages", "prompt", "conversations"}


def _said(row: Mapping[str, Any]) -> list[list[dict[str, Any]]]:
    """The messages that each turn adds: the user's, and in the first turn the system prompt before it."""
    if isinstance(row.get("turns"), list):
        return [[user(each)] for each in row["turns"] if isinstance(each, str) and each]
    found: list[list[dict[str, Any]]] = []
    system: list[dict[str, Any]] = []
    parts = row.get("conversations")
    for part in parts if isinstance(parts, list) else ():
        if not isinstance(part, dict) or not isinstance(part.get("value"), str) or not part["value"]:
            continue
        if part.get("from") in INSTRUCTS and not found:
            system = [{"role": "system", "content": part["value"]}]
        elif part.get("from") in HUMAN:
            found.append([*(system if not found else []), user(part["value"])])
    return found


def _number(row: Mapping[str, Any], name: str, where: str) -> float | None:
    value = row.get(name)
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or value < 0:
        raise BadWorkload(f"{where}: {name} must be a number of seconds")
    return float(value)
