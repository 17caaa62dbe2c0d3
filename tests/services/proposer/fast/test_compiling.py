"""Compiling happens once, beside everything else, and its failure costs drafts only."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from kernels import cpu_cache
from services.proposer.fast import compiling
from services.proposer.fast.drafting import step


def test_it_starts_once_and_is_told_when_it_is_done() -> None:
    thread = compiling.start()
    assert compiling.start() is thread
    thread.join()
    assert compiling.is_compiled()


def test_where_nothing_can_be_compiled_that_is_logged_and_never_ready(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no memory may be executed")

    event = threading.Event()
    monkeypatch.setattr(compiling, "_compiled", event)
    monkeypatch.setattr(compiling.FastTexts, "take_in", refuse)
    with caplog.at_level(logging.ERROR):
        compiling._compile()
    assert not event.is_set() and not compiling.is_compiled()
    assert "no memory may be executed" in caplog.text


def test_kept_code_goes_when_any_file_it_is_compiled_from_changes() -> None:
    files = {f"{source.parent.name}/{source.name}" for source in cpu_cache._sources(Path(step.__file__))}
    assert files >= {
        "drafting/step.py", "drafting/guessing.py", "drafting/predicting.py", "automaton/loops.py", "segments/loops.py",
        "proposer/native.py",
    }  # fmt: skip
    assert "kernels/cpu_cache.py" in files
