"""langchain-openai: structured output in its three ways, bound tools, chunks of calls, and an agent's loop."""

from __future__ import annotations

from typing import Any, Literal

import pytest

langchain_openai = pytest.importorskip("langchain_openai")
pydantic = pytest.importorskip("pydantic")

from langchain_core.messages import HumanMessage, ToolMessage  # noqa: E402
from langchain_core.tools import tool  # noqa: E402

pytestmark = pytest.mark.slow

ASKED = "Describe Ann, who is 12, as JSON with name and age."


class Person(pydantic.BaseModel):
    """A person."""

    model_config = pydantic.ConfigDict(extra="forbid")
    name: str = pydantic.Field(max_length=12)
    age: int = pydantic.Field(ge=0, le=99)


@tool
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@tool
def finish(word: Literal["yes", "no"]) -> str:
    """Ends the task."""
    return word


TOOLS = {"add": add, "finish": finish}


@pytest.fixture
def chat(server: str, model: str) -> Any:
    return langchain_openai.ChatOpenAI(
        model=model, base_url=server, api_key="none", max_retries=0, max_tokens=200, temperature=0
    )


@pytest.mark.parametrize("strict", [None, True, False])
@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_an_answer_has_its_structure(chat: Any, method: str, strict: bool | None) -> None:
    asked = chat.with_structured_output(Person, method=method, strict=strict)
    assert isinstance(asked.invoke(ASKED), Person)
    assert isinstance(list(asked.stream(ASKED))[-1], Person)
    assert asked.with_config(tags=["two"]).batch([ASKED] * 2) == [asked.invoke(ASKED)] * 2


def test_json_mode_gives_an_object(chat: Any) -> None:
    """Whether it is a person is the model's affair."""
    said = chat.with_structured_output(method="json_mode", schema=None).invoke(ASKED)
    assert isinstance(said, dict) and said


@pytest.mark.parametrize("choice", ["any", "required", "add", True, {"type": "function", "function": {"name": "add"}}])
def test_bound_tools_are_called(chat: Any, choice: Any) -> None:
    tools = [add] if choice is True else [add, finish]
    (call,) = chat.bind_tools(tools, tool_choice=choice, parallel_tool_calls=False).invoke("Add 3 and 4.").tool_calls
    assert call["name"] == "add" or choice in ("any", "required")
    assert TOOLS[call["name"]].invoke(call).status == "success"


def test_chunks_of_a_call_add_up(chat: Any) -> None:
    asked = chat.bind_tools([add, finish], tool_choice="add", stream_usage=True)
    chunks = list(asked.stream("Add 3 and 4."))
    whole = chunks[0]
    for each in chunks[1:]:
        whole += each
    (call,) = whole.tool_calls
    assert call["name"] == "add" and set(call["args"]) >= {"a", "b"} and not whole.invalid_tool_calls
    assert whole.response_metadata["finish_reason"] == "tool_calls"
    assert sum(bool(each.tool_call_chunks) for each in chunks) > 1


def test_a_task_of_three_steps_ends(chat: Any) -> None:
    messages: list[Any] = [HumanMessage("Add 3 and 4, add 1 to it, then finish.")]
    for name in ("add", "add", "finish"):
        said = chat.bind_tools([add, finish], tool_choice=name, strict=True).invoke(messages)
        messages += [said, *(TOOLS[each["name"]].invoke(each) for each in said.tool_calls)]
    assert [each.name for each in messages if isinstance(each, ToolMessage)] == ["add", "add", "finish"]
    assert chat.invoke(messages).content
