"""docs/internals/add-a-sampling-parameter.md, followed word for word in a copy of the sources: the parameter is
described, checked and heeded by the real model, and the page's own test passes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from copied_sources import copy_sources

from bench.running_mesh import RunningMesh

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "internals" / "add-a-sampling-parameter.md"
BLOCK = re.compile(r'<!-- run by \S+: (file|row) (\S+)(?: before "([^"\n]*)")? -->\n```python\n(.*?)```', re.DOTALL)
# Nothing but the most probable token is left.
TINY = 1e-6


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = copy_sources(tmp_path_factory.mktemp("sources"))
    steps = BLOCK.findall(PAGE.read_text())
    assert [kind for kind, *_ in steps] == ["row", "row", "row", "file"]
    for kind, name, anchor, text in steps:
        path = folder / name
        before = path.read_text() if kind == "row" else ""
        place = before.index(anchor)
        path.write_text(before[:place] + text + before[place:])
    return folder


@pytest.fixture(scope="module")
def mesh(copy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMesh]:
    running = RunningMesh(tmp_path_factory.mktemp("mesh"), {"method": "naive"}, root=copy)
    try:
        running.wait_until_ready()
        yield running
    finally:
        running.stop()


def complete(mesh: RunningMesh, **more: float) -> str:
    body = {"model": "smollm2-135m-instruct", "prompt": "once upon a time", "max_tokens": 24, "seed": 5, **more}
    head = {"content-type": "application/json"}
    request = urllib.request.Request(f"{mesh.url}/v1/completions", json.dumps(body).encode(), head)
    with urllib.request.urlopen(request, timeout=60) as answer:
        said: dict[str, Any] = json.load(answer)
    return str(said["choices"][0]["text"])


def described(document: Any, name: str) -> list[dict[str, Any]]:
    """Wherever the document has a field of this name."""
    if isinstance(document, list):
        return [found for each in document for found in described(each, name)]
    if not isinstance(document, dict):
        return []
    here = [document[name]] if isinstance(document.get(name), dict) else []
    return here + [found for each in document.values() for found in described(each, name)]


@pytest.mark.slow  # the copy's loops are compiled anew
@pytest.mark.model
def test_a_parameter_that_was_added_as_the_page_says_is_described_checked_and_heeded(mesh: RunningMesh) -> None:
    with urllib.request.urlopen(f"{mesh.url}/openapi.json", timeout=60) as answer:
        told = described(json.load(answer), "max_gap")
    assert told and all((each["minimum"], each["maximum"]) == (0, 100) for each in told)
    with pytest.raises(urllib.error.HTTPError) as refused:
        complete(mesh, max_gap=101)
    assert json.load(refused.value)["error"]["param"] == "max_gap"

    greedy = complete(mesh, temperature=0)
    assert complete(mesh, temperature=1.5) != greedy
    assert complete(mesh, temperature=1.5, max_gap=TINY) == greedy


@pytest.mark.slow  # here, too
def test_the_test_of_the_page_passes(copy: Path) -> None:
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_max_gap.py"]
    environment = os.environ | {"PYTHONPATH": str(copy)}
    ran = subprocess.run(command, cwd=copy, capture_output=True, text=True, timeout=300, env=environment)
    assert ran.returncode == 0 and "1 passed" in ran.stdout, ran.stdout[-3000:]
