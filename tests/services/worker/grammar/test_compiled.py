"""Who holds a grammar finds it compiled, and no caller's grammars push out all of another's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from services.api.grammars import GrammarError, started
from services.streamer.agents.grammars import choice, regex
from services.worker.grammar import compiled
from services.worker.grammar.compiled import Grammars
from tests.services.tokenizer.conftest import make_tokenizer


class Compiler:
    """Counts what is compiled, and waits for `go_on`."""

    def __init__(self) -> None:
        self.compiled: list[str] = []
        self.begun = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    def __call__(self, vocabulary: Any, grammar: str) -> Any:
        self.compiled.append(grammar)
        self.begun.set()
        assert self.go_on.wait(60.0)
        return started(vocabulary, grammar)


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[Compiler]:
    made = Compiler()
    monkeypatch.setattr(compiled, "started", made)
    monkeypatch.setattr(compiled, "MOST_IDLE", 4)
    yield made
    made.go_on.set()


@pytest.fixture
def grammars(tmp_path: Path) -> Grammars:
    tokenizer = make_tokenizer()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return Grammars(tmp_path / "tokenizer.json", tokenizer.get_vocab_size(), (1,))


async def used(grammars: Grammars, grammar: str, caller: str = "") -> None:
    await grammars.hold(grammar, caller)
    grammars.release(grammar)


def some(name: str, count: int) -> list[str]:
    return [choice([f"{name}{number}"]) for number in range(count)]


async def test_a_grammar_that_is_held_stays_whatever_comes(grammars: Grammars, compiler: Compiler) -> None:
    held = choice(["held"])
    await grammars.hold(held)
    await grammars.hold(held)
    for each in some("other", 9):
        await used(grammars, each)
    grammars.release(held)
    for each in some("another", 9):
        await used(grammars, each)
    assert not grammars.matcher(held).is_error() and compiler.compiled.count(held) == 1
    assert len(grammars) == 1 + compiled.MOST_IDLE


async def test_when_its_last_holder_has_released_it_it_is_idle_and_bounded(
    grammars: Grammars, compiler: Compiler
) -> None:
    many = some("many", 9)
    for each in many:
        await grammars.hold(each)
    assert len(grammars) == 9
    for each in many:
        grammars.release(each)
    assert len(grammars) == compiled.MOST_IDLE
    for each in [*many[-compiled.MOST_IDLE :], many[0]]:
        grammars.matcher(each)
    assert compiler.compiled == [*many, many[0]] and len(grammars) == compiled.MOST_IDLE


async def test_no_caller_replaces_all_of_anothers(grammars: Grammars, compiler: Compiler) -> None:
    few = some("few", 2)
    for each in few:
        await used(grammars, each, "modest")
    for each in some("many", 50):
        await used(grammars, each, "greedy")
    compiler.compiled.clear()
    for each in few:
        await used(grammars, each, "modest")
    assert not compiler.compiled and len(grammars) == compiled.MOST_IDLE


async def test_equal_grammars_at_once_are_compiled_once(grammars: Grammars, compiler: Compiler) -> None:
    await asyncio.gather(*(grammars.hold(choice(["a"])) for _ in range(20)))
    assert len(compiler.compiled) == len(grammars) == 1


async def test_who_goes_away_while_it_is_compiled_holds_nothing(grammars: Grammars, compiler: Compiler) -> None:
    first, second = some("c", 2)
    compiler.go_on.clear()
    running, waiting = asyncio.create_task(grammars.hold(first)), asyncio.create_task(grammars.hold(second))
    await asyncio.to_thread(compiler.begun.wait, 60.0)
    for each in (running, waiting):
        each.cancel()
    await asyncio.gather(running, waiting, return_exceptions=True)
    compiler.go_on.set()
    for each in some("other", 2 * compiled.MOST_IDLE):
        await used(grammars, each)
    assert len(grammars) == compiled.MOST_IDLE and second not in compiler.compiled


async def test_a_grammar_that_cannot_be_compiled_is_not_held(grammars: Grammars) -> None:
    with pytest.raises(GrammarError, match="unclosed"):
        await grammars.hold(regex("(("))
    assert len(grammars) == 0


async def test_a_grammar_that_is_compiled_holds_up_no_other(grammars: Grammars, compiler: Compiler) -> None:
    known = choice(["known"])
    await grammars.hold(known)
    compiler.go_on.clear()
    compiler.begun.clear()
    slow = asyncio.create_task(grammars.hold(choice(["a"])))
    await asyncio.to_thread(compiler.begun.wait, 60.0)
    with ThreadPoolExecutor(1) as threads:
        assert not threads.submit(grammars.matcher, known).result(30.0).is_error()
    compiler.go_on.set()
    await slow
    assert len(grammars) == 2


def test_the_vocabulary_is_read_ahead_and_its_faults_are_told_to_requests(
    tokenizer_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = Grammars(tokenizer_file, 49152, (2,))
    ahead.read_vocabulary()
    monkeypatch.setattr("services.worker.grammar.compiled.read_vocabulary", lambda *given: pytest.fail("read again"))
    assert ahead.matcher(choice(["a"])).compute_bitmask()
    monkeypatch.undo()
    without = Grammars(tokenizer_file.with_name("none.json"), 49152, (2,))
    without.read_vocabulary()
    with pytest.raises(GrammarError, match="can't be used"):
        without.matcher(choice(["a"]))
