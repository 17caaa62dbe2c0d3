"""What goes wrong in a first hour. What each refusal tells to type is typed, and works."""

from __future__ import annotations

import fcntl
import json
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from player import MODEL, Ended, Start, asked, corrected, fix_of, message_of, typed
from running_mesh import MOCK, RunningMesh

from bench.running_mesh import free_ports

pytestmark = pytest.mark.slow


# Commands --------------------------------------------------------------------------------------------------


def test_a_misspelled_command(ended: Ended) -> None:
    said = typed("sreve")
    (meant,) = re.findall(r"did you mean (\w+)\?", said.text)
    assert said.code != 0 and typed(meant, "--help").code == 0
    ended("said what to do")


@pytest.mark.parametrize(
    "line",
    [
        "--prot 8080", "--method eagle9", "--max-sequences 2000", "--max-step-tokens 9999999", "--audit-share 7",
        "--verify-strategy fast", "--dtype float64",
    ],
)  # fmt: skip
def test_a_wrong_flag_or_value(line: str, ended: Ended) -> None:
    words = shlex.split(line)
    said = typed("config", "show", *words)
    again = corrected(words, said.text)
    assert said.code != 0 and again != words
    assert typed("config", "show", *again).code == 0
    ended("said what to do")


def test_json_without_quotes(ended: Ended) -> None:
    said = typed("config", "show", "--speculative-config", "{method: ngram}")
    assert said.code != 0 and "names and texts in it have double quotes" in said.text
    assert typed("config", "show", "--speculative-config", '{"method": "ngram"}').code == 0
    ended("said what to do")


def test_a_settings_file_that_is_not_there(tmp_path: Path, ended: Ended) -> None:
    words = ["config", "show", "--config", str(tmp_path / "mine.toml")]
    command = re.search(r"make it: (touch [^;]+);", fix_of(typed(*words).text))
    assert command
    subprocess.run(shlex.split(command[1]), check=True)
    assert typed(*words).code == 0
    ended("said what to do")


def test_a_model_that_is_not_here(ended: Ended) -> None:
    said = typed("model", "show", "smollm")
    command = re.search(r"specmesh (model list)", fix_of(said.text))
    assert said.code != 0 and command
    assert MODEL in typed(*command[1].split()).text
    ended("said what to do")


def test_a_chat_without_a_server(mock_mesh: RunningMesh, ended: Ended) -> None:
    said = typed("chat", "hi", "--port", str(free_ports(1)))
    assert said.code != 0 and "`specmesh up`" in said.text
    assert typed("chat", "hi", "--url", mock_mesh.url, "--max-tokens", "4").code == 0
    ended("said what to do")


def test_a_load_without_a_server(mock_mesh: RunningMesh, ended: Ended) -> None:
    said = typed("load", "--url", f"http://127.0.0.1:{free_ports(1)}", "--requests", "1")
    assert said.code != 0 and "specmesh load URL" in fix_of(said.text)
    done = typed("load", mock_mesh.url, "--requests", "2", "--warmup", "0", "--max-tokens", "8")
    assert done.code == 0, done.text
    ended("said what to do")


def test_a_chat_with_a_name_of_another_model(mock_mesh: RunningMesh, ended: Ended) -> None:
    said = typed("chat", "hi", "--url", mock_mesh.url, "--model", "gpt-4o")
    (name,) = re.findall(r"this server has '([^']+)'", said.text)
    assert typed("chat", "hi", "--url", mock_mesh.url, "--model", name, "--max-tokens", "4").code == 0
    ended("said what to do")


@pytest.mark.model
@pytest.mark.parametrize("method", ["hydra", "block", "eagle", "draft_model"])
def test_a_method_whose_head_is_not_there(method: str, tmp_path: Path, ended: Ended) -> None:
    said = typed("up", "--method", method, "--port=0", f"--metrics-port={free_ports(4)}", "--run-dir", str(tmp_path))
    fix = fix_of(said.text)
    (instead,) = re.findall(r"write (--method \w+) without --draft-model", fix)
    assert said.code != 0 and typed("config", "show", *instead.split()).code == 0
    for command in re.findall(r"make one with specmesh (train-drafter [^,]+),", fix):
        assert typed(*command.split(), "--help").code == 0
    ended("said what to do")


# A start, until it works ------------------------------------------------------------------------------------


def _port(flags: dict[str, str], said: str) -> None:
    flags["port"] = str(free_ports(1))


def _run_dir(flags: dict[str, str], said: str) -> None:
    flags["run-dir"] += "-mine"


def _host(flags: dict[str, str], said: str) -> None:
    flags["host"] = re.findall(r"--host ([\d.]+)", said)[0]


def _named(flags: dict[str, str], said: str) -> None:
    flags["model"] = re.findall(r"give ([\w-]+)", said)[0]


def _context(flags: dict[str, str], said: str) -> None:
    flags["max-context"] = re.findall(r"at most (\d+)", said)[0]


def _no_head(flags: dict[str, str], said: str) -> None:
    del flags["draft-model"]
    flags["method"] = re.findall(r"--method (\w+)", said)[0]


# What a refusal says, and how its fix is typed.
FIXES = {
    "a mesh is running in": _run_dir, "is no address of this machine": _host, "choose another with --port": _port,
    "no model './nowhere'": _named, "the model was made for": _context, "holds no head": _no_head,
}  # fmt: skip


@pytest.mark.model
def test_a_start_with_six_mistakes_works_after_six_fixes(tmp_path: Path, mock_mesh: RunningMesh, ended: Ended) -> None:
    taken_folder = tmp_path / "run"
    taken_folder.mkdir()
    flags = {
        "run-dir": str(taken_folder), "host": "192.0.2.1", "port": str(mock_mesh.port), "model": "./nowhere",
        "max-context": "999999", "draft-model": "./eagle3", "method": "eagle3", "metrics-port": str(free_ports(4)),
        "store-dir": "none", "dtype": "float32",
    }  # fmt: skip
    with (taken_folder / "up.lock").open("w") as lock:
        # As a mesh holds it.
        fcntl.flock(lock, fcntl.LOCK_EX)
        seen, start = _played(tmp_path, flags)
    try:
        assert {*seen} == {*FIXES}
        assert asked(start.url(), "GET", "/health")[0] == 200
    finally:
        start.stop()
    ended("said what to do")


def _played(folder: Path, flags: dict[str, str]) -> tuple[list[str], Start]:
    """Starts until one is ready, with the fix of each refusal. Which refusals, and the start."""
    seen: list[str] = []
    while True:
        start = Start(folder, "up", *(f"--{name}={value}" for name, value in flags.items()))
        try:
            if start.ready():
                return seen, start
        except BaseException:
            start.stop()
            raise
        (told,) = [each for each in FIXES if each in start.text]
        assert told not in seen, start.text
        seen.append(told)
        FIXES[told](flags, start.text)


def test_cores_that_are_not_there(tmp_path: Path, ended: Ended) -> None:
    ports = free_ports(8)
    words = ["up", "--engine", "mock", "--mock-profile", MOCK, "--run-dir", str(tmp_path), "--store-dir", "none",
             f"--port={ports}", f"--metrics-port={ports + 1}"]  # fmt: skip
    said = typed(*words, "--cores", "worker=4000")
    first = re.search(r"there are cores (\d+)", said.text)
    assert said.code != 0 and first, said.text
    start = Start(tmp_path, *words, "--cores", f"worker={first[1]}")
    try:
        assert start.ready(), start.text
    finally:
        start.stop()
    ended("said what to do")


# Requests ---------------------------------------------------------------------------------------------------

HI = [{"role": "user", "content": "hi"}]
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def _number(field: str) -> Callable[[dict[str, Any], str], Any]:
    def fix(body: dict[str, Any], said: str) -> None:
        body[field] = json.loads(re.findall(r"\.\.([\d.]+)", said)[0])

    return fix


def _max_tokens(body: dict[str, Any], said: str) -> None:
    body["max_tokens"] = int(re.findall(r"at most (\d+) fit", said)[0])


def _renamed(body: dict[str, Any], said: str) -> None:
    body[re.findall(r"did you mean (\w+)\?", said)[0]] = body.pop("temprature")


def _model(body: dict[str, Any], said: str) -> None:
    body["model"] = re.findall(r"this server has '([^']+)'", said)[0]


def _streamed(body: dict[str, Any], said: str) -> None:
    assert "needs stream: true" in said
    body["stream"] = True


def _one_of(*path: str) -> Callable[[dict[str, Any], str], None]:
    def fix(body: dict[str, Any], said: str) -> None:
        inner = body
        for name in path[:-1]:
            inner = inner[name]
        inner[path[-1]] = re.findall(r"must be one of .*?(\w+)(?:;|,? not|$)", said)[0]

    return fix


def _without(field: str) -> Callable[[dict[str, Any], str], None]:
    def fix(body: dict[str, Any], said: str) -> None:
        assert "is not supported by this server" in said
        del body[field]

    return fix


REQUESTS: dict[str, tuple[str, dict[str, Any], Callable[[dict[str, Any], str], Any]]] = {
    "another model": (CHAT, {"model": "gpt-4o", "messages": HI}, _model),
    "temperature 3": (CHAT, {"messages": HI, "temperature": 3}, _number("temperature")),
    "99 choices": (CHAT, {"messages": HI, "n": 99}, _number("n")),
    "more tokens than fit": (CHAT, {"messages": HI, "max_tokens": 99999, "min_tokens": 0}, _max_tokens),
    "a misspelled field": (CHAT, {"messages": HI, "temprature": 0.5}, _renamed),
    "usage without a stream": (CHAT, {"messages": HI, "stream_options": {"include_usage": True}}, _streamed),
    "a method nobody has": (CHAT, {"messages": HI, "speculation": {"method": "eagel3"}}, _one_of(
        "speculation", "method")),
    "a strategy that changes the text": (CHAT, {"messages": HI, "speculation": {"verify_strategy": "topp"}}, _one_of(
        "speculation", "verify_strategy")),
    "tools of the server": (CHAT, {"messages": HI, "web_search_options": {"a": 1}}, _without("web_search_options")),
}  # fmt: skip


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_that_is_refused(name: str, mock_mesh: RunningMesh, ended: Ended) -> None:
    path, body, fix = REQUESTS[name]
    body = {"model": MODEL, "max_tokens": 4, **json.loads(json.dumps(body))}
    status, text = asked(mock_mesh.url, "POST", path, body)
    assert 400 <= status < 500, text
    fix(body, message_of(text))
    if name == "more tokens than fit":
        # All that fit would take a while.
        body["stop"] = ["e", "a", " "]
    status, text = asked(mock_mesh.url, "POST", path, body)
    assert status == 200, text
    ended("said what to do")


@pytest.mark.parametrize(("path", "body"), [(TEXT, {"messages": HI}), (CHAT, {"prompt": "hi"}), (CHAT, {"text": "hi"})])
def test_a_body_of_the_other_route(path: str, body: dict[str, Any], mock_mesh: RunningMesh, ended: Ended) -> None:
    body = {"model": MODEL, "max_tokens": 4, **body}
    status, text = asked(mock_mesh.url, "POST", path, body)
    (meant,) = re.findall(r"is a field of (\S+)", message_of(text))
    assert status == 400 and asked(mock_mesh.url, "POST", meant, body)[0] == 200
    ended("said what to do")


def test_a_request_without_a_model(mock_mesh: RunningMesh, ended: Ended) -> None:
    status, text = asked(mock_mesh.url, "POST", CHAT, {"messages": HI})
    (path,) = re.findall(r"GET (\S+)", message_of(text))
    name = json.loads(asked(mock_mesh.url, "GET", path)[1])["data"][0]["id"]
    assert status == 400
    assert asked(mock_mesh.url, "POST", CHAT, {"model": name, "messages": HI, "max_tokens": 4})[0] == 200
    ended("said what to do")
