"""Grammars are checked in a child: what explodes there ends it, and is the grammar's fault."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from services.streamer.agents.grammars import choice, json_schema, lark, regex
from services.tokenizer import grammar_process
from services.tokenizer.bounded_child import BoundedChild
from services.tokenizer.grammar_process import GrammarProcess

GOOD = json_schema({"type": "object", "properties": {"a": {"type": "integer"}}})
CHAIN = lark("\n".join(["start: r0", *(f"r{i}: r{i + 1} r{i + 1}" for i in range(4000)), 'r4000: "a"']))


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[GrammarProcess]:
    process = GrammarProcess(folder / "tokenizer.json")
    try:
        yield process
    finally:
        await process.close()


@pytest.mark.parametrize(
    ("grammar", "problem"),
    [
        (GOOD, ""),
        (regex("^[a-z]+$"), ""),
        (choice(["a", ""]), ""),
        (json_schema(False), "Unsatisfiable"),
        (json_schema({"type": "string", "minLength": 5, "maxLength": 3}), "minLength"),
        (json_schema({"type": "array", "uniqueItems": True}), "uniqueItems"),
        (json_schema({"$ref": "https://example.com/x.json"}), "example.com"),
        (json_schema({"$ref": "file:///etc/passwd"}), "does not fetch"),
        (json_schema({"type": "nonsense"}), "nonsense"),
        (json_schema({"$ref": "#"}), "no text"),
        (regex("(?=a)b"), "look-around"),
        (regex("(("), "unclosed"),
        (regex(r"[^\s\S]"), "no text"),
        (lark("start: missing"), "missing"),
        (lark("nothing here"), "Expected"),
        ("{", "EOF"),
    ],
)
async def test_what_cannot_be_compiled_is_told(tiny_folder: Path, grammar: str, problem: str) -> None:
    async with running(tiny_folder) as process:
        told = await process.check(grammar)
        assert problem in told if problem else told == ""
        assert "\n" not in told and len(told) <= 301


async def test_a_grammar_that_overflows_the_stack_ends_the_child_alone(tiny_folder: Path) -> None:
    async with running(tiny_folder) as process:
        assert await process.check(CHAIN) == "is nested too deeply"
        assert await process.check(GOOD) == ""


async def test_a_child_is_there_before_the_first_grammar_and_after_one_that_ended(tiny_folder: Path) -> None:
    async with running(tiny_folder) as process:
        process.start_ahead()
        assert process._starting is not None
        await process._starting
        first = process._child.process
        assert first is not None
        assert await process.check(CHAIN) == "is nested too deeply"
        assert first.returncode is not None
        await process._starting
        second = process._child.process
        assert second is not None and second.returncode is None
        assert await process.check(GOOD) == "" and process._child.process is second


async def test_a_grammar_that_comes_while_the_child_starts_waits_for_it(tiny_folder: Path) -> None:
    async with running(tiny_folder) as process:
        process.start_ahead()
        assert await process.check(GOOD) == ""
        assert process._starting is not None and process._starting.done()


async def test_a_child_that_does_not_start_is_said_and_the_next_grammar_starts_it(
    tiny_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path) as process:
        process.start_ahead()
        assert process._starting is not None
        await process._starting
        assert "checks grammars" in caplog.text
        (tmp_path / "tokenizer.json").write_bytes((tiny_folder / "tokenizer.json").read_bytes())
        assert await process.check(GOOD) == ""


async def test_a_child_that_starts_ends_with_its_process(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = asyncio.Event()
    exchange = BoundedChild._exchange

    async def noted(self: BoundedChild, *asked: Any) -> bytes:
        begun.set()
        return await exchange(self, *asked)

    monkeypatch.setattr(BoundedChild, "_exchange", noted)
    async with running(tiny_folder) as process:
        process.start_ahead()
        await begun.wait()
        child = process._child.process
    assert child is not None and child.returncode is not None and process._child.process is None


async def test_a_grammar_that_takes_too_long_is_refused_by_the_time_it_computes(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose time ran out is known from the signal."""
    async with running(tiny_folder) as process:
        assert await process.check(GOOD) == ""
        assert process._child.process is not None
        asking = asyncio.create_task(process.check(regex("b")))
        os.kill(process._child.process.pid, signal.SIGPROF)
        assert await asking == grammar_process._BY_GRAMMAR[-signal.SIGPROF]


async def test_verdicts_are_remembered_and_bounded(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_process, "MOST_KNOWN", 3)
    async with running(tiny_folder) as process:
        for number in range(6):
            assert await process.check(regex(f"a{{{number + 1}}}")) == ""
        assert len(process._known) == 3
        await process.close()
        assert await process.check(regex("a{6}")) == "" and process._child.process is None


async def test_a_caller_with_many_verdicts_pushes_out_its_own(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_process, "MOST_KNOWN", 5)
    many = [regex(f"m{{{number}}}") for number in range(1, 9)]
    async with running(tiny_folder) as process:
        asked = Asked(process)
        await process.check(GOOD, "modest")
        await process.check(many[0], "greedy")
        # Known to one, asked for by the other: it is the latter's now.
        await process.check(many[0], "modest")
        for each in many[1:]:
            await process.check(each, "greedy")
        asked.questions.clear()
        for each in (GOOD, many[0], *many[-3:]):
            await process.check(each, "modest")
        assert asked.questions == [] and len(process._known) == 5
        await process.check(many[1], "greedy")
        assert asked.questions == [many[1].encode()]


class Asked:
    """What the child of a process is asked. Its turn is taken, until `go_on`."""

    def __init__(self, process: GrammarProcess) -> None:
        self.questions: list[bytes] = []
        self._turn = process._child._one_at_a_time
        self._ask, process._child._ask = process._child._ask, self.ask  # type: ignore[method-assign]

    async def ask(self, question: bytes, timeout: float) -> bytes:
        self.questions.append(question)
        return await self._ask(question, timeout)

    async def checks(self, process: GrammarProcess, *grammars: str, caller: str = "") -> list[asyncio.Task[str]]:
        """Begun while the child works for another."""
        if not self._turn.locked():
            await self._turn.acquire()
        tasks = [asyncio.create_task(process.check(each, caller)) for each in grammars]
        for _ in range(5):
            await asyncio.sleep(0)
        return tasks

    def go_on(self) -> None:
        self._turn.release()


async def test_equal_grammars_at_once_are_checked_once(tiny_folder: Path) -> None:
    bad = regex("((")
    async with running(tiny_folder) as process:
        asked = Asked(process)
        tasks = await asked.checks(process, *[GOOD] * 20, *[bad] * 20)
        asked.go_on()
        told = await asyncio.gather(*tasks)
        assert asked.questions == [GOOD.encode(), bad.encode()]
        assert told == [""] * 20 + [told[-1]] * 20 and "unclosed" in told[-1]
        assert not process._checks


async def test_a_caller_that_goes_away_takes_no_verdict_from_another(tiny_folder: Path) -> None:
    async with running(tiny_folder) as process:
        asked = Asked(process)
        first, *others = await asked.checks(process, GOOD, GOOD, GOOD)
        first.cancel()
        asked.go_on()
        assert await asyncio.gather(*others) == ["", ""] and asked.questions == [GOOD.encode()]
        assert first.cancelled()


async def test_a_caller_with_many_grammars_holds_up_no_other(tiny_folder: Path) -> None:
    many = [regex(f"m{{{number}}}") for number in range(1, 20)]
    async with running(tiny_folder) as process:
        asked = Asked(process)
        tasks = await asked.checks(process, *many, caller="greedy")
        tasks += await asked.checks(process, GOOD, caller="modest")
        asked.go_on()
        assert await asyncio.gather(*tasks) == [""] * len(tasks)
        assert asked.questions == [each.encode() for each in (many[0], GOOD, *many[1:])]
        assert not process._turns


async def test_grammars_of_callers_that_went_away_are_not_checked(tiny_folder: Path) -> None:
    async with running(tiny_folder) as process:
        asked = Asked(process)
        left = [regex(f"a{{{number}}}") for number in range(1, 6)]
        *gone, last = await asked.checks(process, *left, *left, GOOD)
        for each in gone:
            each.cancel()
        await asyncio.gather(*gone, return_exceptions=True)
        assert list(process._checks) == [hashlib.sha256(GOOD.encode()).digest()]
        asked.go_on()
        assert await last == "" and asked.questions == [GOOD.encode()]
        # And they can ask again.
        assert await process.check(left[0]) == ""


def mutated(chance: random.Random, value: Any) -> Any:
    """A schema with something changed in it, somewhere."""
    if isinstance(value, dict) and value and chance.random() < 0.8:
        name = chance.choice(list(value))
        changed = {**value, name: mutated(chance, value[name])}
        return changed if chance.random() < 0.8 else {chance.choice(WORDS): value, **changed}
    if isinstance(value, list) and value and chance.random() < 0.8:
        place = chance.randrange(len(value))
        return [*value[:place], mutated(chance, value[place]), *value[place:]]
    return chance.choice(ODD)


WORDS = [
    "type", "properties", "items", "required", "anyOf", "allOf", "oneOf", "not", "enum", "const", "pattern", "format",
    "minLength", "maxLength", "minimum", "maximum", "multipleOf", "minItems", "maxItems", "prefixItems", "$ref",
    "$defs", "additionalProperties", "patternProperties", "x-guidance", "if", "then", "dependentRequired", "$id",
]  # fmt: skip
ODD: list[Any] = [
    None, True, False, 0, -1, 1e300, 10**18, 0.1, "", "string", "object", "#", "#/$defs/a", "#/properties/a", "^a.*$",
    "(", "a{1000}", "date-time", [], {}, [1, "a"], ["a"], {"a": 1}, {"$ref": "#"}, {"type": "string"},
    {"anyOf": [{"type": "array"}, {"$ref": "#"}]}, {"pattern": "(a|b){1,300}c"}, {"maxItems": 10**6}, "\x00", "é" * 40,
]  # fmt: skip
SEED_SCHEMA = {
    "type": "object",
    "$defs": {"a": {"type": "object", "properties": {"n": {"$ref": "#/$defs/a"}}}},
    "properties": {
        "a": {"$ref": "#/$defs/a"}, "b": {"type": "array", "items": {"type": "number", "minimum": 0}, "maxItems": 9},
        "c": {"anyOf": [{"const": 1}, {"type": "string", "pattern": "^x+$", "maxLength": 5}]},
        "d": {"enum": ["a", 1, None]}, "e": {"type": "string", "format": "date"},
    },
    "required": ["a", "b"], "additionalProperties": False,
}  # fmt: skip


@pytest.mark.parametrize("count", [150, pytest.param(2000, marks=pytest.mark.slow)])
async def test_whatever_is_done_to_a_schema_it_is_compiled_or_refused(tiny_folder: Path, count: int) -> None:
    chance = random.Random(count)
    told = []
    async with running(tiny_folder) as process:
        for _ in range(count):
            schema: Any = SEED_SCHEMA
            for _ in range(chance.randint(1, 4)):
                schema = mutated(chance, schema)
            told.append(await process.check(json_schema(schema)))
    # Some of both, and none of them says nothing.
    assert 0 < told.count("") < count
    assert all(each == "" or each.strip() for each in told)
