"""What one request said, later ones are guessed from: in its namespace, across restarts, and nowhere else."""

from __future__ import annotations

import itertools
import random
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest

from services.api.drafter import Draft, DraftRequest, Text
from services.api.settings import Settings
from services.proposer.auto import AutoDrafter
from services.proposer.fast import compiling
from services.proposer.fast.texts import FastTexts
from services.proposer.index import SuffixIndex
from services.proposer.names import namespace_key
from services.proposer.plain import texts as plain
from services.proposer.plain.guess import DraftRule
from services.proposer.store.library import Library
from services.proposer.suffix import SuffixDrafter

HERE, THERE = namespace_key("words", "a tenant"), namespace_key("words", "another tenant")
SAID = random.Random(3).sample(range(1000, 2000), 60)
_numbers = itertools.count(1)


class Proposer:
    """One process' part of it, and the libraries it opened."""

    def __init__(self, folder: Path | None, form: Any, opener: Executor | None = None, **settings: int) -> None:
        chosen = Settings.for_tests(**settings)
        self.texts = form.of(chosen)
        self.libraries: dict[str, Library] = {}
        # Compiled loops serve once they are compiled.
        then = FastTexts.of(chosen) if form is plain.Texts else None
        self.index = SuffixIndex(self.texts, lambda name: self._open(folder, name), opener=opener, then=then)
        self.auto = AutoDrafter(self.index, DraftRule(least=0.02))

    def _open(self, folder: Path | None, vocabulary: str) -> Library:
        library = self.libraries[vocabulary] = Library(folder, vocabulary, threads=False)
        return library

    def say(self, namespace: str, said: list[int], learn: bool = True, ends: bool = True) -> Text:
        """A request whose prompt is of no use to anyone."""
        view = Text(next(_numbers), array("i", [7, 8, 9]), 3, namespace=namespace, learn=learn)
        for begin in range(0, len(said), 4):
            view.tokens.extend(said[begin : begin + 4])
            self.auto.draft([DraftRequest(view, 4)])
            self.index.follow(view)
        if ends:
            self.index.end(view)
            self.catch_up()
        return view

    def catch_up(self) -> None:
        while self.index.work():
            pass

    def guess(self, namespace: str, end: list[int], corpora: list[str] | None = None) -> Draft:
        view = Text(next(_numbers), array("i", [5, *end]), 1, namespace=namespace, corpora=corpora)
        # Its namespace begins, and what is known of it may be much.
        self.auto.draft([DraftRequest(view, 1)])
        self.catch_up()
        [draft] = self.auto.draft([DraftRequest(view, 8)])
        self.auto.forget([view.text_id])
        return draft

    def work(self) -> None:
        for library in self.libraries.values():
            library.work()
        self.index.refresh()
        for library in self.libraries.values():
            library.work()
        self.index.refresh()


class Opener(Executor):
    """Opens libraries when it is told to go on."""

    def __init__(self) -> None:
        self._left: list[Callable[[], None]] = []

    def submit(self, call: Callable[..., Any], /, *args: Any, **more: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._left.append(lambda: future.set_result(call(*args, **more)))
        return future

    def go_on(self) -> None:
        while self._left:
            self._left.pop()()


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    compiling.start().join()


@pytest.fixture(params=[plain.Texts, FastTexts], ids=["plain", "compiled"])
def start(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Proposer]]:
    """As many processes as are wanted, one after the other or at once, with one folder."""
    started: list[Proposer] = []
    monkeypatch.setattr(compiling, "is_compiled", lambda: request.param is FastTexts)

    def start(opener: Executor | None = None, **settings: int) -> Proposer:
        started.append(Proposer(tmp_path, request.param, opener, **settings))
        return started[-1]

    yield start
    for proposer in started:
        proposer.index.close()


def test_the_next_request_is_guessed_from_the_last_to_its_very_end(start: Callable[..., Proposer]) -> None:
    proposer = start()
    proposer.say(HERE, SAID)
    draft = proposer.guess(HERE, SAID[-20:-8])
    assert draft.tokens == SAID[-8:] and draft.source == "shared"


@pytest.mark.parametrize("elsewhere", [THERE, namespace_key("other words", "a tenant"), ""])
def test_nobody_else_is(start: Callable[..., Proposer], elsewhere: str) -> None:
    proposer = start()
    proposer.say(HERE, SAID)
    assert proposer.guess(elsewhere, SAID[:20]).tokens == []


def test_one_that_must_not_be_learned_from_is_not(start: Callable[..., Proposer]) -> None:
    proposer = start()
    proposer.say(HERE, SAID, learn=False)
    assert proposer.guess(HERE, SAID[:20]).tokens == []
    assert not proposer.libraries or proposer.libraries["words"].stats().learning_tokens == 0


@pytest.mark.parametrize("sealed", [False, True], ids=["from the database", "from a segment"])
def test_a_restart_forgets_nothing(start: Callable[..., Proposer], sealed: bool) -> None:
    proposer = start()
    proposer.say(HERE, SAID)
    proposer.libraries["words"].write()
    if sealed:
        proposer.libraries["words"].seal(HERE)
        proposer.work()
    after = start()
    assert after.guess(HERE, SAID[:4]).tokens == []
    after.work()
    draft = after.guess(HERE, SAID[:20])
    assert draft.tokens == SAID[20:28] and draft.source == "store"
    assert after.guess(THERE, SAID[:20]).tokens == []


def test_while_the_library_is_being_opened_nobody_waits_and_nothing_is_lost(start: Callable[..., Proposer]) -> None:
    before = start()
    before.say(HERE, SAID)
    before.libraries["words"].write()
    opener = Opener()
    after = start(opener)
    # What is there is not known yet; what comes is answered from itself.
    assert after.guess(HERE, SAID[:20]).tokens == []
    running = after.say(HERE, SAID[:30], ends=False)
    ended, secret = [number + 1000 for number in SAID], [number + 3000 for number in SAID]
    after.say(HERE, ended)
    after.say(HERE, secret, learn=False)
    assert after.index.stats().waiting_texts == 0 and not after.libraries
    opener.go_on()
    after.index.refresh()
    after.catch_up()
    after.work()
    assert after.guess(HERE, SAID[:20]).tokens == SAID[20:28]
    assert after.guess(HERE, ended[:20]).tokens == ended[20:28]
    assert after.guess(HERE, secret[:20]).tokens == []
    # Both are on disk from now on: the one that had ended, and all of the one that goes on.
    running.tokens.extend(SAID[30:34])
    after.index.follow(running)
    stats = after.libraries["words"].stats()
    assert stats.tokens + stats.learning_tokens == len(SAID) + len(ended) + 34


def test_what_a_library_was_opened_for_is_learned_when_the_process_ends_before_it_is_open(
    start: Callable[..., Proposer],
) -> None:
    opener = Opener()
    proposer = start(opener)
    proposer.say(HERE, SAID)
    opener.go_on()
    proposer.index.close()
    after = start()
    assert after.guess(HERE, SAID[:20]).tokens == []
    after.work()
    assert after.guess(HERE, SAID[:20]).tokens == SAID[20:28]


def test_a_full_automaton_becomes_a_segment_and_what_was_said_in_it_is_known_all_the_same(
    start: Callable[..., Proposer],
) -> None:
    proposer = start(store_tokens=10_000)
    proposer.say(HERE, SAID)
    chance = random.Random(5)
    # More than an automaton holds.
    for _ in range(30):
        proposer.say(HERE, [chance.randrange(5000, 50000) for _ in range(600)])
    assert proposer.guess(HERE, SAID[:20]).source == ""
    proposer.work()
    draft = proposer.guess(HERE, SAID[:20])
    assert draft.tokens == SAID[20:28] and draft.source == "store"


def test_what_another_process_learned_is_known_here_once_it_is_a_segment(start: Callable[..., Proposer]) -> None:
    here, there = start(), start()
    assert here.guess(HERE, SAID[:20]).tokens == []
    there.say(HERE, SAID)
    there.libraries["words"].seal(HERE)
    there.work()
    here.work()
    assert here.guess(HERE, SAID[:20]).tokens == SAID[20:28]


def test_segments_are_given_back_when_others_take_their_place(start: Callable[..., Proposer]) -> None:
    proposer = start()
    held = []
    for number in range(6):
        proposer.say(HERE, [number * 100 + at for at in range(90)])
        proposer.libraries["words"].seal(HERE)
        proposer.work()
        held.append(len(proposer.index._held[HERE]))
    # Merged ones have gone, and the folder holds no more than is read.
    assert max(held) <= 4
    files = [file for library in proposer.libraries.values() for file in library._folder.root.rglob("*.learned")]
    assert len(files) == held[-1]


def test_a_corpus_is_drafted_from_where_the_request_allows_it(start: Callable[..., Proposer]) -> None:
    proposer = start()
    assert proposer.guess(HERE, SAID[:20]).tokens == []
    library = proposer.index.library(HERE)
    assert library is not None
    library.add_corpus(HERE, "manual", 0, [SAID])
    proposer.work()
    draft = proposer.guess(HERE, SAID[:20])
    assert draft.tokens == SAID[20:28] and draft.source == "corpus:manual"
    assert proposer.guess(HERE, SAID[:20], ["manual"]).tokens == SAID[20:28]
    assert proposer.guess(HERE, SAID[:20], []).tokens == proposer.guess(HERE, SAID[:20], ["other"]).tokens == []
    assert proposer.guess(THERE, SAID[:20]).tokens == []
    library.remove_corpus(HERE, "manual")
    proposer.work()
    assert proposer.guess(HERE, SAID[:20]).tokens == []


def test_a_folder_that_cannot_be_used_costs_memory_of_the_past_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    proposer = Proposer(tmp_path / "file" / "store", FastTexts)
    proposer.say(HERE, SAID)
    assert proposer.guess(HERE, SAID[:20]).tokens == SAID[20:28]


def test_so_many_texts_wait_at_most(start: Callable[..., Proposer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.proposer.index.MAX_WAITING", 3)
    proposer = start()
    views = [proposer.say(HERE, SAID[:8], ends=False) for _ in range(5)]
    for view in views:
        proposer.index.end(view)
    assert proposer.index.stats().waiting_texts == 3
    proposer.catch_up()
    assert len(proposer.texts) == 0


# While the loops are being compiled ---------------------------------------------------------------------------


def test_once_the_loops_are_compiled_all_is_as_if_they_had_been_from_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafts, chance = [], random.Random(8)
    said = [chance.choices(range(40), k=30) for _ in range(12)]
    for number, form in enumerate((plain.Texts, FastTexts)):
        proposer = Proposer(tmp_path / str(number), form)
        monkeypatch.setattr(compiling, "is_compiled", lambda form=form: form is FastTexts)
        for text in said[:5]:
            proposer.say(HERE, text)
        running = proposer.say(HERE, said[5], ends=False)
        monkeypatch.setattr(compiling, "is_compiled", lambda: True)
        for text in said[6:]:
            proposer.say(HERE, text)
        running.tokens.extend(said[6])
        proposer.index.end(running)
        proposer.catch_up()
        suffix = SuffixDrafter(proposer.index)
        asked = [Text(1000 + at, array("i", text[:10]), 10, namespace=HERE) for at, text in enumerate(said)]
        suffix.draft([DraftRequest(text, 0) for text in asked])
        drafts.append(suffix.draft([DraftRequest(text, 8) for text in asked]))
        proposer.index.close()
    assert drafts[0] == drafts[1] and sum(bool(draft.tokens) for draft in drafts[0]) > 8
