"""The steps of a guide, done in a copy of the sources; and what the mesh that runs from it is asked."""

from __future__ import annotations

import ast
import json
import re
import urllib.request
from pathlib import Path
from typing import Any

from copied_sources import copy_sources

from bench.running_mesh import RunningMesh

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"<!-- run by \S+: (file|row) (\S+) -->\n```python\n(.*?)```", re.DOTALL)


def followed(page: Path, folder: Path, before: str) -> tuple[list[str], list[str]]:
    """The names of new files, and rows with the name of their file: a row stands in its table before this text."""
    copy_sources(folder)
    files, rows = [], []
    for kind, name, text in BLOCK.findall(page.read_text()):
        path = folder / name
        assert path.exists() == (kind == "row"), name
        if kind == "file":
            path.write_text(text)
            files.append(name)
        else:
            table = path.read_text()
            assert table.count(before) >= 1
            place = table.index(before)
            path.write_text(table[:place] + text + table[place:])
            rows.append(name)
        ast.parse(path.read_text())
    return files, rows


def completed(mesh: RunningMesh, model: str, method: str, prompt: str, **more: Any) -> str:
    """The greedy answer. Text that is learned would be drafted better from."""
    speculation = {"method": method, "learn": False}
    body = {"model": model, "prompt": prompt, "temperature": 0, "speculation": speculation, **more}
    head = {"content-type": "application/json"}
    request = urllib.request.Request(f"{mesh.url}/v1/completions", json.dumps(body).encode(), head)
    with urllib.request.urlopen(request, timeout=60) as answer:
        said: dict[str, Any] = json.load(answer)
    return str(said["choices"][0]["text"])


def drafted(mesh: RunningMesh, source: str) -> float:
    """Tokens that were verified and came from the new drafter."""
    return mesh.by_label("worker", "specmesh:draft_source_tokens_total", "source").get(source, 0.0)
