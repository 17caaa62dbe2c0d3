"""docs/internals/add-a-drafter.md, followed word for word in a copy of the sources: one file and one row, and the
new method is served, in `hybrid` and `auto`, too."""

from __future__ import annotations

import ast
import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from copied_sources import copy_sources

from bench.running_mesh import RunningMesh

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "internals" / "add-a-drafter.md"
BLOCK = re.compile(r"<!-- run by \S+: (file|row) (\S+) -->\n```python\n(.*?)```", re.DOTALL)


def complete(mesh: RunningMesh, method: str) -> str:
    body = {
        "model": "smollm2-135m-instruct", "prompt": "once upon a time", "max_tokens": 20, "temperature": 0,
        # Text that is learned is drafted better from.
        "speculation": {"method": method, "learn": False},
    }  # fmt: skip
    head = {"content-type": "application/json"}
    request = urllib.request.Request(f"{mesh.url}/v1/completions", json.dumps(body).encode(), head)
    with urllib.request.urlopen(request, timeout=60) as answer:
        said: dict[str, Any] = json.load(answer)
    return str(said["choices"][0]["text"])


def drafted(mesh: RunningMesh) -> float:
    """Tokens that were verified and came from the new drafter."""
    return mesh.by_label("worker", "specmesh:draft_source_tokens_total", "source").get("echo", 0.0)


def followed(folder: Path) -> list[Path]:
    """A copy of the sources in which the page's steps are done. The files that they changed."""
    copy_sources(folder)
    changed = []
    for kind, name, text in BLOCK.findall(PAGE.read_text()):
        path = folder / name
        if kind == "file":
            assert not path.exists(), "a drafter is a file of its own"
            path.write_text(text)
        else:
            table = path.read_text()
            place = table.index("        Method(\n", table.index("METHODS"))
            path.write_text(table[:place] + text + table[place:])
        changed.append(path)
    return changed


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMesh]:
    root = tmp_path_factory.mktemp("sources")
    file, table = followed(root)
    for path in (file, table):
        ast.parse(path.read_text())
    settings = {
        "engine": "mock", "mock_profile": '{"step_ms": 5, "vocab_size": 49152}',
        "method": "echo", "hybrid_first": "echo", "hybrid_then": "ngram", "draft_deadline_ms": 5000,
    }  # fmt: skip
    running = RunningMesh(tmp_path_factory.mktemp("mesh"), settings, root=root)
    try:
        running.wait_until_ready()
        yield running
    finally:
        running.stop()


@pytest.mark.model
@pytest.mark.parametrize("method", ["echo", "hybrid", "auto"])
def test_a_drafter_that_was_added_as_the_page_says_is_served(mesh: RunningMesh, method: str) -> None:
    before, plain = drafted(mesh), complete(mesh, "naive")
    # auto waits for drafts no longer than that pays: on a busy machine the first answers may come too late.
    for _ in range(40):
        assert complete(mesh, method) == plain, "law 3"
        if drafted(mesh) > before:
            return
    raise AssertionError(f"{method} never asked the drafter")
