"""instructor: its modes for servers of OpenAI's API, partial objects, and an answer that is asked for again."""

from __future__ import annotations

from typing import Any, Literal

import pytest

instructor = pytest.importorskip("instructor")
openai = pytest.importorskip("openai")
pydantic = pytest.importorskip("pydantic")

pytestmark = pytest.mark.slow

ASKED: Any = [{"role": "user", "content": "Ann is 12 years old."}]


class Person(pydantic.BaseModel):
    """A person."""

    model_config = pydantic.ConfigDict(extra="forbid")
    name: str = pydantic.Field(max_length=12)
    age: int = pydantic.Field(ge=0, le=99)
    kind: Literal["child", "adult"]


def client(server: str, mode: str) -> Any:
    of_openai = openai.OpenAI(base_url=server, api_key="none", max_retries=0)
    return instructor.from_openai(of_openai, mode=getattr(instructor.Mode, mode))


MODES = ["TOOLS", "TOOLS_STRICT", "JSON_SCHEMA"]


@pytest.mark.parametrize("mode", MODES)
def test_an_object_comes(server: str, model: str, mode: str) -> None:
    asked = {"model": model, "messages": ASKED, "max_tokens": 200, "temperature": 0, "response_model": Person}
    completions = client(server, mode).chat.completions
    assert isinstance(completions.create(max_retries=1, **asked), Person)
    said, raw = completions.create_with_completion(max_retries=1, **asked)
    assert isinstance(said, Person) and raw.usage.completion_tokens > 4


@pytest.mark.parametrize("mode", ["TOOLS", "JSON_SCHEMA"])
def test_an_object_grows_while_it_is_written(server: str, model: str, mode: str) -> None:
    asked = {"model": model, "messages": ASKED, "max_tokens": 200, "temperature": 0, "response_model": Person}
    parts = list(client(server, mode).chat.completions.create_partial(**asked))
    assert len(parts) > 1 and parts[-1].age is not None


@pytest.mark.parametrize("mode", MODES)
def test_an_answer_that_is_refused_is_asked_for_again(server: str, model: str, mode: str) -> None:
    seen: list[int] = []

    class Doubted(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(extra="forbid")
        age: int = pydantic.Field(ge=0, le=99)

        @pydantic.field_validator("age")
        @classmethod
        def second(cls, value: int) -> int:
            seen.append(value)
            if len(seen) < 2:
                raise ValueError("say it again")
            return value

    asked = {"model": model, "messages": ASKED, "max_tokens": 100, "temperature": 0, "response_model": Doubted}
    assert client(server, mode).chat.completions.create(max_retries=2, **asked).age == seen[-1]
    assert len(seen) >= 2


def test_json_mode_sends_an_object(server: str, model: str) -> None:
    """Whether it is the right one is the model's affair: here any will do."""

    class Anything(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(extra="allow")

    asked = {"model": model, "messages": ASKED, "max_tokens": 400, "temperature": 0, "response_model": Anything}
    # Without a penalty it repeats itself.
    said = client(server, "JSON").chat.completions.create(max_retries=1, frequency_penalty=1.0, **asked)
    assert isinstance(said, Anything)
