"""`specmesh batch` against real meshes: its own, killed and started again, and one that runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from running_mesh import MOCK, RunningMesh, descendants, has_ended, mesh_fixture, until

pytestmark = pytest.mark.model
ROOT = Path(__file__).resolve().parents[2]
MODEL = "smollm2-135m-instruct"
OWN_MESH = ("--engine=mock", f"--mock-profile={MOCK}", "--concurrency=32")

locked_mesh = mesh_fixture("module", engine="mock", mock_profile=MOCK, api_keys="key-of-the-batch")


def asked(custom_id: str, url: str = "/v1/completions", **body: Any) -> str:
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": {"model": MODEL, **body}}) + "\n"


def batch(folder: Path, *words: str, command: str = "batch") -> subprocess.Popen[bytes]:
    files = (folder / "in.jsonl", folder / "out.jsonl")
    named = ("-i", str(files[0]), "-o", str(files[1])) if command == "run-batch" else map(str, files)
    env = {name: value for name, value in os.environ.items() if not name.startswith("SPECMESH_")}
    with (folder / "said").open("ab") as said:
        return subprocess.Popen(
            [sys.executable, "-m", "services.cli", command, *named, *words],
            cwd=ROOT, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env={**env, "SPECMESH_CONFIG": ""},
        )  # fmt: skip


def said(folder: Path) -> str:
    return (folder / "said").read_text()


def lines_of(folder: Path) -> list[bytes]:
    try:
        return (folder / "out.jsonl").read_bytes().splitlines()
    except FileNotFoundError:
        return []


@pytest.mark.parametrize(
    ("count", "kills_at"), [(300, [50]), pytest.param(1000, [166, 500], marks=pytest.mark.slow)]
)
def test_a_batch_that_is_killed_has_every_line_once(count: int, kills_at: list[int], tmp_path: Path) -> None:
    text = "".join(asked(f"line-{n}", prompt=[100 + n % 50, n], max_tokens=24, ignore_eos=True) for n in range(count))
    (tmp_path / "in.jsonl").write_text(text)
    seen: set[bytes] = set()
    for least in kills_at:
        process = batch(tmp_path, *OWN_MESH)
        until(lambda: len(lines_of(tmp_path)) >= least, 240, lambda: said(tmp_path), alive=process)  # noqa: B023
        mesh = descendants(process.pid)
        assert len(mesh) >= 5
        process.send_signal(signal.SIGKILL)
        process.wait()
        whole = lines_of(tmp_path)
        assert seen <= set(whole) and least <= len(whole) < count, "answers of the run before stay as they are"
        seen = set(whole)
        # As if it had been killed while it wrote.
        with (tmp_path / "out.jsonl").open("ab") as out:
            out.write(whole[-1][: len(whole[-1]) // 2])
        until(lambda: all(map(has_ended, mesh)), 30, lambda: f"of its mesh some are left: {mesh}")  # noqa: B023
    process = batch(tmp_path, *OWN_MESH)
    assert process.wait(240) == 0, said(tmp_path)
    assert f"{count - len(seen)} answered, and {len(seen)} before; 0 at fault" in said(tmp_path)
    final = lines_of(tmp_path)
    answers = [json.loads(line) for line in final]
    assert Counter(each["custom_id"] for each in answers) == Counter(f"line-{n}" for n in range(count))
    assert {each["response"]["body"]["usage"]["completion_tokens"] for each in answers} == {24}
    assert seen <= set(final) and len({each["id"] for each in answers}) == count


def test_all_urls_are_answered_by_a_server_that_runs_and_lines_at_fault_are_named(
    locked_mesh: RunningMesh, tmp_path: Path
) -> None:
    hello = [{"role": "user", "content": "Hello"}]
    text = [
        asked("chat", "/v1/chat/completions", messages=hello, max_tokens=8),
        asked("text", prompt="Hello", max_tokens=8),
        asked("vector", "/v1/embeddings", input="Hello"),
        asked("response", "/v1/responses", input="Hello", max_output_tokens=8),
        asked("message", "/v1/messages", messages=hello, max_tokens=8),
        "{no json\n",
        asked("hot", prompt="Hello", temperature=9),
        asked("chat", prompt="Hello"),
        asked("stream", prompt="Hello", stream=True),
        asked("other", "/v1/images/generations", prompt="Hello"),
        asked("", prompt="Hello"),
        asked("last", prompt="Hello", max_tokens=8),
    ]
    (tmp_path / "in.jsonl").write_text("".join(text))
    words = (f"--url={locked_mesh.url}/v1", "--api-keys=key-of-the-batch")
    process = batch(tmp_path, *words, command="run-batch")
    assert process.wait(120) == 1, said(tmp_path)
    found = [json.loads(line) for line in lines_of(tmp_path)]
    good = {each["custom_id"]: each["response"]["body"] for each in found if each["response"] and not each["error"]}
    kinds = {name: body.get("object", body.get("type")) for name, body in good.items() if name != "hot"}
    assert kinds == {
        "chat": "chat.completion", "text": "text_completion", "vector": "list", "response": "response",
        "message": "message", "last": "text_completion",
    }  # fmt: skip
    assert good["hot"]["error"]["param"] == "temperature"
    assert sorted(each["error"]["line"] for each in found if each["error"]) == [6, 8, 9, 10, 11]
    for number in (6, 7, 8, 9, 10, 11):
        assert f"specmesh: line {number}: " in said(tmp_path)
    assert "6 answered; 6 at fault" in said(tmp_path)
    (tmp_path / "in.jsonl").write_text("".join(text[:5]) + text[-1])
    process = batch(tmp_path, *words)
    assert process.wait(120) == 0, "only lines without an answer are asked again"
    assert len(lines_of(tmp_path)) == 6 and "0 answered, and 6 before; 0 at fault" in said(tmp_path)


def test_ctrl_c_ends_a_batch_and_its_answers_stay(locked_mesh: RunningMesh, tmp_path: Path) -> None:
    text = "".join(asked(f"line-{n}", prompt="Hello", max_tokens=200, ignore_eos=True) for n in range(400))
    (tmp_path / "in.jsonl").write_text(text)
    process = batch(tmp_path, f"--url={locked_mesh.url}", "--api-keys=key-of-the-batch", "--concurrency=4")
    until(lambda: len(lines_of(tmp_path)) >= 3, 120, lambda: said(tmp_path), alive=process)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130 and "the same command goes on" in said(tmp_path)
    assert "Traceback" not in said(tmp_path) and "Unclosed" not in said(tmp_path)
    assert 3 <= len([json.loads(line) for line in lines_of(tmp_path)]) < 400


def test_what_ends_a_batch_at_once_is_said(locked_mesh: RunningMesh, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text(asked("a", prompt="Hello"))
    for words, told in (
        ((f"--url={locked_mesh.url}",), "refuses"),
        (("--url=http://127.0.0.1:9",), "cannot reach http://127.0.0.1:9"),
        ((f"--url={locked_mesh.url}", "--dtype=float32"), "leave out --dtype"),
        (("--engine=mock", "--model=/nowhere"), "/nowhere"),
    ):
        process = batch(tmp_path, *words)
        assert process.wait(120) == 2 and told in said(tmp_path), said(tmp_path)
    assert lines_of(tmp_path) == []
