"""A worker's model over several processes: the same text as one, and an end for all when one of them ends or hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from driving import Guess, request, run_all
from ranks import borders
from running_mesh import has_ended, until
from tiny_folder import write_tiny_model

from models.batch import Stretch
from models.errors import ModelError
from models.group import RankLost
from services.worker.parallel.executor import ParallelExecutor
from services.worker.parallel.ranks import Ranks
from services.worker.running import load_torch_model as loading
from services.worker.running.load_torch_model import Wanted, load_torch_model
from services.worker.running.torch_model import TorchModel
from services.worker.running.torch_runner import TorchRunner
from services.worker.scheduling.sequence import Sequence

PROMPT = [5, 9, 200, 17, 30, 31, 32, 5, 9, 200]


@contextmanager
def closed_behind() -> Iterator[list[Ranks]]:
    """Ranks that are started meanwhile end with this."""
    made: list[Ranks] = []

    class Kept(Ranks):
        def __init__(self, *arguments: Any) -> None:
            made.append(self)
            super().__init__(*arguments)

    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loading, "Ranks", Kept)
            yield made
    finally:
        for ranks in made:
            ranks.close()


@contextmanager
def loaded(folder: Path, lost: Any = print, **changes: Any) -> Iterator[tuple[TorchModel, Ranks | None]]:
    options: dict[str, Any] = {"dtype": "float32", "threads": 2, "page_tokens": 16, "kv_cache_mb": 8}
    with closed_behind() as made:
        model = load_torch_model(folder, Wanted(**(options | changes)), lost=lost)
        yield model, made[0] if made else None


def said(model: TorchModel, count: int = 40) -> list[int]:
    """A greedy text, with a page that is copied on the way."""
    text, fresh, pages = list(PROMPT), list(PROMPT), [3, 1, 7, 2]
    for step in range(count):
        start = len(text) - len(fresh)
        if step == 10:
            model.copy_page(pages[1], 9)
            pages[1] = 9
        logits = model.forward([Stretch(fresh, start, pages, len(fresh) - 1)]).logits
        fresh = [int(logits[0].argmax())]
        text += fresh
    return text


@pytest.mark.parametrize(
    ("executor", "sig", "told"), [("plain", signal.SIGKILL, "rank"), ("compiled", signal.SIGSTOP, "rank 0 of 2")]
)
def test_two_processes_say_what_one_says_and_one_that_is_killed_or_stopped_is_noticed(
    executor: str, sig: signal.Signals, told: str, tmp_path: Path
) -> None:
    write_tiny_model(tmp_path)
    lost, noticed = [], threading.Event()

    def note(reason: str) -> None:
        lost.append(reason)
        noticed.set()

    with torch.inference_mode():
        with loaded(tmp_path, executor=executor, strict=False) as (model, _):
            expected, facts = said(model), model.facts
        with loaded(tmp_path, note, executor=executor, strict=False, ranks=2) as (model, ranks):
            assert ranks is not None and isinstance(model.executor, ParallelExecutor)
            assert said(model) == expected
            assert model.facts.path == f"2 ranks: {facts.path}"
            # A token's keys and values are shared out, and so is the memory.
            assert (model.facts.parameters, model.facts.pages) == (facts.parameters, facts.pages)

            model.executor.hurry(3.0)
            assert lost == []
            os.kill(ranks.processes.running[0].pid, sig)
            with pytest.raises(RankLost):
                said(model)
            assert noticed.wait(30)
    assert len(lost) == 1 and told in lost[0]


@pytest.mark.parametrize(("executor", "count"), [("plain", 2), ("compiled", 3)])
def test_tokens_at_the_borders_of_shares_are_drafted_accepted_and_emitted_as_by_one_process(
    executor: str, count: int, tmp_path: Path
) -> None:
    """No other tokens are in these texts."""
    write_tiny_model(tmp_path)
    edges = borders(304, count)
    wanted = [
        request([*edges[at:], *edges], name=str(at), max_tokens=40, ignore_eos=True, temperature=2.0, seed=at,
                allowed_token_ids=edges)
        for at in range(4)
    ]  # fmt: skip

    def texts(model: TorchModel, guess: Guess | None = None) -> tuple[list[list[int]], int]:
        outcomes, scheduler = run_all(TorchRunner(model), wanted, guess)
        return [each.ids for each in outcomes], sum(each.accepted for each in scheduler.tallies.values())

    with loaded(tmp_path, executor=executor, strict=False) as (model, _):
        expected, _ = texts(model)
    assert {token for text in expected for token in text} == {*edges}

    def guess(sequence: Sequence, budget: int) -> list[int]:
        """What comes next, and every fifth time another border at its end."""
        right = expected[int(sequence.request_id)][sequence.generated :][:budget]
        return right if sequence.length % 5 else [*right[:-1], edges[sequence.length % len(edges)]]

    with loaded(tmp_path, executor=executor, strict=False, ranks=count) as (model, _):
        assert isinstance(model.executor, ParallelExecutor)
        assert texts(model)[0] == expected
        found, accepted = texts(model, guess)
    assert found == expected and accepted > 100


LOADS = """
import sys, time
from pathlib import Path
from services.worker.running import load_torch_model as loading
class Kept(loading.Ranks):
    def executor(self, own):
        print(self.processes.running[0].pid, flush=True)
        return super().executor(own)
loading.Ranks = Kept
loading.load_torch_model(Path(sys.argv[1]), loading.Wanted(executor="plain", threads=1, kv_cache_mb=8, ranks=2))
print("loaded", flush=True)
sys.stdin.read()
"""


def test_a_rank_ends_with_its_worker_also_one_that_is_stopped(tmp_path: Path) -> None:
    write_tiny_model(tmp_path)
    command = [sys.executable, "-c", LOADS, str(tmp_path)]
    root = Path(loading.__file__).parents[3]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root, text=True) as worker:
        assert worker.stdout is not None
        pid = int(worker.stdout.readline())
        assert worker.stdout.readline() == "loaded\n"
        os.kill(pid, signal.SIGSTOP)
        worker.kill()
    until(lambda: has_ended(pid), 30.0, why=lambda: f"{pid} is left")


def test_a_model_that_cannot_be_shared_out_is_refused_by_name(tmp_path: Path) -> None:
    write_tiny_model(tmp_path)
    with pytest.raises(ModelError, match="tensor_parallel_size is 5, and the model has 4 query heads") as error:
        load_torch_model(tmp_path, Wanted(ranks=5, threads=1))
    assert "1 to 4" in error.value.fix
