"""The chat template in a process of its own, because a sandbox bounds what a template reaches, not how long
it runs: a loop inside Python can't be stopped from a thread, a process can. Compiling it computes, too: jinja2 works
out constant expressions.

    parent ──source──▶ child: compiles     parent ◀──compiled, or why not── child
           ──turns──▶         renders             ◀──text, or an error──

The child arms timers that kill it in the kernel at the deadline (bounded_child.py). It knows nothing of tokens.
"""

from __future__ import annotations

import signal
from typing import Any

import msgspec

from services.api.chat_templates import TemplateSource
from services.api.messages import ChatTurn
from services.tokenizer.bounded_child import BoundedChild, ChildDied, ChildLate, ChildPipe
from services.tokenizer.call_arguments import CallArguments
from services.tokenizer.chat_template import ChatTemplate, TemplateError

# Python, jinja2 and the largest conversation take a tenth of this.
MAX_MEMORY = 1 << 30


class TemplateDeadline(TemplateError):
    """Rendering took longer than it may."""


class TemplateBroken(TemplateError):
    """It can't be compiled, and that won't change."""


class _Setup(msgspec.Struct):
    source: TemplateSource
    max_chars: int
    deadline: float


class _Job(msgspec.Struct):
    turns: list[dict[str, Any]]
    add_generation_prompt: bool
    # The parent puts JSON in as it came.
    tools: Any = ()
    kwargs: Any = None


class _Answer(msgspec.Struct):
    text: str | None = None
    error: str = ""


# The parent's side --------------------------------------------------------------------------------------


class TemplateProcess:
    """One child, one conversation at a time. A child that dies is replaced at the next call."""

    def __init__(self, source: TemplateSource, *, max_chars: int, deadline: float) -> None:
        self._setup = _Setup(source, max_chars, deadline)
        self._child = BoundedChild(__name__, lambda: msgspec.json.encode(self._setup), self._compiled)
        self._broken = ""

    async def start(self) -> None:
        """Broken syntax is found here and not at the first request. Raises TemplateError; `render` can be called
        nevertheless, and raises it again unless it was the child that failed, not the template."""
        try:
            await self._child.start()
        except (ChildDied, ChildLate) as error:
            raise self._failed(error) from None

    async def render(
        self, turns: list[ChatTurn], add_generation_prompt: bool, tools: str = "", kwargs: str = ""
    ) -> str:
        """`tools` and `kwargs` are JSON, or empty. Raises TemplateError."""
        if self._broken:
            raise TemplateBroken(self._broken)
        job = _Job([_as_dict(turn) for turn in turns], add_generation_prompt, _raw(tools), _raw(kwargs))
        try:
            # The child's own timer is the deadline; this one is for a child that cannot run at all.
            body = await self._child.ask(msgspec.json.encode(job), self._setup.deadline + 1.0)
        except (ChildDied, ChildLate) as error:
            raise self._failed(error) from None
        answer = msgspec.json.decode(body, type=_Answer)
        if answer.text is None:
            raise TemplateError(answer.error)
        return answer.text

    async def close(self) -> None:
        await self._child.close()

    def _compiled(self, body: bytes) -> None:
        answer = msgspec.json.decode(body, type=_Answer)
        if answer.text is None:
            self._broken = answer.error
            raise TemplateBroken(answer.error)

    def _failed(self, error: ChildDied | ChildLate) -> TemplateError:
        late = f"{self._setup.deadline:g} s"
        if isinstance(error, ChildLate) or error.status == -signal.SIGALRM:
            return TemplateDeadline(f"the model's chat template took longer than {late}")
        if error.status == -signal.SIGPROF:
            self._broken = f"the model's chat template is broken: compiling it took longer than {late}"
            return TemplateBroken(self._broken)
        return TemplateError("the process that renders chat templates died; try again")


def _as_dict(turn: ChatTurn) -> dict[str, Any]:
    """As templates read it: what isn't given has no key."""
    message: dict[str, Any] = {"role": turn.role, "content": turn.content}
    if turn.tool_calls:
        message["tool_calls"] = [
            {"id": each.id, "type": "function", "function": {"name": each.name, "arguments": each.arguments}}
            for each in turn.tool_calls
        ]
    others = {
        "name": turn.name,
        "tool_call_id": turn.tool_call_id,
        # Templates read one of these.
        "reasoning_content": turn.reasoning,
        "reasoning": turn.reasoning,
        # gpt-oss's, which refuses it beside the content of a turn that calls.
        "thinking": None if turn.tool_calls and turn.content else turn.reasoning,
    }
    return message | {name: value for name, value in others.items() if value is not None}


def _raw(text: str) -> msgspec.Raw | None:
    """JSON that is put in as it is."""
    return msgspec.Raw(text.encode()) if text else None


# The child's side ---------------------------------------------------------------------------------------


def main() -> None:
    pipe = ChildPipe(MAX_MEMORY)
    if (first := pipe.read()) is None:
        return
    setup = msgspec.json.decode(first, type=_Setup)
    # Both signals are left at their default, which ends the process even inside C code. Compiling is timed by the time
    # it computes: its verdict is final, and a busy machine must not make it.
    signal.setitimer(signal.ITIMER_PROF, setup.deadline)
    try:
        template = ChatTemplate(setup.source, setup.max_chars)
    except TemplateError as error:
        pipe.answer(msgspec.json.encode(_Answer(error=str(error))))
        return
    signal.setitimer(signal.ITIMER_PROF, 0)
    pipe.answer(msgspec.json.encode(_Answer(text="")))
    while (body := pipe.read()) is not None:
        signal.setitimer(signal.ITIMER_REAL, setup.deadline)
        answer = _render(template, body)
        signal.setitimer(signal.ITIMER_REAL, 0)
        pipe.answer(msgspec.json.encode(answer))


def _render(template: ChatTemplate, body: bytes) -> _Answer:
    try:
        job = msgspec.json.decode(body, type=_Job)
        for call in (call for turn in job.turns for call in turn.get("tool_calls", ())):
            call["function"]["arguments"] = CallArguments(call["function"]["arguments"])
        return _Answer(text=template.render(job.turns, job.add_generation_prompt, job.tools or (), job.kwargs))
    except TemplateError as error:
        return _Answer(error=str(error))
    except (ValueError, RecursionError):
        return _Answer(error="the conversation's JSON can't be read: it is nested too deep, or no JSON")


if __name__ == "__main__":
    main()
