"""Clients as their own pages show them: openai as it is installed here, others in an environment of their own."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from client_packages import Clients, NoClients, clients
from player import MODEL, Ended
from running_mesh import RunningMesh

pytestmark = pytest.mark.slow

HI = [{"role": "user", "content": "hi"}]


def test_openai(mock_mesh: RunningMesh, ended: Ended) -> None:
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=mock_mesh.url + "/v1", api_key="none", max_retries=0)
    assert [model.id for model in client.models.list()] == [MODEL]
    answer = client.chat.completions.create(model=MODEL, messages=HI, max_tokens=8)
    assert answer.choices[0].message.content
    stream = client.completions.create(
        model=MODEL, prompt="hi", max_tokens=8, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert chunks[-1].usage.completion_tokens == 8
    ended("worked")


def test_openai_with_a_base_url_without_v1(mock_mesh: RunningMesh, ended: Ended) -> None:
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=mock_mesh.url, api_key="none", max_retries=0)
    with pytest.raises(openai.NotFoundError) as refused:
        client.chat.completions.create(model=MODEL, messages=HI, max_tokens=4)
    (end,) = re.findall(r"base URL of clients of OpenAI's API ends in (/\w+)", str(refused.value))
    again = openai.OpenAI(base_url=mock_mesh.url + end, api_key="none", max_retries=0)
    assert again.chat.completions.create(model=MODEL, messages=HI, max_tokens=4).choices
    ended("said what to do")


def test_openai_with_the_field_of_vllm(mock_mesh: RunningMesh, ended: Ended) -> None:
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=mock_mesh.url + "/v1", api_key="none", max_retries=0)
    extra = {"top_k": 20, "repetition_penalty": 1.05, "min_tokens": 2, "return_token_ids": True}
    answer = client.chat.completions.create(model=MODEL, messages=HI, max_tokens=4, extra_body=extra)
    assert len(answer.choices[0].token_ids) == 4
    ended("worked")


@pytest.fixture(scope="module")
def others() -> Clients:
    """Clients that are in no environment of ours."""
    try:
        return clients()
    except (NoClients, OSError, subprocess.SubprocessError) as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def langchain(others: Clients, mock_mesh: RunningMesh) -> dict[str, Any]:
    return others.answers("with_langchain.py", mock_mesh.url, MODEL)


@pytest.fixture(scope="module")
def litellm(others: Clients, mock_mesh: RunningMesh) -> dict[str, Any]:
    return others.answers("with_litellm.py", mock_mesh.url, MODEL)


@pytest.mark.parametrize("library", ["langchain", "litellm"])
def test_a_library_for_servers_like_openais(library: str, request: pytest.FixtureRequest, ended: Ended) -> None:
    said = request.getfixturevalue(library)
    assert said["text"] and said["streamed"] == said["text"] and said["finish_reason"] == "length"
    counted = {name: count for name, count in said["usage"].items() if isinstance(count, int)}
    assert 8 in counted.values() and max(counted.values()) == counted["total_tokens"] > 8
    assert len(said["streamed_usage"]) == 1
    assert said["choices"] == 2
    assert said["seeded"][0] == said["seeded"][1]
    assert [len(each["top_logprobs"]) for each in said["logprobs"]] == [2] * 4
    assert all(each["logprob"] <= 0 for each in said["logprobs"])
    assert said["completion"] and said["method"]
    # Up to the stop, which was cut out of the same answer.
    assert said["stopped"] == said["text"][:1]
    assert said["model"].startswith("404 ") and f"this server has '{MODEL}'" in said["model"]
    ended("worked")


def test_langchain_calls_in_a_batch_and_tools(langchain: dict[str, Any], ended: Ended) -> None:
    said = langchain
    assert said["batch"] == [said["text"]] * 2 and said["with_a_system_message"]
    assert said["completion_streamed"] == said["completion"]
    assert said["streamed_usage"][0]["output_tokens"] == said["usage"]["output_tokens"] == 8
    # Told of a tool, it is asked something else.
    assert said["tools"] and said["tools"] != said["text"]
    ended("worked")


def test_litellm_says_how_many_tokens_fit_and_has_a_name_for_such_servers(
    litellm: dict[str, Any], ended: Ended
) -> None:
    said = litellm
    assert said["too_long"].startswith("400 ") and "at most" in said["too_long"]
    assert said["hosted"] == said["text"]
    assert said["streamed_usage"] == [said["usage"]["completion_tokens"]] == [8]
    ended("worked")


LLM = """
- model_id: mesh
  model_name: {model}
  api_base: {url}/v1
- model_id: mesh-text
  model_name: {model}
  api_base: {url}/v1
  completion: true
"""


def test_llm(others: Clients, mock_mesh: RunningMesh, tmp_path: Path, ended: Ended) -> None:
    (tmp_path / "extra-openai-models.yaml").write_text(LLM.format(model=MODEL, url=mock_mesh.url))

    def llm(*words: str) -> subprocess.CompletedProcess[str]:
        return others.run("llm", *words, LLM_USER_PATH=str(tmp_path))

    usual = ("--key", "none", "-o", "max_tokens", "8", "-o", "temperature", "0")
    streamed = llm("-m", "mesh", *usual, "--usage", "hi")
    assert streamed.returncode == 0 and streamed.stdout.strip(), streamed.stderr
    assert re.search(r"\d+ input, 8 output", streamed.stderr)
    assert llm("-m", "mesh", *usual, "--no-stream", "hi").stdout == streamed.stdout
    # With what was said before.
    assert llm("--continue", "--key", "none", "-o", "max_tokens", "8", "and?").returncode == 0
    # In chats only it asks for the usage.
    logged = json.loads(llm("logs", "list", "--json", "-n", "3").stdout)
    assert [each["output_tokens"] for each in logged] == [8] * 3
    assert logged[0]["input_tokens"] == logged[1]["input_tokens"] < logged[2]["input_tokens"]
    assert llm("-m", "mesh-text", *usual, "one two three one two").stdout.strip()
    refused = llm("-m", "mesh", "--key", "none", "-o", "logit_bias", '{"1": 900}', "hi")
    assert refused.returncode != 0 and "logit_bias" in refused.stderr
    ended("worked")


def test_curl(mock_mesh: RunningMesh, ended: Ended) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    body = f'{{"model": "{MODEL}", "prompt": "hi", "max_tokens": 4}}'
    done = subprocess.run(
        ["curl", "-sf", f"{mock_mesh.url}/v1/completions", "-H", "Content-Type: application/json", "-d", body],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0 and "text_completion" in done.stdout
    ended("worked")
