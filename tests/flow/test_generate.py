"""`specmesh generate` against real meshes: its own, and one that runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from running_mesh import MOCK, RunningMesh, mesh_fixture

pytestmark = pytest.mark.model
ROOT = Path(__file__).resolve().parents[2]

mesh = mesh_fixture("module", engine="mock", mock_profile=MOCK)


def generated(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("SPECMESH_")}
    return subprocess.run(
        [sys.executable, "-m", "services.cli", "generate", *words], cwd=ROOT, input=stdin, capture_output=True,
        text=True, timeout=240, check=False, env={**env, "SPECMESH_CONFIG": ""},
    )  # fmt: skip


def completed(url: str, **body: Any) -> str:
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode())
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(json.load(answer)["choices"][0]["text"])


def test_a_file_of_prompts_is_gone_on_from_as_the_server_does(mesh: RunningMesh, tmp_path: Path) -> None:
    prompts = ["The sea", "is salty\nbecause", "of the rivers"]
    (tmp_path / "in.json").write_text("".join(json.dumps({"src": prompt, "tgt": ""}) + "\n" for prompt in prompts))
    words = ("--file", str(tmp_path / "in.json"), "--max-tokens=12", "--temperature=0", "--ignore-eos", "--json")
    done = generated(*words, f"--url={mesh.url}/v1")
    assert done.returncode == 0, done.stderr
    model = json.loads(mesh.get("/v1/models")[1])["data"][0]["id"]
    asked = {"model": model, "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    texts = [completed(mesh.url, prompt=prompt, **asked) for prompt in prompts]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["src"] for each in found] == prompts and [each["output"] for each in found] == texts
    assert {each["finish_reason"] for each in found} == {"length"}
    assert "100% read, 3 answers, " in done.stderr and "tokens/s" in done.stderr


def test_what_the_server_refuses_is_named_and_the_rest_goes_on(mesh: RunningMesh) -> None:
    done = generated("--file=-", "--max-tokens=4", "--chat", f"--url={mesh.url}", stdin=f"Hi\n{'long ' * 9000}\nHo\n")
    assert done.returncode == 1
    assert "specmesh: line 2: 400 " in done.stderr and "2 answers" in done.stderr
    assert len(done.stdout.split("\n")) == 4


def test_one_prompt_is_answered_by_a_mesh_of_its_own() -> None:
    done = generated("The sea", "--engine=mock", f"--mock-profile={MOCK}", "--max-tokens=8", "--ignore-eos")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() and "starting a mesh" in done.stderr and "1 answers, " in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "give a PROMPT, or --file FILE"),
        (("Hi", "--file=a"), "give a PROMPT, or --file FILE"),
        (("--file=/no/such/file",), "No such file"),
        (("Hi", "--url=http://127.0.0.1:9", "--dtype=float32"), "leave out --dtype"),
        (("Hi", "--url=http://127.0.0.1:9"), "cannot reach http://127.0.0.1:9"),
    ],
)
def test_what_cannot_be_done_is_said(words: tuple[str, ...], said: str) -> None:
    done = generated(*words)
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr
