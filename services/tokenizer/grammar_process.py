"""Checks a request's grammar, by compiling it in a process of its own: the library that compiles grammars has limits of
its own for most that explodes, but some of it overflows the stack or doesn't end. Here that ends a child, which answers
for nobody else, and tells that the grammar is at fault; a worker then compiles only what was compiled here.

The verdict depends on the grammar alone: the child's time is the time it computes, and its stack is smaller than
that of a worker's thread. A child is started before it is needed, at the beginning and in place of one that ended: on
a busy machine a start takes longer than a request waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import resource
import signal
from collections import Counter, OrderedDict
from pathlib import Path
from typing import NamedTuple
from weakref import WeakValueDictionary

import msgspec

from services.tokenizer.bounded_child import BoundedChild, ChildDied, ChildLate, ChildPipe

log = logging.getLogger("specmesh.tokenizer")

# Of what llguidance may compute for a grammar and its first token, in seconds.
DEADLINE = 1.0
# For a child that cannot run.
PATIENCE = 10.0
MAX_MEMORY = 2 << 30
STACK = 2 << 20
# Verdicts that are remembered. One more replaces the one of the caller that has most that wasn't asked for longest.
MOST_KNOWN = 512
# How a child ends by a grammar: out of stack, out of memory, out of time.
_BY_GRAMMAR = {
    -signal.SIGSEGV: "is nested too deeply",
    -signal.SIGABRT: "takes too much memory to compile",
    -signal.SIGPROF: f"takes longer than {DEADLINE:g} s to compile",
}


class GrammarCheckFailed(Exception):
    """The child failed, and the grammar isn't to blame."""


class _Checked(msgspec.Struct):
    problem: str


class _Known(NamedTuple):
    """A verdict, and who asked for it last."""

    problem: str
    caller: str


class _Check:
    """Of one grammar, for all that wait for it."""

    def __init__(self, task: asyncio.Task[str]) -> None:
        self.task = task
        self.callers = 0


class GrammarProcess:
    """One child, one grammar at a time; in turns by caller, whose others wait behind their first."""

    def __init__(self, tokenizer: Path) -> None:
        """`tokenizer`: the model's tokenizer.json."""
        self._child = BoundedChild(__name__, lambda: str(tokenizer).encode())
        # Those that weren't asked for longest first.
        self._known: OrderedDict[bytes, _Known] = OrderedDict()
        self._checks: dict[bytes, _Check] = {}
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._starting: asyncio.Task[None] | None = None

    def start_ahead(self) -> None:
        """In the background: nobody waits for it but a grammar that comes meanwhile."""
        if self._starting is None or self._starting.done():
            self._starting = asyncio.create_task(self._start())

    async def check(self, grammar: str, caller: str = "") -> str:
        """Why it can't be used; "": it can. Raises GrammarCheckFailed."""
        text = grammar.encode()
        key = hashlib.sha256(text).digest()
        if (known := self._known.pop(key, None)) is not None:
            self._known[key] = _Known(known.problem, caller)
            return known.problem
        if (check := self._checks.get(key)) is None:
            check = self._checks[key] = _Check(asyncio.create_task(self._in_turn(caller, key, text)))
        check.callers += 1
        try:
            return await asyncio.shield(check.task)
        finally:
            check.callers -= 1
            if not check.callers:
                # They have all gone away: if its turn hasn't come, it never will.
                check.task.cancel()
                self._checks.pop(key, None)

    async def _in_turn(self, caller: str, key: bytes, text: bytes) -> str:
        async with self._turns.setdefault(caller, asyncio.Lock()):
            problem = await self._asked(text)
            self._remember(key, _Known(problem, caller))
            return problem

    async def _asked(self, text: bytes) -> str:
        try:
            return msgspec.json.decode(await self._child.ask(text, PATIENCE), type=_Checked).problem
        except ChildDied as error:
            self.start_ahead()
            if error.status not in _BY_GRAMMAR:
                raise GrammarCheckFailed("the process that checks grammars died; try again") from None
            return _BY_GRAMMAR[error.status]
        except ChildLate:
            self.start_ahead()
            raise GrammarCheckFailed("the process that checks grammars didn't answer in time; try again") from None

    def _remember(self, key: bytes, known: _Known) -> None:
        self._known[key] = known
        if len(self._known) > MOST_KNOWN:
            [(most, _)] = Counter(each.caller for each in self._known.values()).most_common(1)
            del self._known[next(key for key, each in self._known.items() if each.caller == most)]

    async def _start(self) -> None:
        try:
            await self._child.start()
        except (ChildDied, ChildLate, OSError) as error:
            log.warning("the process that checks grammars didn't start, the next grammar starts it: %s", error)

    async def close(self) -> None:
        if self._starting is not None:
            self._starting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._starting
        await self._child.close()


# The child's side ---------------------------------------------------------------------------------------


def main() -> None:
    pipe = ChildPipe(MAX_MEMORY)
    _, hard = resource.getrlimit(resource.RLIMIT_STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (STACK, hard))
    if (tokenizer := pipe.read()) is None:
        return
    # Not in the parent, which needs none of it.
    from services.api.grammars import GrammarError, read_vocabulary, started

    vocabulary = read_vocabulary(Path(tokenizer.decode()))
    pipe.answer(b"")
    while (body := pipe.read()) is not None:
        problem = ""
        # The signal is left at its default, which ends the process even inside the library.
        signal.setitimer(signal.ITIMER_PROF, DEADLINE)
        try:
            started(vocabulary, body.decode())
        except GrammarError as error:
            problem = str(error)
        signal.setitimer(signal.ITIMER_PROF, 0)
        pipe.answer(msgspec.json.encode(_Checked(problem)))


if __name__ == "__main__":
    main()
