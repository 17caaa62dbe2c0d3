"""Which tokens of two tokenizers are the same text, and which pairs of tokenizers are too different."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from models.errors import ModelError
from models.heads.twins import ALONE, twins_of


def tokenizer(folder: Path, vocab: Any, decoder: str = "", added: dict[str, int] | None = None, **model: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    described = {
        "model": {"vocab": vocab, **model}, "decoder": {"type": decoder} if decoder else None,
        "added_tokens": [{"id": token, "content": text} for text, token in (added or {}).items()],
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(described))
    return folder


def test_the_same_tokenizer_needs_no_twins_unless_a_vocabulary_is_padded(tmp_path: Path) -> None:
    vocab = {"a": 0, "b": 1, "c": 2}
    one, other = tokenizer(tmp_path / "one", vocab), tokenizer(tmp_path / "other", vocab)
    assert twins_of(one, other, 3, 3) is None
    padded = twins_of(one, other, 5, 4)
    assert padded is not None and padded.drafted == (0, 1, 2, ALONE, ALONE) and padded.read == (0, 1, 2, 0)


def test_twins_are_equal_bytes_however_a_tokenizer_writes_them(tmp_path: Path) -> None:
    """A byte-level table against a list of pieces with scores, fallback bytes and markers."""
    byte_level = {"Ġthe": 0, "Ċ": 1, "Ã©": 2, "x": 3, "only here": 4}
    own = tokenizer(tmp_path / "own", byte_level, "ByteLevel", {"<|end|>": 5})
    pieces = [["<unk>", 0.0], ["<0x78>", 0.0], ["▁the", -1.0], ["é", -2.0], ["x", -3.0], ["<0x0A>", 0.0]]
    target = tokenizer(tmp_path / "target", pieces, "Sequence", {"<|end|>": 6}, unk_id=0)
    found = twins_of(own, target, 6, 7)
    assert found is not None
    # x is the piece, not the byte.
    assert found.drafted == (2, 5, 3, 4, ALONE, 6)
    assert found.read == (0, 0, 0, 2, 3, 1, 5)


def test_a_marker_is_no_twin_of_a_word(tmp_path: Path) -> None:
    own = tokenizer(tmp_path / "own", {"a": 0, "end": 1})
    target = tokenizer(tmp_path / "target", {"a": 0}, added={"end": 1})
    found = twins_of(own, target, 2, 2)
    assert found is not None and found.drafted == (0, ALONE)


def test_what_is_unknown_is_read_as_the_draft_models_unknown_token(tmp_path: Path) -> None:
    own = tokenizer(tmp_path / "own", {"a": 0, "?": 1}, unk_token="?")
    target = tokenizer(tmp_path / "target", {"b": 0, "a": 1, "?": 2})
    found = twins_of(own, target, 2, 3)
    assert found is not None and found.read == (1, 0, 1)


def test_a_tokenizer_with_few_twins_is_refused_by_name_and_number(tmp_path: Path) -> None:
    own = tokenizer(tmp_path / "own", {"a": 0, "b": 1, "c": 2})
    target = tokenizer(tmp_path / "target", {"x": 0, "a": 1, "z": 2})
    with pytest.raises(ModelError, match=r"own has another tokenizer than .*target: 2 of its 3 tokens are none of the"):
        twins_of(own, target, 3, 3)


@pytest.mark.parametrize(
    "described",
    [
        {}, {"model": None}, {"model": {"vocab": {}}}, {"model": {"vocab": 5}}, {"model": {"vocab": {"a": "b"}}},
        {"model": {"vocab": {"a": 10**9}}}, {"model": {"vocab": [1, 2]}},
        {"model": {"vocab": {"a": 0}}, "added_tokens": [{}]}, {"model": {"vocab": {"a": 0}}, "decoder": "x"},
    ],
)  # fmt: skip
def test_a_file_that_holds_no_vocabulary_is_refused(described: Any, tmp_path: Path) -> None:
    own, target = tokenizer(tmp_path / "own", {"a": 0}), tokenizer(tmp_path / "target", {"a": 0})
    (own / "tokenizer.json").write_text(json.dumps(described))
    with pytest.raises(ModelError, match=r"tokenizer\.json holds no vocabulary"):
        twins_of(own, target, 1, 1)
