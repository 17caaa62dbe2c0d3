"""A real mesh as a page and a terminal see it: who is there, what they do, a proposer that is killed by a button.

The commands of docs/use/terminal.md, as they stand there: tests/docs/test_commands.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from running_mesh import RunningMesh, running_mesh, until

MOCK = '{"step_ms": 2, "acceptance": 0.6, "vocab_size": 49152}'


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMesh]:
    folder = tmp_path_factory.mktemp("mesh")
    settings = {"engine": "mock", "mock_profile": MOCK, "method": "suffix", "demo": "true", "store_dir": "none"}
    with running_mesh(folder, **settings) as mesh:
        yield mesh


def seen(mesh: RunningMesh) -> dict[str, dict[str, Any]]:
    """By role."""
    status, text = mesh.get("/v1/mesh")
    assert status == 200, text
    return {member["role"]: member for member in json.loads(text)["members"]}


def until_seen(mesh: RunningMesh, true: Callable[[dict[str, dict[str, Any]]], bool]) -> None:
    until(lambda: true(seen(mesh)), 30.0, why=lambda: str(seen(mesh)))


def post(mesh: RunningMesh, path: str, **body: Any) -> tuple[int, dict[str, Any]]:
    data, headers = json.dumps(body).encode(), {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{mesh.port}{path}", data, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def ask(mesh: RunningMesh, tokens: int, **more: Any) -> dict[str, Any]:
    body = {"model": "smollm2-135m-instruct", "prompt": "1 2 3 4 5 6 7 8 9", "max_tokens": tokens, "seed": 5, **more}
    status, answer = post(mesh, "/v1/completions", **body)
    assert status == 200, answer
    return answer


def command(mesh: RunningMesh, *words: str) -> str:
    line = [sys.executable, "-m", "services.cli", *words, "--url", f"http://127.0.0.1:{mesh.port}"]
    environment = os.environ | {"SPECMESH_CONFIG": "", "COLUMNS": "140"}
    ended = subprocess.run(line, capture_output=True, text=True, timeout=60, env=environment, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_everyone_is_seen_and_what_he_does(mesh: RunningMesh) -> None:
    seen(mesh)
    ask(mesh, 400)
    until_seen(mesh, lambda roles: set(roles) == {"streamer", "tokenizer", "worker", "proposer"})
    members = seen(mesh)
    assert {member["state"] for member in members.values()} == {"ready"}
    assert members["worker"]["figures"]["tokens_per_s"] > 0
    assert members["proposer"]["figures"]["drafted_per_s"] > 0
    (source, *_) = members["worker"]["sources"]
    assert source["drafted"] >= source["accepted"] > 0


def test_a_timeline_has_every_kind_of_span(mesh: RunningMesh) -> None:
    timeline = ask(mesh, 100, return_timeline=True)["metrics"]["timeline"]
    assert {span["what"] for span in timeline} == {"queue", "tokenize", "prefill", "propose", "verify", "stream"}
    verified = sum(span["tokens"] for span in timeline if span["what"] == "verify")
    assert verified == 99  # the first token comes out of the prompt
    assert min(span["from_ms"] for span in timeline) == 0.0


def test_the_button_kills_the_proposer_and_no_answer_changes(mesh: RunningMesh) -> None:
    plain = ask(mesh, 2000, speculation={"off": True})["choices"][0]["text"]
    before = seen(mesh)["proposer"]
    answers: list[str] = []
    asking = threading.Thread(target=lambda: answers.append(ask(mesh, 2000)["choices"][0]["text"]))
    asking.start()
    until_seen(mesh, lambda roles: roles["worker"]["figures"]["running"] > 0)
    until(lambda: post(mesh, "/v1/mesh/kill", role="proposer")[0] == 202, 30.0, why=lambda: str(seen(mesh)))
    asking.join()
    assert answers == [plain]

    def is_another(now: dict[str, Any]) -> bool:
        return now["state"] == "ready" and now["restarts"] > before["restarts"] and now["pid"] != before["pid"]

    until_seen(mesh, lambda roles: is_another(roles["proposer"]))


def test_who_is_stopped_is_not_waited_for(mesh: RunningMesh) -> None:
    until_seen(mesh, lambda roles: roles["proposer"]["state"] == "ready")
    pid = seen(mesh)["proposer"]["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        until_seen(mesh, lambda roles: roles["proposer"]["state"] in ("stuck", "gone"))
        assert seen(mesh)["worker"]["state"] == "ready"
        assert "proposer" in command(mesh, "top", "--once")
    finally:
        # By now it may have been killed and replaced.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    until_seen(mesh, lambda roles: roles["proposer"]["state"] == "ready")


def test_the_terminal_shows_the_mesh(mesh: RunningMesh) -> None:
    shown = command(mesh, "top", "--once")
    assert all(name in shown for name in ("streamer-1", "tokenizer-1", "worker-1", "proposer-1", "ACCEPTED (TOTAL)"))


def test_the_terminal_shows_what_was_drafted(mesh: RunningMesh) -> None:
    words = ("chat", "--show-draft", "--max-tokens", "200", "--seed", "1", "1 2 3 4 5 6 7 8 9")
    mark = re.compile(r"\[(?:suffix|shared|store)\|")
    said: list[str] = []

    def drafted() -> bool:
        said.append(command(mesh, *words))
        return bool(mark.search(said[-1]))

    # A proposer that has just been started may not guess yet.
    until(drafted, 60.0, why=lambda: said[-1])
    assert said[-1].count("]") == len(mark.findall(said[-1]))
    # Marks apart it is the text of any other time.
    unmarked = command(mesh, "chat", *words[2:])
    assert mark.sub("", said[-1]).replace("]", "") == unmarked
