"""Types commands as a user does, reads what is printed, and types what that tells to type. Nothing else."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bench.running_mesh import ROOT, SPECMESH

# How a test tells how its try ended (conftest.py).
Ended = Callable[[Literal["worked", "said what to do"]], None]
MODEL = "smollm2-135m-instruct"
PATIENCE = 240  # s: starts of a loaded machine
# What a user writes where a line has a capital word.
WRITTEN = {"SHARE": "0.5", "N": "64", "S": "5", "NAME": "info", "JSON": "[[0]]", "FOLDER": tempfile.gettempdir(),
           "M": "2", "K": "1", "FIRST": "10.0.0.1"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Said:
    code: int
    text: str


def typed(*words: str) -> Said:
    """A command that ends by itself."""
    done = subprocess.run(
        [*SPECMESH, *words], capture_output=True, text=True, cwd=ROOT, stdin=subprocess.DEVNULL, timeout=PATIENCE
    )
    return Said(done.returncode, done.stdout + done.stderr)


def corrected(words: Sequence[str], said: str) -> list[str]:
    """The command as the refusal tells to write it."""
    found = list(words)
    for flag, reason in re.findall(r"flag (--[\w-]+)(?:, [\w-]+)?: (.*)", said):
        found = _with_flag(found, flag, reason)
    for wrong, right in re.findall(r"unknown: (--[\w-]+) \(did you mean (--[\w-]+)\?\)", said):
        found[found.index(wrong)] = right
    return found


def _with_flag(words: list[str], flag: str, reason: str) -> list[str]:
    place = next(i for i, word in enumerate(words) if _dashed(word.partition("=")[0]) == flag)
    if (allowed := re.search(r"is not one of ([\w, ]+)$", reason)) and place + 1 < len(words):
        return [*words[: place + 1], allowed[1].split(", ")[-1], *words[place + 2 :]]
    if allowed := re.search(r"is not a (?:whole )?number (?:from|above) ([\d.]+)(?: and up)? to ([\d.]+)$", reason):
        return [*words[: place + 1], allowed[2], *words[place + 2 :]]
    end = place + 1
    while end < len(words) and not words[end].startswith("--"):
        end += 1
    instead: list[str] = []
    if wanted := re.search(r"(?:^|\W)write ((?:--[\w-]+(?: (?:[A-Z]+|[a-z]+[0-9]*))?\b ?)+)", reason):
        instead = [WRITTEN.get(word, word) for word in wanted[1].split()]
    elif not re.match(r"leave it out|not served: ", reason):
        raise AssertionError(f"nothing to type: {reason}")
    return [*words[:place], *instead, *words[end:]]


def _dashed(flag: str) -> str:
    return flag[:2] + flag[2:].replace("_", "-")


def fix_of(said: str) -> str:
    """The line behind "fix:"."""
    found = re.search(r"fix: (.*)", said)
    assert found, f"no fix: {said}"
    return found[1]


# A server ------------------------------------------------------------------------------------------------


class Start:
    """A start that either becomes ready, or says why not."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.words = words
        self._output = folder / f"up-{time.monotonic_ns()}.log"
        with self._output.open("wb") as log:
            self.process = subprocess.Popen(
                [*SPECMESH, *words], stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=ROOT,
                env={**os.environ},
            )  # fmt: skip

    @property
    def text(self) -> str:
        return self._output.read_text(errors="replace")

    def ready(self) -> bool:
        """Waits for the box; False: it has ended without."""
        end = time.monotonic() + PATIENCE
        while " is ready (" not in self.text or "└" not in self.text:
            assert time.monotonic() < end, self.text[-4000:]
            if self.process.poll() is not None:
                return False
            time.sleep(0.1)
        return True

    def url(self) -> str:
        found = re.search(r"│ page +(\S+)/", self.text)
        assert found, self.text
        return found[1]

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def asked(url: str, method: str, path: str, body: Any = None) -> tuple[int, str]:
    request = urllib.request.Request(
        url + path, method=method, data=None if body is None else json.dumps(body).encode(),
        headers={"content-type": "application/json"},
    )  # fmt: skip
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


def message_of(text: str) -> str:
    return str(json.loads(text)["error"]["message"])


