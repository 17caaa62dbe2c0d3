"""The store is copied by the commands of docs/operate/operating.md while answers are learned, and another mesh goes on
with the copy."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import threading
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest
from printed import printed_blocks
from running_mesh import MOCK, RunningMesh, running_mesh, until

STORE = Path(".cache", "specmesh", "store")


def asked(mesh: RunningMesh, prompt: str) -> str:
    body = {"model": "smollm2-135m-instruct", "prompt": prompt, "max_tokens": 100, "temperature": 0, "ignore_eos": True}
    head = {"content-type": "application/json"}
    request = urllib.request.Request(f"{mesh.url}/v1/completions", json.dumps(body).encode(), head)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(json.load(answer)["choices"][0]["text"])


def learned(mesh: RunningMesh) -> float:
    """Tokens on disk, in segments and not in segments yet."""
    told = mesh.metrics("proposer")
    return told["specmesh:store_tokens"] + told["specmesh:store_learning_tokens"]


def on_disk(home: Path) -> int:
    """Tokens in the database: what came in the last second may not be there yet."""
    [database] = (home / STORE).glob("*/library.db")
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        return int(connection.execute("SELECT IFNULL(SUM(length), 0) FROM pieces").fetchone()[0])


def typed(commands: list[str], home: Path) -> None:
    for command in commands:
        done = subprocess.run(["bash", "-c", command], cwd=home, env={**os.environ, "HOME": str(home)}, timeout=60)
        assert done.returncode == 0, command


@pytest.mark.slow
def test_a_copy_that_is_taken_while_texts_are_learned_is_gone_on_with(tmp_path: Path) -> None:
    copy, restore = printed_blocks("docs/operate/operating.md", Path(__file__))
    home = tmp_path / "home"
    home.mkdir()
    settings = {"engine": "mock", "mock_profile": MOCK}
    with running_mesh(home, **settings, store_dir=home / STORE) as mesh:
        for number in range(30):
            asked(mesh, f"text {number}")
        until(lambda: on_disk(home) >= 2000, 20.0, why=lambda: on_disk(home))
        before = on_disk(home)
        over = threading.Event()

        def ask_on() -> None:
            for number in range(10**6):
                if over.is_set():
                    return
                asked(mesh, f"later {number}")

        asking = threading.Thread(target=ask_on)
        asking.start()
        try:
            typed(copy, home)
        finally:
            over.set()
            asking.join()
    other = tmp_path / "other"
    other.mkdir()
    (home / "backup").rename(other / "backup")
    typed(restore, other)
    with running_mesh(other, **settings, store_dir=other / STORE) as mesh:
        asked(mesh, "the vocabulary is known now")
        until(lambda: learned(mesh) >= before, 20.0, why=lambda: (learned(mesh), before))
        assert mesh.metrics("proposer").get("specmesh:store_damaged_files_total", 0) == 0
