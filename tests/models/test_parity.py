"""The parity of families leaves nothing out unseen."""

from __future__ import annotations

from pathlib import Path

import parity
import pytest
from transformers import LlamaConfig

from models.cpu.executor import CpuExecutor


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuExecutor, "why_not", staticmethod(lambda network, dtype: "no loops for this"))


def test_a_network_that_the_compiled_executor_refuses_fails_its_case(refused: None, tmp_path: Path) -> None:
    theirs = parity.save_tiny(LlamaConfig, tmp_path, num_hidden_layers=1)
    with pytest.raises(AssertionError, match="refuses the network: no loops for this"):
        parity.check_parity(theirs, tmp_path, {"compiled": parity.EXECUTORS["compiled"]})


def test_a_case_that_names_its_executors_asks_no_other(refused: None, tmp_path: Path) -> None:
    theirs = parity.save_tiny(LlamaConfig, tmp_path, num_hidden_layers=1)
    parity.check_parity(theirs, tmp_path, {"plain": parity.EXECUTORS["plain"]})
