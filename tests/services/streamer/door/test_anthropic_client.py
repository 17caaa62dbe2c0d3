"""The anthropic package as a client, where it is installed: its types, its stream, and its exceptions."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fake_mesh import MODEL, FakeMesh, FakeTarget, failed, ids_of, says, tokens

if TYPE_CHECKING:
    from mesh.stream import StreamWriter
    from services.api.messages import Generate

anthropic = pytest.importorskip("anthropic")

CALLS = (
    "<think>\nthe fox?\n</think>\n\nOn it.\n"
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Bonn", "days": [1, 2]}}\n</tool_call>\n'
    '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'
)
KINDS = ["thinking", "text", "tool_use", "tool_use"]
TOOLS = [{"name": name, "description": name, "input_schema": {"type": "object"}} for name in ("weather", "time")]
PAGE = Path(__file__).parents[4] / "docs/use/messages.md"
HI: list[Any] = [{"role": "user", "content": "hi"}]
ASKED: dict[str, Any] = {"model": MODEL, "max_tokens": 200, "messages": HI}


@pytest.fixture
async def client(mesh: FakeMesh) -> AsyncIterator[Any]:
    await mesh.start_door(api_keys="secret", reasoning_parser="qwen3")
    async with anthropic.AsyncAnthropic(
        base_url=mesh.url, api_key="secret", max_retries=0, _strict_response_validation=True
    ) as client:
        yield client


async def test_a_message_parses_strictly(mesh: FakeMesh, client: Any) -> None:
    await mesh.start_target(says("hello the fox", cached=3))
    answer = await client.messages.create(
        **ASKED, system=[{"type": "text", "text": "brief", "cache_control": {"type": "ephemeral"}}],
        metadata={"user_id": "me"}, extra_body={"temperature": 0.2, "top_k": 4, "speculation": {"method": "ngram"}},
    )  # fmt: skip
    assert [block.text for block in answer.content] == ["hello the fox"]
    assert (answer.stop_reason, answer.stop_sequence, answer.role) == ("end_turn", None, "assistant")
    assert (answer.usage.output_tokens, answer.usage.cache_read_input_tokens) == (4, 3)
    stopped = await client.messages.create(**ASKED, stop_sequences=["the"])
    assert (stopped.stop_reason, stopped.stop_sequence, stopped.content[0].text) == ("stop_sequence", "the", "hello ")


async def test_raw_events_parse_strictly(mesh: FakeMesh, client: Any) -> None:
    await mesh.start_target(says("hello the fox"))
    events = [each async for each in await client.messages.create(**ASKED, stream=True)]
    kinds = [each.type for each in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert "".join(each.delta.text for each in events if each.type == "content_block_delta") == "hello the fox"


@pytest.mark.parametrize("group", [1, 6, 500])
async def test_a_stream_joins_to_the_message(mesh: FakeMesh, client: Any, group: int) -> None:
    await mesh.start_target(says(CALLS, group, cached=1))
    whole = await client.messages.create(**ASKED, tools=TOOLS)
    assert [block.type for block in whole.content] == KINDS
    async with client.messages.stream(**ASKED, tools=TOOLS) as stream:
        seen = [each.type async for each in stream]
        joined = await stream.get_final_message()
    assert {"text", "thinking", "input_json", "content_block_stop"} <= {*seen}
    assert content(joined) == content(whole)
    assert (joined.stop_reason, joined.usage) == ("tool_use", whole.usage)


def content(message: Any) -> list[Any]:
    """Without the ids of the calls, which are new in each answer."""
    return [block.model_dump(exclude={"id"}, exclude_none=True) for block in message.content]


async def test_calls_that_are_cut_off_join_to_what_the_message_has(mesh: FakeMesh, client: Any) -> None:
    await mesh.start_target(says(CALLS))
    begin = CALLS.index("weather")
    for place in range(begin, CALLS.index("</tool_call>")):
        fields = {**ASKED, "max_tokens": len(ids_of(CALLS[:place])), "tools": TOOLS}
        whole = await client.messages.create(**fields)
        async with client.messages.stream(**fields) as stream:
            joined = await stream.get_final_message()
        assert joined.stop_reason == whole.stop_reason == "max_tokens"
        assert content(joined) == content(whole), CALLS[begin:place]


async def test_an_agent_ends_its_task(mesh: FakeMesh, client: Any) -> None:
    """The content of each answer is sent back as it came."""
    answers = [CALLS, '<tool_call>{"name": "time", "arguments": {"zone": "CET"}}</tool_call>', "Sunny at noon."]

    async def plays(target: FakeTarget, message: Generate, out: StreamWriter) -> None:
        await says(answers[len(target.asked) - 1])(target, message, out)

    target = await mesh.start_target(plays)
    messages, called = [*HI], list[tuple[str, Any]]()
    while True:
        async with client.messages.stream(model=MODEL, max_tokens=900, messages=messages, tools=TOOLS) as stream:
            answer = await stream.get_final_message()
        if answer.stop_reason != "tool_use":
            break
        calls = [block for block in answer.content if block.type == "tool_use"]
        called += [(block.name, block.input) for block in calls]
        results = [{"type": "tool_result", "tool_use_id": block.id, "content": "21"} for block in calls]
        messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": results}]
    assert called == [("weather", {"city": "Bonn", "days": [1, 2]}), ("time", {}), ("time", {"zone": "CET"})]
    assert [block.text for block in answer.content] == ["Sunny at noon."]
    assert len(target.asked) == 3


async def test_tokens_are_counted(mesh: FakeMesh, client: Any) -> None:
    await mesh.start_target(says("hello"))
    counted = await client.messages.count_tokens(model=MODEL, messages=HI, system="brief", tools=TOOLS)
    answer = await client.messages.create(**ASKED, system="brief", tools=TOOLS)
    assert counted.input_tokens == answer.usage.input_tokens


async def test_an_answer_parses_into_a_type(mesh: FakeMesh, client: Any) -> None:
    pydantic = pytest.importorskip("pydantic")
    person = pydantic.create_model("Person", name=(str, ...), age=(int, ...))
    await mesh.start_target(says('{"name": "Ann", "age": 9}'))
    answer = await client.messages.parse(**ASKED, output_format=person)
    assert answer.parsed_output == person(name="Ann", age=9)


async def test_errors_are_the_exceptions_that_clients_catch(mesh: FakeMesh, client: Any) -> None:
    await mesh.start_target(says("hello"))
    with pytest.raises(anthropic.BadRequestError, match="temperature") as bad:
        await client.messages.create(**ASKED, extra_body={"temperature": 9})
    assert bad.value.body["error"]["type"] == "invalid_request_error"
    with pytest.raises(anthropic.NotFoundError):
        await client.messages.create(**{**ASKED, "model": "other"})
    with pytest.raises(anthropic.AuthenticationError):
        await client.with_options(api_key="wrong").messages.create(**ASKED)
    with pytest.raises(anthropic.BadRequestError):
        await client.messages.count_tokens(model=MODEL, messages=[])
    assert mesh.door is not None
    await mesh.door.drain(0.0)
    with pytest.raises(anthropic.InternalServerError) as overloaded:
        await client.messages.create(**ASKED)
    assert (overloaded.value.status_code, overloaded.value.body["error"]["type"]) == (529, "overloaded_error")


async def test_a_stream_that_fails_raises(mesh: FakeMesh, client: Any) -> None:
    async def breaks(target: FakeTarget, message: Generate, out: StreamWriter) -> None:
        await out.send(tokens(message, 0, ids_of("hello")))
        await out.send(failed(message, "engine"))

    await mesh.start_target(breaks)
    with pytest.raises(anthropic.APIStatusError, match="it was engine"):
        async with client.messages.stream(**ASKED) as stream:
            await stream.get_final_message()


async def test_the_example_of_the_page_runs(mesh: FakeMesh, capsys: pytest.CaptureFixture[str]) -> None:
    await mesh.start_target(says("hello the fox"))
    await mesh.start_door()
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    example = example.replace("http://127.0.0.1:8000", mesh.url).replace("smollm2-135m-instruct", MODEL)
    await asyncio.to_thread(exec, example, {})
    assert capsys.readouterr().out.startswith("hello the fox end_turn Usage(")
