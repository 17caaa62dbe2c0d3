"""`specmesh generate`: the texts that follow a prompt, or each prompt of a file, printed in the order of the prompts;
speed and acceptance at the end, on standard error. By a mesh of its own, or a server that runs.

For requests of many kinds, and a file that outlives a kill, there is `specmesh batch`.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import orjson

from services.api.settings import Settings
from services.cli.batch_lines import Asked
from services.cli.batch_run import Asking, Progress
from services.cli.chat_drafts import printable
from services.cli.field_flags import given_fields
from services.cli.server_used import OptionsError, exit_code, server_used
from specmesh.connection import in_parallel

COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"
# Of a line of JSON, by what trainings and PaddleNLP call it.
KEYS = ("prompt", "src")
IN_FLIGHT = 128
AT_FAULT = 1


def main(options: argparse.Namespace, settings: Settings) -> int:
    """Exit code 0: every prompt has a text; 1: some are refused; 2: not all are done."""
    return exit_code(options, lambda: _generate(options, settings))


def _generate(options: argparse.Namespace, settings: Settings) -> int:
    if (options.prompt is None) == (options.file is None):
        raise OptionsError("give a PROMPT, or --file FILE with one a line")
    prompts = [options.prompt] if options.file is None else list(prompts_of(options.file))
    with server_used(options, settings, "these prompts (--url names a server that runs)") as (connection, asking):
        model = connection.run(connection.get("/v1/models"))["data"][0]["id"]
        fields = {"model": model, "max_tokens": options.max_tokens, **given_fields(options)}
        printed = Printed(prompts, options.json)
        # A line of progress would stand within the texts.
        every = math.inf if sys.stdout.isatty() else None
        progress = Progress(lambda: printed.count / len(prompts), every=every, rest="not named")
        connection.run(_answer(requests(prompts, fields, options.chat), asking, printed, progress))
        progress.end()
    return AT_FAULT if progress.wrong else 0


def prompts_of(name: str) -> Iterator[str]:
    """One a line; empty lines are passed over. Of .jsonl and .json a line is an object. -: standard input."""
    text = sys.stdin.read() if name == "-" else Path(name).expanduser().read_text(encoding="utf-8-sig")
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        yield _of_json(f"{name}, line {number}", line) if name.endswith((".jsonl", ".json")) else line.rstrip("\r")


def _of_json(where: str, line: str) -> str:
    try:
        found = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise OptionsError(f"{where}: no JSON: {error.msg}") from None
    prompt = next((found[key] for key in KEYS if key in found), None) if isinstance(found, dict) else None
    if not isinstance(prompt, str):
        raise OptionsError(f"{where}: no object with a text as {' or '.join(KEYS)}")
    return prompt


def requests(prompts: Iterable[str], fields: dict[str, Any], chat: bool) -> Iterator[Asked]:
    for number, prompt in enumerate(prompts, 1):
        asked = {"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt}
        yield Asked(number, "", CHATS if chat else COMPLETIONS, orjson.dumps(fields | asked))


async def _answer(lines: Iterable[Asked], asking: Asking, printed: Printed, progress: Progress) -> None:
    async def one(line: Asked) -> None:
        answer = await asking.ask(line)
        if answer.status < 400:
            progress.answered(answer.body)
            choice = answer.body["choices"][0]
            text = choice["message"]["content"] if "message" in choice else choice["text"]
            printed.put(line.number, {"output": text or "", "finish_reason": choice["finish_reason"]})
        else:
            why = answer.body.get("error", {}).get("message", "")
            progress.at_fault(line.number, f"{answer.status} {why}")
            printed.put(line.number, {"error": why})

    try:
        await in_parallel(lines, one, IN_FLIGHT)
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


class Printed:
    """Texts, each once all before it are printed."""

    def __init__(self, prompts: list[str], as_json: bool) -> None:
        self._prompts, self._json = prompts, as_json
        self._waiting: dict[int, dict[str, Any]] = {}
        self._terminal = sys.stdout.isatty()
        self.count = 0

    def put(self, number: int, answer: dict[str, Any]) -> None:
        self._waiting[number] = answer
        while answer := self._waiting.pop(self.count + 1, {}):
            line = orjson.dumps({"src": self._prompts[self.count], **answer}).decode()
            text = line if self._json else answer.get("output", "")
            print(printable(text) if self._terminal else text, flush=True)
            self.count += 1
