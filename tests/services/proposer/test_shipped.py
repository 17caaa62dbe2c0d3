"""Answers that come with specmesh are drafted from in every namespace of their vocabulary, unless a request says which
corpora it wants."""

from __future__ import annotations

import logging
import os
import random
import subprocess
import tempfile
from array import array
from collections.abc import Sequence
from pathlib import Path

import pytest

from services.api.drafter import Draft, DraftRequest, Text
from services.api.names import MODEL_ANSWERS, is_name
from services.api.settings import Settings
from services.proposer.auto import AutoDrafter
from services.proposer.fast import compiling
from services.proposer.fast.texts import FastTexts
from services.proposer.index import SuffixIndex
from services.proposer.names import namespace_key
from services.proposer.plain.guess import DraftRule
from services.proposer.shipped import ShippedAnswers
from services.proposer.store.library import Library

HERE, THERE = namespace_key("words", "a tenant"), namespace_key("words", "another tenant")
ELSEWHERE = namespace_key("other words", "a tenant")
ANSWER = random.Random(5).sample(range(1000, 2000), 60)


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    compiling.start().join()


def read(vocabulary: str) -> list[list[int]]:
    return [ANSWER] if vocabulary == "words" else []


def index_of(read: object = read) -> SuffixIndex:
    def library(vocabulary: str) -> Library:
        return Library(None, vocabulary, threads=False)

    return SuffixIndex(FastTexts.of(Settings.for_tests()), library, shipped=ShippedAnswers(read))  # type: ignore[arg-type]


def guess(index: SuffixIndex, namespace: str, number: int, corpora: Sequence[str] | None = None) -> Draft:
    auto = AutoDrafter(index, DraftRule(least=0.02))
    text = Text(number, array("i", [5, *ANSWER[10:20]]), 1, namespace=namespace, corpora=corpora)  # type: ignore[arg-type]
    auto.draft([DraftRequest(text, 1)])
    [draft] = auto.draft([DraftRequest(text, 8)])
    auto.forget([number])
    return draft


def test_every_namespace_of_the_vocabulary_drafts_from_them() -> None:
    index = index_of()
    for number, namespace in enumerate((HERE, THERE), 1):
        draft = guess(index, namespace, number)
        assert draft.tokens == ANSWER[20:28] and draft.source == f"corpus:{MODEL_ANSWERS}"
    assert guess(index, ELSEWHERE, 3).tokens == []
    index.close()


def test_a_request_that_names_its_corpora_does_not() -> None:
    index = index_of()
    assert guess(index, HERE, 1, corpora=[]).tokens == []
    assert guess(index, HERE, 2, corpora=["notes"]).tokens == []
    index.close()


def test_no_corpus_of_a_caller_can_have_their_name() -> None:
    assert not is_name(MODEL_ANSWERS)


def test_they_stay_when_a_corpus_comes_and_goes() -> None:
    index = index_of()
    assert guess(index, HERE, 1).tokens == ANSWER[20:28]
    library = index.library(HERE)
    assert library is not None
    library.add_corpus(HERE, "notes", 0, [[1, 2, 3]])
    index.refresh()
    library.remove_corpus(HERE, "notes")
    index.refresh()
    assert guess(index, HERE, 2).tokens == ANSWER[20:28]
    assert [card.name for card in library.corpora(HERE) if card.name == MODEL_ANSWERS] == []
    index.close()


@pytest.mark.parametrize("fault", [OSError("no room"), ValueError("it ends within an answer")])
def test_a_file_that_cannot_be_read_costs_its_drafts_only(fault: Exception, caplog: pytest.LogCaptureFixture) -> None:
    def damaged(vocabulary: str) -> list[list[int]]:
        raise fault

    with caplog.at_level(logging.ERROR):
        index = index_of(damaged)
        assert guess(index, HERE, 1).tokens == []
    assert str(fault) in caplog.text
    index.close()


def test_they_are_there_where_no_library_can_be_opened() -> None:
    def no_library(vocabulary: str) -> Library:
        raise OSError("no room")

    index = SuffixIndex(FastTexts.of(Settings.for_tests()), no_library, shipped=ShippedAnswers(read))
    assert guess(index, HERE, 1).tokens == ANSWER[20:28]
    index.close()


def test_the_setting_turns_them_off() -> None:
    for on in (True, False):
        index = SuffixIndex.open(Settings.for_tests(model_answers=on, store_dir="none"))
        assert (index._shipped is not None) is on
        index.close()


def test_what_a_proposer_left_that_was_killed_is_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with subprocess.Popen(["true"]) as dead:
        dead.wait()
    before = f"specmesh-answers-{os.getuid()}-"
    left, running, others = (tmp_path / name for name in (f"{before}{dead.pid}-x", f"{before}{os.getpid()}-x", "other"))
    for folder in (left, running, others):
        folder.mkdir()
        (folder / "segment").write_bytes(b"x")
    shipped = ShippedAnswers(lambda vocabulary: [[1, 2, 3]])
    shipped.prepare("v")
    assert len(shipped.of("v")) == 1
    assert sorted(tmp_path.iterdir()) == [others, running]
    shipped.close()
