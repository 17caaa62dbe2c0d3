"""Compiled grammars, by their text.

    hold ─▶ held by sequences ─▶ release ─▶ idle ─▶ held again, or left out

A sequence's grammar is held from before it arrives in the engine until it has ended, so that the engine finds it
compiled; there are no more of these than sequences. Of the idle ones MOST_IDLE are kept: one more replaces the oldest
of the caller that keeps most, so no caller replaces all of another's. services/api/grammars.py bounds what each takes.

Matchers of one compiled grammar share what its lexer learns, and its lexer's limits, but no text. Compiling takes
milliseconds, at most a second for what the tokenizer's check let in, in a thread of its own. Knows no sequences.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter, OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from services.api.grammars import GrammarError, read_vocabulary, started

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MOST_IDLE = 32


@dataclass(slots=True)
class _Compiled:
    """`caller`: for whom it was last held."""

    matcher: LLMatcher
    caller: str
    holders: int = 0


class Grammars:
    def __init__(self, tokenizer: Path, vocab_size: int, ends: tuple[int, ...]) -> None:
        """`tokenizer`: the model's tokenizer.json. `ends`: the ids that end a text."""
        self.vocab_size = vocab_size
        self.ends = ends
        self._file = tokenizer
        self._held: dict[str, _Compiled] = {}
        # The oldest first.
        self._idle: OrderedDict[str, _Compiled] = OrderedDict()
        # Of the two above. Nothing is compiled under it: the engine needs it with each new sequence.
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, "compile-grammar")

    async def hold(self, grammar: str, caller: str = "") -> None:
        """Compile it, not in the caller's thread, and keep it until it is released as often as it was held. Raises
        GrammarError. If the one who waits goes away, it isn't held."""
        holding = self._thread.submit(self._hold, grammar, caller)
        try:
            await asyncio.wrap_future(holding)
        except asyncio.CancelledError:
            # This cancels it, unless its turn has come.
            holding.add_done_callback(lambda done: self._release_if_held(grammar, done))
            raise

    def release(self, grammar: str) -> None:
        with self._lock:
            compiled = self._held[grammar]
            compiled.holders -= 1
            if not compiled.holders:
                self._idle[grammar] = self._held.pop(grammar)
                self._forget()

    def read_vocabulary(self) -> None:
        """Before the worker is ready: it takes up to seconds, all with the interpreter's lock, in which one that is in
        use would count as lost. Why it can't be read is told to requests with grammars."""
        with contextlib.suppress(GrammarError, ImportError):
            _ = self.vocabulary

    async def prepare_vocabulary(self) -> None:
        """Read it, not in the caller's thread. Raises GrammarError."""
        await asyncio.get_running_loop().run_in_executor(self._thread, lambda: self.vocabulary)

    def matcher(self, grammar: str) -> LLMatcher:
        """At the beginning of a text. Raises GrammarError."""
        with self._lock:
            if (known := self._held.get(grammar) or self._idle.get(grammar)) is not None:
                return known.matcher.deep_copy()
        return self.fresh(grammar)

    def fresh(self, grammar: str) -> LLMatcher:
        """Compiled anew, as is needed where the lexer of the one that is known has reached a limit, or where nobody
        holds it. Raises GrammarError."""
        matcher = started(self.vocabulary, grammar)
        with self._lock:
            if (known := self._held.get(grammar) or self._idle.get(grammar)) is not None:
                known.matcher = matcher
            else:
                self._idle[grammar] = _Compiled(matcher, "")
                self._forget()
            return matcher.deep_copy()

    def __len__(self) -> int:
        return len(self._held) + len(self._idle)

    def bytes_of(self, token: int) -> bytes:
        """A token as text."""
        return bytes(self.vocabulary.decode_bytes([token]))

    @cached_property
    def vocabulary(self) -> LLTokenizer:
        try:
            return read_vocabulary(self._file, self.vocab_size, self.ends)
        except (OSError, ValueError) as error:
            raise GrammarError(f"this model's tokenizer can't be used with grammars: {error}") from error

    def _hold(self, grammar: str, caller: str) -> None:
        with self._lock:
            known = self._held.get(grammar) or self._idle.pop(grammar, None)
            if known is not None:
                self._held[grammar] = known
                known.caller = caller
                known.holders += 1
                return
        # Nobody else holds it meanwhile: there is one thread.
        compiled = _Compiled(started(self.vocabulary, grammar), caller, 1)
        with self._lock:
            self._idle.pop(grammar, None)
            self._held[grammar] = compiled

    def _release_if_held(self, grammar: str, holding: Future[None]) -> None:
        if not holding.cancelled() and holding.exception() is None:
            self.release(grammar)

    def _forget(self) -> None:
        while len(self._idle) > MOST_IDLE:
            [(most, _)] = Counter(each.caller for each in self._idle.values()).most_common(1)
            del self._idle[next(grammar for grammar, each in self._idle.items() if each.caller == most)]
