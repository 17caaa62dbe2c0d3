"""Mistral against transformers: what it adds to Llama is a window in every layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import parity
import pytest
from transformers import MistralConfig

VARIANTS: dict[str, dict[str, Any]] = {
    "no window": {"sliding_window": None},
    "a window shorter than the text": {"sliding_window": 40},
    "a window of less than a page": {"sliding_window": 5},
    # transformers' own cache is wrong for a window of 1: it keeps all.
    "a window of two": {"sliding_window": 2},
    "a window of whole pages": {"sliding_window": 32},
    "a window longer than the text": {"sliding_window": 4096},
    "heads wider than their share": {"sliding_window": 20, "head_dim": 32},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_and_text_are_those_of_transformers(variant: str, tmp_path: Path) -> None:
    parity.check_parity(parity.save_tiny(MistralConfig, tmp_path, **VARIANTS[variant]), tmp_path)
