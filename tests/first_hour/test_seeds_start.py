"""The seeds' commands, started: each serves a tiny model of the family that it names, with the drafter that it names.

Changed is what this machine lacks: folders for hub ids, one process where there were four GPUs, free ports.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from player import Ended, Start, asked, corrected, typed
from seeds_read import FOLDER, text_of, words_of
from tiny_families import write_families

from bench.running_mesh import free_ports
from services.cli.explain_command import translations
from services.cli.main import parser

pytestmark = pytest.mark.slow

PASTED = (
    "fastdeploy-mtp", "fastdeploy-mtp-and-ngram", "fastdeploy-ngram", "fastdeploy-older-ngram", "fastdeploy-suffix",
    "fastdeploy-naive", "fastdeploy-greedy", "fastdeploy-accept-all", "fastdeploy-wint4-drafter", "lmdeploy-eagle3",
    "lmdeploy-mtp", "paddlenlp-reference",
)  # fmt: skip
# What `explain` makes of them is started.
TRANSLATED = ("fastdeploy-prefill", "paddlenlp-mtp-one-machine")
PORTS = ("--port", "--server-port", "--metrics-port")


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return write_families(tmp_path_factory.mktemp("families"))


def here(words: list[str], families: dict[str, str], folder: Path) -> list[str]:
    """The command for this machine."""
    found = []
    before = ""
    for word in words:
        for theirs, ours in families.items():
            word = word.replace(theirs, ours)
        if before in ("--tensor-parallel-size", "--tp"):
            word = "1"
        if before == "--config":
            file = folder / Path(word).name
            text = (FOLDER / word).read_text()
            file.write_text(text.replace("tensor_parallel_size: 4", "tensor_parallel_size: 1"))
            word = str(file)
        found.append(word)
        before = word
    return list(_without_ports(found))


def _without_ports(words: list[str]) -> Iterator[str]:
    is_port = False
    for word in words:
        if not is_port and word not in PORTS:
            yield word
        is_port = word in PORTS


def answered(words: list[str], folder: Path, executor: str = "plain") -> dict[str, Any]:
    """Starts it, and asks for a completion."""
    ports = free_ports(24)
    own = ["--run-dir", str(folder / "run"), "--store-dir", "none", "--executor", executor]
    start = Start(folder, "up", *words, *own, f"--port={ports}", f"--metrics-port={ports + 1}")
    try:
        assert start.ready(), start.text
        status, text = asked(start.url(), "GET", "/v1/models")
        assert status == 200, text
        model = json.loads(text)["data"][0]["id"]
        body = {"model": model, "prompt": "w1 w2 w3 w1 w2 w3", "max_tokens": 12, "temperature": 0, "ignore_eos": True}
        status, text = asked(start.url(), "POST", "/v1/completions", body)
        assert status == 200, text
    finally:
        start.stop()
    assert start.process.returncode == 0, start.text[-2000:]
    return dict(json.loads(text))


def executor_for(seed: str) -> str:
    """plain starts at once, and computes no int8."""
    return "compiled" if seed in ("fastdeploy-wint4-drafter", "paddlenlp-mtp-one-machine") else "plain"


def drafted(answer: dict[str, Any]) -> int:
    return int(answer.get("metrics", {}).get("speculative_decoding", {}).get("num_draft_tokens", 0))


@pytest.mark.parametrize("seed", PASTED)
def test_a_pasted_command_serves(seed: str, families: dict[str, str], tmp_path: Path, ended: Ended) -> None:
    words = here(words_of(seed)[0], families, tmp_path)
    # LMDeploy's model has no flag, and this command no other word.
    first = typed("config", "show", "--changed", *([] if words[0].startswith("-") else ["--model"]), *words)
    if first.code:
        words = corrected(words, first.text)
    answer = answered(words, tmp_path, executor_for(seed))
    assert answer["usage"]["completion_tokens"] == 12
    if seed == "fastdeploy-naive":
        assert drafted(answer) == 0
    # FastDeploy's MTP with n-grams is `auto`, which may find that drafts don't pay here.
    elif seed != "fastdeploy-mtp-and-ngram":
        assert drafted(answer) > 0
    ended("said what to do" if first.code else "worked")


@pytest.mark.parametrize("seed", TRANSLATED)
def test_a_translated_command_serves(seed: str, families: dict[str, str], tmp_path: Path, ended: Ended) -> None:
    up = parser().parse_args(["explain"]).parser.commands["up"]
    (found,) = translations(text_of(seed).replace("--config ./", f"--config {FOLDER}/"), up)
    _, _, _, *words = shlex.split(found.commands[0])
    answer = answered(here(words, families, tmp_path), tmp_path, executor_for(seed))
    assert answer["usage"]["completion_tokens"] == 12
    assert drafted(answer) > 0
    ended("said what to do")
