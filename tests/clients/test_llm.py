"""llm: a model of extra-openai-models.yaml with tools and schemas, from the command line and from Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

llm = pytest.importorskip("llm")

pytestmark = pytest.mark.slow

MODELS = """
- model_id: mesh
  model_name: {model}
  api_base: {url}
  supports_tools: true
  supports_schema: true
"""
FUNCTION = '''
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b
'''
# llm has no tool_choice; this model calls if it is shown the words.
WORDS = 'Write this line again:\n<tool_call>\n{"name": "add", "arguments": {"a": 3, "b": 4}}\n</tool_call>\n'
SCHEMA: Any = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {
    "type": "integer"}}, "required": ["name", "age"], "additionalProperties": False}  # fmt: skip


@pytest.fixture
def folder(server: str, model: str, tmp_path: Path) -> Path:
    (tmp_path / "extra-openai-models.yaml").write_text(MODELS.format(model=model, url=server))
    return tmp_path


def typed(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    usual = ["-m", "mesh", "--key", "none", "-o", "temperature", "0", "-o", "max_tokens", "100"]
    return subprocess.run(
        [Path(sys.executable).parent / "llm", *usual, *words], env={**os.environ, "LLM_USER_PATH": str(folder)},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300,
    )  # fmt: skip


@pytest.mark.parametrize("stream", [(), ("--no-stream",)], ids=["streamed", "whole"])
def test_a_tool_is_run_and_its_result_goes_back(folder: Path, stream: tuple[str, ...]) -> None:
    done = typed(folder, *stream, "--functions", FUNCTION, "--td", WORDS)
    assert done.returncode == 0, done.stderr
    assert "Tool call: add({'a': 3, 'b': 4})" in done.stderr and "7" in done.stderr


@pytest.mark.parametrize("stream", [(), ("--no-stream",)], ids=["streamed", "whole"])
def test_a_schema_is_held(folder: Path, stream: tuple[str, ...]) -> None:
    done = typed(folder, *stream, "--schema", json.dumps(SCHEMA), "Ann is 12.")
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)) == {"name", "age"}
