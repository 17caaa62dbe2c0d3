"""The chat template in a process of its own, because a sandbox bounds what a template reaches, not how long
it runs: a loop inside Python can't be stopped from a thread, a process can. Compiling it computes, too: jinja2 works
out constant expressions.

    parent ──source──▶ child: compiles     parent ◀──compiled, or why not── child
           ──turns──▶         renders             ◀──text, or an error──

A frame is four bytes of length, then JSON. The child arms timers that kill it in the kernel at the deadline, has a
limit on its memory, holds no secrets in its environment, and ends when its input closes or its parent dies.
It knows nothing of tokens.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import sys
from typing import IO

import msgspec

from services.api.messages import ChatTurn
from services.runtime.children import tied
from services.tokenizer.chat_template import ChatTemplate, TemplateError, TemplateSource
from specmesh.rooms import command

# Python, jinja2 and the largest conversation take a tenth of this.
MAX_MEMORY = 1 << 30
_HEADER = 4
# For a child to start in, however busy the machine is; what it computes then is bounded by its own timer.
_START_TIMEOUT = 30.0  # s


class TemplateDeadline(TemplateError):
    """Rendering took longer than it may."""


class TemplateBroken(TemplateError):
    """It can't be compiled, and that won't change."""


class _Setup(msgspec.Struct):
    source: TemplateSource
    max_chars: int
    deadline: float


class _Job(msgspec.Struct):
    turns: list[dict[str, str]]
    add_generation_prompt: bool


class _Answer(msgspec.Struct):
    text: str | None = None
    error: str = ""


# The parent's side --------------------------------------------------------------------------------------


class TemplateProcess:
    """One child, one conversation at a time. A child that dies is replaced at the next call."""

    def __init__(self, source: TemplateSource, *, max_chars: int, deadline: float) -> None:
        self._setup = _Setup(source, max_chars, deadline)
        self._child: asyncio.subprocess.Process | None = None
        self._broken = ""
        self._one_at_a_time = asyncio.Lock()

    async def start(self) -> None:
        """Broken syntax is found here and not at the first request. Raises TemplateError; `render` can be called
        nevertheless, and raises it again unless it was the child that failed, not the template."""
        async with self._one_at_a_time:
            await self._living_child()

    async def render(self, turns: list[ChatTurn], add_generation_prompt: bool) -> str:
        """Raises TemplateError. A caller that goes away leaves the exchange to end by itself, because half
        an exchange would give the next caller this one's answer."""
        job = _Job([_as_dict(turn) for turn in turns], add_generation_prompt)
        answer = await asyncio.shield(asyncio.ensure_future(self._exchange(msgspec.json.encode(job))))
        if answer.text is None:
            raise TemplateError(answer.error)
        return answer.text

    async def close(self) -> None:
        async with self._one_at_a_time:
            await self._end_child()

    async def _exchange(self, job: bytes) -> _Answer:
        async with self._one_at_a_time:
            # The child's own timer is the deadline; this one is for a child that cannot run at all.
            return await self._answer(await self._living_child(), job, self._setup.deadline + 1.0)

    async def _answer(self, child: asyncio.subprocess.Process, question: bytes, timeout: float) -> _Answer:
        assert child.stdin is not None and child.stdout is not None
        try:
            async with asyncio.timeout(timeout):
                child.stdin.write(_frame(question))
                await child.stdin.drain()
                header = await child.stdout.readexactly(_HEADER)
                body = await child.stdout.readexactly(int.from_bytes(header, "big"))
        except TimeoutError:
            await self._end_child()
            raise self._too_slow() from None
        except (asyncio.IncompleteReadError, ConnectionError):
            status = await self._end_child()
            if status == -signal.SIGALRM:
                raise self._too_slow() from None
            if status == -signal.SIGPROF:
                took = f"compiling it took longer than {self._setup.deadline:g} s"
                raise TemplateBroken(f"the model's chat template is broken: {took}") from None
            raise TemplateError("the process that renders chat templates died; try again") from None
        return msgspec.json.decode(body, type=_Answer)

    async def _living_child(self) -> asyncio.subprocess.Process:
        """A child that has compiled the template. Raises TemplateError."""
        if self._broken:
            raise TemplateBroken(self._broken)
        if self._child is not None and self._child.returncode is None:
            return self._child
        await self._end_child()
        child = await asyncio.create_subprocess_exec(
            # Our death ends it at once, also while it starts or renders and reads nothing.
            *tied(command(__name__)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=_child_environment(),
        )
        self._child = child
        try:
            compiled = await self._answer(child, msgspec.json.encode(self._setup), _START_TIMEOUT)
            if compiled.text is None:
                await self._end_child()
                raise TemplateBroken(compiled.error)
        except TemplateBroken as error:
            self._broken = str(error)
            raise
        return child

    async def _end_child(self) -> int | None:
        child, self._child = self._child, None
        if child is None:
            return None
        assert child.stdin is not None
        child.stdin.close()
        try:
            async with asyncio.timeout(0.5):
                await child.wait()
        except TimeoutError:
            child.kill()
        status = await child.wait()
        # Unsent input of a dead child doesn't matter; unless it is awaited, some Pythons warn of it at exit.
        with contextlib.suppress(OSError):
            await child.stdin.wait_closed()
        return status

    def _too_slow(self) -> TemplateDeadline:
        return TemplateDeadline(f"the model's chat template took longer than {self._setup.deadline:g} s")


def _as_dict(turn: ChatTurn) -> dict[str, str]:
    message = {"role": turn.role, "content": turn.content}
    return message if turn.name is None else {**message, "name": turn.name}


def _frame(body: bytes) -> bytes:
    return len(body).to_bytes(_HEADER, "big") + body


def _child_environment() -> dict[str, str]:
    """Enough to start Python and to know the time zone; keys and passwords stay here."""
    harmless = ("PATH", "TZ", "LANG", "LD_LIBRARY_PATH", "PYTHONPATH")
    return {name: os.environ[name] for name in harmless if name in os.environ}


# The child's side ---------------------------------------------------------------------------------------


def main() -> None:
    # Ctrl-C reaches the whole foreground group: the parent drains, and we end when it closes our input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    first = _read_frame(requests)
    if first is None:
        return
    setup = msgspec.json.decode(first, type=_Setup)
    # Both signals are left at their default, which ends the process even inside C code. Compiling is timed by the time
    # it computes: its verdict is final, and a busy machine must not make it.
    signal.setitimer(signal.ITIMER_PROF, setup.deadline)
    try:
        template = ChatTemplate(setup.source, setup.max_chars)
    except TemplateError as error:
        _tell(answers, _Answer(error=str(error)))
        return
    signal.setitimer(signal.ITIMER_PROF, 0)
    _tell(answers, _Answer(text=""))
    while (body := _read_frame(requests)) is not None:
        signal.setitimer(signal.ITIMER_REAL, setup.deadline)
        answer = _render(template, msgspec.json.decode(body, type=_Job))
        signal.setitimer(signal.ITIMER_REAL, 0)
        _tell(answers, answer)


def _tell(answers: IO[bytes], answer: _Answer) -> None:
    answers.write(_frame(msgspec.json.encode(answer)))
    answers.flush()


def _render(template: ChatTemplate, job: _Job) -> _Answer:
    try:
        return _Answer(text=template.render(job.turns, job.add_generation_prompt))
    except TemplateError as error:
        return _Answer(error=str(error))


def _read_frame(stream: IO[bytes]) -> bytes | None:
    header = stream.read(_HEADER)
    if len(header) < _HEADER:
        return None
    body = stream.read(int.from_bytes(header, "big"))
    return body if len(body) == int.from_bytes(header, "big") else None


if __name__ == "__main__":
    main()
