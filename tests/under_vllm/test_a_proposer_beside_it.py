"""The class as vLLM makes and calls it, with a proposer in a process of its own beside it."""

from __future__ import annotations

import json
import logging
import os
import random
import string
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from models.sources import ensure_model
from services.api.settings import Settings, cache_dir
from services.cli.main import main as command

ROOT = Path(__file__).resolve().parents[2]
LONG_S = 60.0
REPEATED = [*range(100, 130)] * 130


class Proposer:
    """`specmesh run proposer` alone, with a store."""

    def __init__(self, folder: Path) -> None:
        self.run_dir, self.folder = folder / "run", folder
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SPECMESH_")}
        settings = {
            "RUN_DIR": str(self.run_dir), "HOST_DIRECTORY": "true", "INSTANCE": "proposer", "METRICS_PORT": "-1",
            "STORE_DIR": str(self.folder / "store"), "PROPOSER_INDEX": "plain",
        }  # fmt: skip
        environment = kept | {"PYTHONPATH": str(ROOT)} | {f"SPECMESH_{name}": value for name, value in settings.items()}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "services.cli", "run", "proposer"], env=environment, cwd=ROOT,
            stdout=(self.folder / "log").open("ab"), stderr=subprocess.STDOUT,
        )  # fmt: skip

    def worker(self) -> int:
        """The process that drafts is a child of the one that was started."""
        assert self.process is not None
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0]) if children else self.process.pid

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(30)
            self.process = None


@pytest.fixture
def proposer(tmp_path: Path) -> Iterator[Proposer]:
    started = Proposer(tmp_path)
    started.start()
    yield started
    started.stop()


def drafter(proposer: Proposer, monkeypatch: pytest.MonkeyPatch, rank: int = 0, tokenizer: str = "nobody/words") -> Any:
    from specmesh.vllm import Drafter

    monkeypatch.setenv("SPECMESH_RUN_DIR", str(proposer.run_dir))
    monkeypatch.setenv("DRAFTS_DEBUG", "1")
    config = SimpleNamespace(
        parallel_config=SimpleNamespace(rank=rank, tensor_parallel_size=2),
        model_config=SimpleNamespace(
            tokenizer=tokenizer, tokenizer_revision=None, model="words", served_model_name=["m"],
            max_model_len=4096,
        ),
        speculative_config=SimpleNamespace(num_speculative_tokens=8),
    )  # fmt: skip
    made = Drafter(config)
    made.load_model(None)
    return made


def until_accepted(made: Any, text: list[int], at: int, more: int) -> tuple[int, int]:
    """Go on until so many more tokens were accepted; the text's new length, and the steps."""
    tokens = np.zeros((1, 8192), np.int32)
    tokens[0, : len(text)] = text
    wanted = made.drafting.figures.accepted + more
    draft, steps, until = [], 0, time.monotonic() + LONG_S
    while made.drafting.figures.accepted < wanted:
        assert time.monotonic() < until and at + 10 < 4096, made.drafting.figures
        new = []
        for token in [*draft, -1]:
            new.append(text[at + len(new)])
            if token != new[-1]:
                break
        at, steps = at + len(new), steps + 1
        [draft] = made.propose([new], np.array([at]), tokens, slot_mappings=None)
        if not draft:
            # A step of the model.
            time.sleep(0.005)
    return at, steps


def until_answered(made: Any, text: list[int], at: int) -> None:
    until = time.monotonic() + LONG_S
    while not made.drafting.figures.answered:
        assert time.monotonic() < until
        made.propose([[text[at - 1]]], np.array([at]), np.array([text], np.int32))
        time.sleep(0.02)


@pytest.mark.slow
def test_drafts_come_from_it_and_go_on_after_it_was_killed(
    proposer: Proposer, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = drafter(proposer, monkeypatch)
    at, _ = until_accepted(made, REPEATED, 40, 100)
    os.kill(proposer.worker(), 9)
    # What was known at that moment still serves.
    until_accepted(made, REPEATED, at, 200)
    assert made.drafting.figures.mistakes == 0 and made.drafting.figures.missed > 0


@pytest.mark.slow
def test_what_was_learned_is_there_when_both_have_started_again(
    proposer: Proposer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text that never repeats itself can only be drafted from what was learned of it."""
    once, until = [*range(1000, 4000)], time.monotonic() + LONG_S
    made = drafter(proposer, monkeypatch)
    until_answered(made, once, 50)
    tokens = np.array([once], np.int32)
    for length in range(51, 200):
        made.propose([[once[length - 1]]], np.array([length]), tokens)
    # When no call comes for some time, the proposer is told that the text has ended.
    while made.drafting._questions.untold or len(made.drafting._rows):
        assert time.monotonic() < until
        time.sleep(0.1)
    assert made.drafting.figures.accepted == 0
    proposer.stop()
    proposer.start()
    made = drafter(proposer, monkeypatch)
    until_answered(made, once, 50)
    at, _ = until_accepted(made, once, 51, 30)
    assert at < 200


def test_only_the_first_rank_drafts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = drafter(Proposer(tmp_path), monkeypatch, rank=1)
    assert made.propose([[1], []], np.array([4, 2]), np.ones((2, 8), np.int32), slot_mappings=None) == [[], []]
    assert not hasattr(made, "drafting")


def test_vllms_log_says_what_was_drafted_and_how_long_a_step_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = drafter(Proposer(tmp_path), monkeypatch)
    figures = made.drafting.figures
    figures.steps, figures.drafted, figures.accepted, figures.missed = 4, 32, 20, 1
    figures.seconds, figures.waited_seconds = 0.01, 0.004
    with caplog.at_level(logging.INFO, "vllm.specmesh"):
        made._say()
    [said] = caplog.messages
    assert "4 steps, 32 tokens drafted, 20 accepted; a step took 2.50 ms here, of which 1.00 ms it waited" in said


def test_the_engines_process_loads_nothing_of_ours_and_little_of_others(tmp_path: Path) -> None:
    """A checkout's folder must not be on its path either: packages of vLLM's are named as our rooms are."""
    (tmp_path / "specmesh").symlink_to(ROOT / "specmesh")
    code = (
        "import json, sys; before = set(sys.modules); from specmesh.vllm import Drafter;"
        "print(json.dumps([sorted({name.partition('.')[0] for name in set(sys.modules) - before}), sys.path]))"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], env=environment | {"PYTHONPATH": str(tmp_path)}, capture_output=True,
        text=True, timeout=60, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    loaded, path = json.loads(done.stdout)
    # The last two are loaded by pyzmq.
    allowed = {"specmesh", "msgspec", "numpy", "zmq", "typing_extensions", "cython_runtime"}
    assert {name for name in loaded if not name.startswith("_")} <= allowed | set(sys.stdlib_module_names)
    assert str(ROOT) not in path


@pytest.mark.slow
def test_it_drafts_from_a_corpus_that_was_added_over_its_socket(
    proposer: Proposer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ensure_model("smollm2-135m-instruct", cache_dir(Settings.for_tests()))
    # Nothing that repeats itself.
    chance = random.Random(1)
    text = " ".join("".join(chance.choices(string.ascii_lowercase, k=9)) for _ in range(120))
    (tmp_path / "ships.txt").write_text(text)
    place = [f"--proposer=ipc://{proposer.run_dir}/proposer.sock", f"--tokenizer={model}", "--namespace=m"]
    until = time.monotonic() + LONG_S
    while command(["corpus", "list", *place]) != 0:
        assert time.monotonic() < until
    assert command(["corpus", "add", "ships", str(tmp_path / "ships.txt"), *place]) == 0
    assert "ships: ready" in capsys.readouterr().out
    made = drafter(proposer, monkeypatch, tokenizer=str(model))
    ids = Tokenizer.from_file(str(model / "tokenizer.json")).encode(text, add_special_tokens=False).ids
    until_answered(made, ids, 50)
    at, _ = until_accepted(made, ids, 51, 30)
    assert at < 200
    assert command(["corpus", "remove", "ships", *place]) == 0
    assert command(["corpus", "list", *place]) == 0 and "no corpora here" in capsys.readouterr().out
