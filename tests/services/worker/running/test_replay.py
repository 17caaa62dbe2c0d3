"""Steps in a file: recorded, cut off, of something else, and run again."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from driving import one_step, repeat_what_followed, request
from paged_fake import PagedFake
from transformers import LlamaConfig, LlamaForCausalLM

from services.worker.running import replay
from services.worker.running.load_torch_model import Wanted, load_torch_model
from services.worker.running.mock import MockRunner, Profile
from services.worker.running.replay import LENGTH, Recorder, Step, read, run_again, tokens_of
from services.worker.running.runner import Runner
from services.worker.running.torch_runner import TorchRunner
from services.worker.running.work import Result, Verdict, Work
from services.worker.scheduling.events import Arrived
from services.worker.scheduling.limits import limits_of
from services.worker.scheduling.scheduler import Scheduler


def recorded(path: Path, runner: Runner, **limits: Any) -> list[Step]:
    """What some requests with drafts made of a runner, recorded there."""
    recorder, steps = Recorder(path), []
    scheduler = Scheduler(limits_of(runner.facts, **{"method": "ngram", **limits}))
    for number in range(6):
        prompt = [1 + token % 7 for token in range(number % 3 * 9 + 2)]
        scheduler.handle(Arrived(request(prompt, max_tokens=30, temperature=number % 2, seed=number), number))
    while scheduler.has_work:
        work, result, _ = one_step(scheduler, runner, repeat_what_followed)
        recorder(work, result)
        # A file has them as lists.
        work.items[:] = [item._replace(pages=list(item.pages)) for item in work.items]
        steps.append(Step(work, result))
    return steps


def mock(seed: int = 0) -> MockRunner:
    return MockRunner(Profile(vocab_size=200, seed=seed, acceptance=0.9), page_tokens=8)


@pytest.mark.parametrize("make", [mock, lambda: PagedFake(16)], ids=["mock", "pages"])
def test_a_recorded_run_gives_the_same_tokens_again(make: Callable[[], Runner], tmp_path: Path) -> None:
    steps = recorded(tmp_path / "steps", make(), max_step_tokens=16)
    assert sum(verdict.accepted for step in steps for verdict in step.result.verdicts if verdict) > 10
    assert any(step.work.copies for step in steps) and any(len(step.work.items) > 3 for step in steps)
    assert list(read(tmp_path / "steps")) == steps
    again = list(run_again(make(), read(tmp_path / "steps")))
    assert [step for step, _ in again] == steps
    assert [tokens_of(result) for _, result in again] == [tokens_of(step.result) for step in steps]


def tiny() -> TorchRunner:
    """Two layers, the same weights each time."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=64, eos_token_id=0, initializer_range=0.3,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        LlamaForCausalLM(config).save_pretrained(folder)
        (Path(folder) / "tokenizer.json").write_text("{}")
        wanted = Wanted(dtype="float32", threads=1, page_tokens=8, kv_cache_mb=1)
        return TorchRunner(load_torch_model(Path(folder), wanted))


def test_a_recorded_run_of_a_model_gives_the_same_tokens_again(tmp_path: Path) -> None:
    steps = recorded(tmp_path / "steps", tiny(), max_step_tokens=16)
    assert sum(len(item.draft.tokens) for step in steps for item in step.work.items) > 10
    again = list(run_again(tiny(), read(tmp_path / "steps")))
    assert [tokens_of(result) for _, result in again] == [tokens_of(step.result) for step in steps]
    assert all(result.seconds > 0 for _, result in again)


def test_another_model_gives_other_tokens(tmp_path: Path) -> None:
    recorded(tmp_path / "steps", mock())
    again = run_again(mock(seed=1), read(tmp_path / "steps"))
    assert any(tokens_of(result) != tokens_of(step.result) for step, result in again)


def test_the_complete_steps_of_a_truncated_file_are_read(tmp_path: Path) -> None:
    file = tmp_path / "steps"
    steps = recorded(file, mock())
    data = file.read_bytes()
    for length, whole in ((len(data) - 1, len(steps) - 1), (LENGTH.size - 1, 0), (LENGTH.size, 0), (0, 0)):
        file.write_bytes(data[:length])
        assert list(read(file)) == steps[:whole]


@pytest.mark.parametrize(
    "data",
    [
        b"# A text file, and a rather long one",
        LENGTH.pack(2) + b"\xc1\xc1",
        LENGTH.pack(1) + b"\x80",
        LENGTH.pack(1 << 40) + b"\x80",
    ],
    ids=["text", "no msgpack", "no step", "a huge frame"],
)
def test_a_file_of_something_else_is_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "steps").write_bytes(data)
    with pytest.raises(ValueError):
        list(read(tmp_path / "steps"))


def test_a_record_ends_when_full_and_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    step = Step(Work(), Result([Verdict([1], 0)]))
    monkeypatch.setattr(replay, "MOST_BYTES", 2 * (LENGTH.size + len(replay.encoded(step))))
    recorder = Recorder(tmp_path / "steps")
    with caplog.at_level(logging.WARNING, "specmesh.worker"):
        for _ in range(5):
            recorder(step.work, step.result)
    assert list(read(tmp_path / "steps")) == [step] * 2
    assert len(caplog.records) == 1 and "no longer recorded" in caplog.text
