"""The template's own process: answers, deadlines, deaths, and callers that go away."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from mesh_doubles.messages import until

from services.api.chat_templates import TemplateSource
from services.api.messages import ChatTurn
from services.tokenizer.chat_template import TemplateError
from services.tokenizer.template_process import TemplateBroken, TemplateDeadline, TemplateProcess

HI = [ChatTurn(role="user", content="hi", name="ann")]
ECHO = "{{ messages[0].name }} {{ messages[0].role }}: {{ messages[0].content }}"
# Loops for ever when told to; without output, so that nothing in Python looks at it.
LOOP_ON_DEMAND = (
    "{% if messages[0].content == 'loop' %}"
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    "{% endif %}" + ECHO
)


@asynccontextmanager
async def running(text: str, deadline: float = 10.0, max_chars: int = 1 << 22) -> AsyncIterator[TemplateProcess]:
    process = TemplateProcess(TemplateSource(text, {}), max_chars=max_chars, deadline=deadline)
    await process.start()
    try:
        yield process
    finally:
        await process.close()


def pid_of(process: TemplateProcess) -> int:
    assert process._child.process is not None
    return process._child.process.pid


def exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def lives(pid: int) -> bool:
    """And isn't only waiting to be buried."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def environment_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


async def test_conversations_are_rendered_one_after_the_other() -> None:
    async with running(ECHO) as process:
        asked = [process.render([ChatTurn(role="user", content=str(n), name="n")], True) for n in range(20)]
        assert await asyncio.gather(*asked) == [f"n user: {n}" for n in range(20)]


async def test_a_conversation_of_megabytes_fits_through_the_pipe() -> None:
    async with running("{{ messages[0].content }}", max_chars=5 << 20) as process:
        long = "ü" * (2 << 20)
        assert await process.render([ChatTurn(role="user", content=long)], True) == long


async def test_an_endless_template_ends_at_its_deadline_and_the_next_call_works() -> None:
    async with running(LOOP_ON_DEMAND, deadline=1.0) as process:
        first = pid_of(process)
        with pytest.raises(TemplateDeadline, match=r"longer than 1 s"):
            await process.render([ChatTurn(role="user", content="loop")], True)
        assert await process.render(HI, True) == "ann user: hi"
        assert pid_of(process) != first
        assert not exists(first)


async def test_a_template_that_eats_memory_is_refused() -> None:
    # Doubling a string 50 times would take a petabyte.
    text = "{% set ns = namespace(x='xxxxxxxx') %}{% for i in range(50) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}"
    async with running(text) as process:
        with pytest.raises(TemplateError, match="memory"):
            await process.render(HI, True)


# Working out this constant takes years, and the memory is a gigabit.
ENDLESS_CONSTANT = "{{ 9**(9**9) }}"


@pytest.mark.parametrize(
    ("text", "deadline", "why"),
    [
        (ENDLESS_CONSTANT, 0.5, r"compiling it took longer than 0\.5 s"),
        ("{% for %}", 20.0, "Expected"),
        ("{{ 'x' * 900000000 }}", 20.0, "memory"),
        ("{{ " + "(" * 20_000 + "1" + ")" * 20_000 + " }}", 20.0, "recursion"),
    ],
    ids=["endless", "syntax", "memory", "depth"],
)
async def test_a_template_that_cannot_be_compiled_is_known_from_the_start(
    text: str, deadline: float, why: str
) -> None:
    """It ends in the child, under its deadline and its memory limit; and no child is started for it again."""
    process = TemplateProcess(TemplateSource(text, {}), max_chars=1 << 20, deadline=deadline)
    with pytest.raises(TemplateBroken, match=why):
        await process.start()
    for _ in range(2):
        with pytest.raises(TemplateBroken, match=why):
            await process.render(HI, True)
    assert process._child.process is None


async def test_a_child_killed_while_it_compiles_says_nothing_against_the_template() -> None:
    process = TemplateProcess(TemplateSource(ENDLESS_CONSTANT, {}), max_chars=1 << 20, deadline=60.0)
    starting = asyncio.create_task(process.start())
    await until(lambda: process._child.process is not None)
    os.kill(pid_of(process), signal.SIGKILL)
    with pytest.raises(TemplateError, match="died; try again"):
        await starting
    process._setup.source = TemplateSource(ECHO, {})
    assert await process.render(HI, True) == "ann user: hi"
    await process.close()


async def test_a_template_error_is_an_answer_not_a_death() -> None:
    async with running("{{ raise_exception('no') }}") as process:
        first = pid_of(process)
        for _ in range(2):
            with pytest.raises(TemplateError, match=r"^no$"):
                await process.render(HI, True)
        assert pid_of(process) == first


async def test_a_killed_process_costs_at_most_the_call_it_was_killed_in() -> None:
    async with running(ECHO) as process:
        os.kill(pid_of(process), signal.SIGKILL)
        try:
            await process.render(HI, True)
        except TemplateError as error:
            assert "died" in str(error)
        assert await process.render(HI, True) == "ann user: hi"


async def test_of_a_dead_process_nothing_is_left_to_complain_of_later() -> None:
    """Asked of it before the loop has noticed: what is written to it then breaks."""
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
    async with running(ECHO) as process:
        await process.render(HI, True)
        pid = pid_of(process)
        os.kill(pid, signal.SIGKILL)
        while lives(pid):
            pass
        with pytest.raises(TemplateError, match="died"):
            await process.render(HI, True)
        assert await process.render(HI, True) == "ann user: hi"
    gc.collect()
    assert complaints == []


PARENT = """
import asyncio, sys
from services.api.messages import ChatTurn
from services.api.chat_templates import TemplateSource
from services.tokenizer.template_process import TemplateProcess

async def main():
    process = TemplateProcess(TemplateSource(sys.argv[1], {}), max_chars=1 << 20, deadline=600.0)
    await process.start()
    await process.render([ChatTurn(role="user", content="hi", name="ann")], True)
    print(process._child.process.pid, flush=True)
    await process.render([ChatTurn(role="user", content="loop", name="ann")], True)

asyncio.run(main())
"""


async def test_it_dies_with_its_parent_also_in_the_middle_of_an_endless_template() -> None:
    arguments = [sys.executable, "-c", PARENT, LOOP_ON_DEMAND]
    parent = await asyncio.create_subprocess_exec(*arguments, stdout=asyncio.subprocess.PIPE)
    assert parent.stdout is not None
    pid = int(await parent.stdout.readline())
    assert lives(pid)
    parent.kill()
    await parent.wait()
    await until(lambda: not lives(pid))


async def test_a_caller_that_goes_away_does_not_shift_the_answers_of_the_others() -> None:
    async with running(ECHO) as process:
        for n in range(20):
            gone = asyncio.create_task(process.render([ChatTurn(role="user", content="gone", name="x")], True))
            await asyncio.sleep(0)
            gone.cancel()
            stays = process.render([ChatTurn(role="user", content=str(n), name="n")], True)
            assert await stays == f"n user: {n}"


async def test_the_process_sees_no_secrets_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECMESH_API_KEYS", "secret")
    async with running(ECHO) as process:
        await process.render(HI, True)
        assert b"secret" not in environment_of(pid_of(process))


async def test_closing_leaves_no_process() -> None:
    async with running(ECHO) as process:
        pid = pid_of(process)
    assert not exists(pid)
