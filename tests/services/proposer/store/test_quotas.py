"""What one caller does to the store costs its own learned text and corpora, not another's. A namespace is named
owner/name; a caller may make any number of them (by cache_salt)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from asking import index, say, view
from library_world import recent

from services.proposer.store.library import Library
from services.proposer.store.policy import Bounds
from services.proposer.store.uploads import CorpusRefused
from services.proposer.suffix import SuffixDrafter

Open = Callable[[Bounds], Library]
TEXT = list(range(100))
KiB = 1 << 10


@pytest.fixture
def opened(tmp_path: Path) -> Any:
    libraries: list[Library] = []

    def opened(bounds: Bounds) -> Library:
        libraries.append(Library(tmp_path, "v", bounds, threads=False))
        return libraries[-1]

    yield opened
    for library in libraries:
        library.close()


def learned(library: Library, namespace: str, tokens: list[int] = TEXT) -> None:
    library.learn(namespace, 1, tokens)
    library.end(namespace, 1)
    library.seal(namespace)
    library.work()


def segments(library: Library, namespace: str) -> int:
    """How many are there once they are open."""
    library.segments(namespace)
    library.work()
    return len(library.segments(namespace))


def test_a_caller_with_many_namespaces_pushes_out_its_own(opened: Open) -> None:
    library = opened(Bounds(max_namespaces=8))
    learned(library, "good/1")
    learned(library, "good/2")
    for number in range(30):
        learned(library, f"bad/{number}")
    assert segments(library, "good/1") == segments(library, "good/2") == 1
    assert segments(library, "bad/0") == 0 and segments(library, "bad/29") == 1
    assert library.stats().namespaces == 8 and library.stats().evicted_tokens == 24 * len(TEXT)


def test_a_namespace_with_a_corpus_is_never_dropped_however_many_there_are(opened: Open) -> None:
    library = opened(Bounds(max_namespaces=4))
    library.add_corpus("good/1", "manual", 0, [TEXT])
    library.work()
    for number in range(10):
        learned(library, f"bad/{number}")
        learned(library, f"good/other {number}")
    assert [(card.name, card.state) for card in library.corpora("good/1")] == [("manual", "ready")]


def test_a_caller_with_many_bytes_loses_its_own_though_anothers_is_older(opened: Open) -> None:
    library = opened(Bounds(max_bytes=200 * KiB, max_tokens=10**6, unsealed_bytes=16 * KiB))
    learned(library, "good/1")
    learned(library, "good/1")
    for number in range(12):
        tokens = list(range(number * 5000, number * 5000 + 4000))
        learned(library, "bad/1", tokens)
    assert library.stats().evicted_tokens > 0
    assert segments(library, "good/1") == 2
    assert library.stats().bytes <= 200 * KiB


def test_texts_that_are_in_no_segment_yet_are_dropped_from_the_caller_with_most_namespaces(opened: Open) -> None:
    library = opened(Bounds(max_namespaces=4))
    names = ["good/1", *(f"bad/{number}" for number in range(10))]
    for name in names:
        library.learn(name, 1, TEXT)
    library.work()
    assert [name for name in names if recent(library, name)] == ["good/1", "bad/7", "bad/8", "bad/9"]
    assert library.stats().dropped_tokens == 7 * len(TEXT)


@pytest.mark.usefixtures("compiled")
def test_in_memory_too_a_caller_with_many_namespaces_pushes_out_its_own() -> None:
    held = index(most=4)
    drafter = SuffixDrafter(held)
    for number, namespace in enumerate(["v\ngood/1", *(f"v\nbad/{each}" for each in range(10))]):
        say(drafter, view(number, [1], 1, namespace), TEXT)
        drafter.forget([number])
    known = [namespace.name for namespace in held._texts.namespaces.known()]
    assert known == ["v\ngood/1", "v\nbad/7", "v\nbad/8", "v\nbad/9"]


# Corpora are refused instead ------------------------------------------------------------------------------


def refused(library: Library, namespace: str, name: str, tokens: int = 100, last: bool = True) -> str:
    """Why, and with which reason; "": it was taken."""
    try:
        library.add_corpus(namespace, name, 0, [list(range(tokens))], last)
    except CorpusRefused as error:
        return error.reason
    library.work()
    return ""


def test_a_caller_has_corpora_in_so_many_namespaces_and_others_are_not_refused(opened: Open) -> None:
    library = opened(Bounds(max_corpora_namespaces=3))
    assert [refused(library, f"bad/{number}", "c") for number in range(5)] == ["", "", "", "overloaded", "overloaded"]
    assert refused(library, "bad/0", "another") == refused(library, "good/1", "c") == ""
    library.remove_corpus("bad/0", "c")
    library.remove_corpus("bad/0", "another")
    library.work()
    assert refused(library, "bad/4", "c") == ""


def test_a_caller_has_a_quarter_of_the_bytes_for_corpora(opened: Open) -> None:
    library = opened(Bounds(max_bytes=400 * KiB))
    for number in range(20):
        refused(library, "bad/1", f"c{number}", 2000)
    states = [card.state for card in library.corpora("bad/1")]
    assert "ready" in states and "failed" in states
    assert library.stats().bytes - library._database.held_bytes() <= 100 * KiB
    assert refused(library, "good/1", "c", 2000) == ""
    assert [card.state for card in library.corpora("good/1")] == ["ready"]


def test_a_caller_cannot_fill_what_there_is_for_uploads(opened: Open) -> None:
    library = opened(Bounds(corpus_tokens=1000))
    assert refused(library, "bad/1", "a", 900, last=False) == ""
    assert refused(library, "bad/2", "b", 900, last=False) == "overloaded"
    assert refused(library, "good/1", "c", 900, last=False) == ""
