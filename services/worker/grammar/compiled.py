"""Compiled grammars, by their text: the least recently used go first.

Matchers of one compiled grammar share what its lexer learns, and its lexer's limits, but no text. Compiling takes
milliseconds, at most a second for what the tokenizer's check let in: `prepare` does it in a thread of its own, before a
sequence arrives in the engine. Knows no sequences.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from services.api.grammars import GrammarError, read_vocabulary, started

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MOST_GRAMMARS = 64
MOST_CHARACTERS = 1 << 22  # of all of them


class Grammars:
    def __init__(self, tokenizer: Path, vocab_size: int, ends: tuple[int, ...]) -> None:
        """`tokenizer`: the model's tokenizer.json. `ends`: the ids that end a text."""
        self.vocab_size = vocab_size
        self.ends = ends
        self._file = tokenizer
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()
        self._characters = 0
        # Of the two above. Nothing is compiled under it: the engine needs it with each new sequence.
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, "compile-grammar")

    async def prepare(self, grammar: str) -> None:
        """Compile it, not in the caller's thread. Raises GrammarError."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self.matcher, grammar)

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
            if (known := self._compiled.get(grammar)) is not None:
                self._compiled.move_to_end(grammar)
                return known.deep_copy()
        return self.fresh(grammar)

    def fresh(self, grammar: str) -> LLMatcher:
        """Compiled anew, as is needed where the lexer of the one that is known has reached a limit. Raises
        GrammarError."""
        matcher = started(self.vocabulary, grammar)
        with self._lock:
            self._keep(grammar, matcher)
            return matcher.deep_copy()

    def __len__(self) -> int:
        return len(self._compiled)

    @cached_property
    def vocabulary(self) -> LLTokenizer:
        try:
            return read_vocabulary(self._file, self.vocab_size, self.ends)
        except (OSError, ValueError) as error:
            raise GrammarError(f"this model's tokenizer can't be used with grammars: {error}") from error

    def _keep(self, grammar: str, matcher: LLMatcher) -> None:
        if self._compiled.pop(grammar, None) is None:
            self._characters += len(grammar)
        self._compiled[grammar] = matcher
        while len(self._compiled) > MOST_GRAMMARS or self._characters > MOST_CHARACTERS:
            oldest, _ = self._compiled.popitem(last=False)
            self._characters -= len(oldest)
