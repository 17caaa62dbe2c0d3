"""pydantic-ai: outputs by tool and by schema, and an agent that ends a task of three steps."""

from __future__ import annotations

from typing import Any, Literal

import pytest

pydantic_ai = pytest.importorskip("pydantic_ai")
pydantic = pytest.importorskip("pydantic")

from pydantic_ai import Agent, NativeOutput, Tool, ToolOutput  # noqa: E402
from pydantic_ai.models.openai import OpenAIChatModel  # noqa: E402
from pydantic_ai.providers.openai import OpenAIProvider  # noqa: E402

pytestmark = pytest.mark.slow

SETTINGS: Any = {"max_tokens": 200, "temperature": 0, "seed": 1, "parallel_tool_calls": False}


class Person(pydantic.BaseModel):
    """A person."""

    name: str = pydantic.Field(max_length=12)
    age: int = pydantic.Field(ge=0, le=99)


@pytest.fixture
def chat(server: str, model: str) -> Any:
    return OpenAIChatModel(model, provider=OpenAIProvider(base_url=server, api_key="none"))


OUTPUTS = [Person, ToolOutput(Person), NativeOutput(Person), NativeOutput(Person, strict=True)]


@pytest.mark.parametrize("output", OUTPUTS, ids=["type", "tool", "native", "strict"])
def test_an_output_is_an_object(chat: Any, output: Any) -> None:
    said = Agent(chat, output_type=output, model_settings=SETTINGS).run_sync("Ann is 12.")
    assert isinstance(said.output, Person) and said.usage.output_tokens


def test_an_agent_ends_a_task_of_three_steps(chat: Any) -> None:
    done: list[str] = []

    def open_door(color: Literal["red", "blue"]) -> str:
        """Opens a door."""
        done.append("open_door")
        return f"Behind the {color} door lies a key."

    def take_key(count: int) -> str:
        """Takes keys."""
        done.append("take_key")
        return f"You have {count}."

    def settings(context: Any) -> Any:
        steps = ["open_door", "take_key"]
        return {**SETTINGS, "tool_choice": [steps[len(done)]]} if len(done) < len(steps) else SETTINGS

    async def until_done(context: Any, tool: Any) -> Any:
        return tool if len(done) < 2 else None

    tools = [Tool(each, prepare=until_done) for each in (open_door, take_key)]
    agent = Agent(chat, output_type=ToolOutput(Person, name="finish"), tools=tools, model_settings=settings)
    said = agent.run_sync("Open the door, take the key, then finish with Ann, who is 12.")
    assert done == ["open_door", "take_key"] and isinstance(said.output, Person)
    assert said.usage.requests == 3
