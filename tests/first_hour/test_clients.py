"""Clients as their own pages show them. Those that aren't installed are skipped by name."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
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


def test_langchain_openai(mock_mesh: RunningMesh, ended: Ended) -> None:
    langchain = pytest.importorskip("langchain_openai")
    chat = langchain.ChatOpenAI(model=MODEL, base_url=mock_mesh.url + "/v1", api_key="none", max_tokens=4)
    assert chat.invoke("hi").content
    ended("worked")


def test_litellm(mock_mesh: RunningMesh, ended: Ended) -> None:
    litellm = pytest.importorskip("litellm")
    answer = litellm.completion(
        model=f"openai/{MODEL}", api_base=mock_mesh.url + "/v1", api_key="none", messages=HI, max_tokens=4
    )
    assert answer.choices[0].message.content
    ended("worked")


def test_llm(mock_mesh: RunningMesh, tmp_path: Path, ended: Ended) -> None:
    pytest.importorskip("llm")
    command = shutil.which("llm")
    if command is None:
        pytest.skip("llm has no command here")
    text = f"- model_id: mesh\n  model_name: {MODEL}\n  api_base: {mock_mesh.url}/v1\n"
    (tmp_path / "extra-openai-models.yaml").write_text(text)
    done = subprocess.run(
        [command, "-m", "mesh", "--key", "none", "--no-stream", "hi"],
        env={**os.environ, "LLM_USER_PATH": str(tmp_path)}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout.strip(), done.stderr
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
