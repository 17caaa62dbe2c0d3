"""Answers that come with specmesh: what was written is read, and of a file that isn't whole nothing is."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from models.shipped_answers import FOLDER, SUFFIX, answers_of, write_answers
from models.sources import ensure_model
from services.api.settings import Settings, cache_dir
from services.worker.running.load_torch_model import vocabulary_of

TEXTS = [[1, 2, 3], [], [65534], [5, 5, 5, 5]]


def of(vocabulary: str, folder: Path) -> list[list[int]]:
    return [text.tolist() for text in answers_of(vocabulary, folder)]


def test_what_was_written_is_read_by_its_vocabulary(tmp_path: Path) -> None:
    write_answers(tmp_path / f"a{SUFFIX}", "words", TEXTS)
    write_answers(tmp_path / f"b{SUFFIX}", "other words", [[9]])
    write_answers(tmp_path / f"c{SUFFIX}", "words", [[7]])
    assert of("words", tmp_path) == [*TEXTS, [7]]
    assert of("other words", tmp_path) == [[9]]
    assert of("unknown", tmp_path) == [] and of("words", tmp_path / "nowhere") == []


def test_the_same_answers_are_the_same_bytes(tmp_path: Path) -> None:
    files = [tmp_path / f"{name}{SUFFIX}" for name in "ab"]
    for file in files:
        write_answers(file, "words", TEXTS)
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize("ids", [[-1], [65536], [65535]])
def test_ids_that_16_bits_do_not_hold_are_refused(ids: list[int], tmp_path: Path) -> None:
    with pytest.raises((OverflowError, ValueError)):
        write_answers(tmp_path / f"a{SUFFIX}", "words", [ids])


@pytest.mark.parametrize("cut", [1, 2])
def test_a_file_that_ends_within_an_answer_is_refused(cut: int, tmp_path: Path) -> None:
    file = tmp_path / f"a{SUFFIX}"
    write_answers(file, "words", TEXTS)
    file.write_bytes(gzip.compress(gzip.decompress(file.read_bytes())[:-cut]))
    with pytest.raises(ValueError, match="ends within"):
        answers_of("words", tmp_path)


@pytest.mark.parametrize(
    "damage",
    [lambda data: data[:-12], lambda data: data[:60] + bytes(20) + data[80:], lambda data: b"no gzip",
     lambda data: gzip.compress(b"[]\n"), lambda data: gzip.compress(b"{}\n"),
     lambda data: gzip.compress(b"no JSON\n")],
    ids=["cut", "overwritten", "no gzip", "a list", "no vocabulary", "no JSON"],
)  # fmt: skip
def test_a_damaged_file_is_refused(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    file = tmp_path / f"a{SUFFIX}"
    write_answers(file, "words", [[number, number + 1] for number in range(500)])
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises((OSError, ValueError)):
        answers_of("words", tmp_path)


def test_the_default_model_has_answers_of_its_own_vocabulary() -> None:
    folder = ensure_model("smollm2-135m-instruct", cache_dir(Settings.for_tests()))
    answers = answers_of(vocabulary_of(folder))
    assert len(answers) > 1000
    ids = np.concatenate(answers)
    assert ids.min() >= 0 and ids.max() < 49152
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < 3 << 20
