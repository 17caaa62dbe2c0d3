"""The embedded model, in a folder whose authors suggest a sampling: what the box says, and what is answered."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from player import Ended, Start, asked, typed

from bench.running_mesh import free_ports
from models.sources import ensure_model
from services.api.settings import Settings, cache_dir

pytestmark = [pytest.mark.slow, pytest.mark.model]

PROMPT = {"model": "greedy", "prompt": "The sea is", "max_tokens": 12}


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    folder = tmp_path_factory.mktemp("up")
    settings = Settings.for_tests()
    model = folder / "greedy"
    shutil.copytree(ensure_model(settings.model, cache_dir(settings)), model)
    suggested = json.loads((model / "generation_config.json").read_text()) | {"temperature": 0, "top_p": 7}
    (model / "generation_config.json").write_text(json.dumps(suggested))
    ports = free_ports(8)
    start = Start(folder, "serve", str(model), "--dtype=float32", f"--run-dir={folder / 'run'}", "--store-dir=none",
                  f"--port={ports}", f"--metrics-port={ports + 1}")  # fmt: skip
    try:
        assert start.ready(), start.text
        yield start
    finally:
        start.stop()


def test_the_command_of_the_box_can_be_pasted(start: Start, ended: Ended) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    command = next(line for line in start.text.splitlines() if line.startswith("curl"))
    done = subprocess.run(shlex.split(command), capture_output=True, text=True, timeout=240)
    assert done.returncode == 0 and "data: [DONE]" in done.stdout
    ended("worked")


def test_requests_that_set_no_sampling_get_what_the_box_says(start: Start, ended: Ended) -> None:
    assert "Requests that set none get temperature 0" in start.text
    # A top_p of 7 is none.
    assert re.search(r"WARNING .*top_p 7 is ignored", start.text)
    texts = {asked_text(start, {}) for _ in range(3)} | {asked_text(start, {"temperature": 0})}
    assert len(texts) == 1
    sampled = {asked_text(start, {"temperature": 1.5, "seed": seed}) for seed in range(3)}
    assert len(sampled) > 1
    ended("worked")


def asked_text(start: Start, more: dict[str, float]) -> str:
    status, text = asked(start.url(), "POST", "/v1/completions", PROMPT | more)
    assert status == 200, text
    return str(json.loads(text)["choices"][0]["text"])


def test_the_reference_has_these_defaults(start: Start, ended: Ended) -> None:
    body = json.loads(asked(start.url(), "GET", "/openapi.json")[1])["paths"]["/v1/completions"]["post"]["requestBody"]
    fields = body["content"]["application/json"]["schema"]["properties"]
    assert (fields["temperature"]["default"], fields["top_p"]["default"]) == (0, 1)
    ended("worked")


@pytest.mark.parametrize("line", ["chat 'What is a mesh?' --max-tokens 8 --stats", "top --once", "doctor"])
def test_a_command_of_the_quick_start(line: str, start: Start, ended: Ended) -> None:
    wanted = r"--(port|metrics-port|run-dir)=" if line == "doctor" else r"--port="
    said = typed(*shlex.split(line), *(word for word in start.words if re.match(wanted, word)))
    assert said.code == 0, said.text
    ended("worked")


def test_eagle3_needs_no_folder_for_the_embedded_model(tmp_path: Path, ended: Ended) -> None:
    ports = free_ports(8)
    start = Start(tmp_path, "up", "--method", "eagle3", "--dtype=float32", "--store-dir=none",
                  f"--run-dir={tmp_path / 'run'}", f"--port={ports}", f"--metrics-port={ports + 1}")  # fmt: skip
    try:
        assert start.ready(), start.text
        assert "By method eagle3" in start.text
        body = {"model": "smollm2-135m-instruct", "prompt": "The sea is", "max_tokens": 24, "temperature": 0,
                "return_provenance": True}  # fmt: skip
        status, text = asked(start.url(), "POST", "/v1/completions", body)
        assert status == 200, text
        assert {run["source"] for run in json.loads(text)["choices"][0]["runs"]} <= {"", "eagle3"}
        assert json.loads(text)["metrics"]["speculative_decoding"]["num_draft_tokens"] > 0
    finally:
        start.stop()
    ended("worked")
