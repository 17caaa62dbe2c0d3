"""Bodies of /v1/responses as requests of chats, and what of them is refused by name."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from services.api.messages import ChatTurn, Encode
from services.streamer.openai.errors import ApiError
from services.streamer.openai.request import RequestLimits, answer_length
from services.streamer.responses.body import ResponseRequest, parse_response
from services.streamer.responses.kept import Bounds, KeptResponses, OwnResponses, kept_response
from services.streamer.responses.telling import Telling, written

LIMITS = RequestLimits(max_messages=8)
TOOL: dict[str, Any] = {"type": "function", "name": "f", "parameters": {"type": "object"}}
OTHER: dict[str, Any] = {"type": "function", "name": "g", "description": "d", "strict": True}
SCHEMA = {"type": "json_schema", "name": "n", "strict": True, "schema": {"type": "object"}}


def own() -> OwnResponses:
    return KeptResponses(Bounds(), lambda: 0.0).of("")


def parsed(kept: OwnResponses | None = None, **fields: Any) -> ResponseRequest:
    return parse_response({"model": "m", "input": "hi", **fields}, LIMITS, own() if kept is None else kept)


def prompt(request: ResponseRequest) -> Encode:
    (only,) = request.prompts
    assert isinstance(only, Encode)
    return only


def refusal(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parsed(**fields)
    assert caught.value.status == 400
    return caught.value


def test_text_and_instructions_are_a_conversation() -> None:
    request = parsed(instructions="Be short.", max_output_tokens=5, temperature=0.5, seed=3, stream=True)
    user = ChatTurn(role="user", content="hi")
    assert prompt(request).turns == [ChatTurn(role="system", content="Be short."), user]
    assert request.turns == (user,)
    assert (request.max_tokens, request.sampling.temperature, request.seed, request.stream) == (5, 0.5, 3, True)
    assert request.told["instructions"] == "Be short." and request.store


def test_tools_reach_the_template_in_the_form_of_chats() -> None:
    request = parsed(tools=[TOOL, OTHER], tool_choice="required", parallel_tool_calls=False)
    assert orjson.loads(prompt(request).tools) == [
        {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}},
        {"type": "function", "function": {"name": "g", "description": "d"}},
    ]
    assert request.tools is not None and request.tools.must == ("f", "g") and request.tools.one_call
    told = orjson.loads(orjson.dumps(request.told))
    assert told["tools"][0] == {**TOOL, "description": None, "strict": False}
    assert (told["tools"][1]["strict"], told["tool_choice"], told["parallel_tool_calls"]) == (True, "required", False)


@pytest.mark.parametrize(
    ("choice", "names", "must", "one"),
    [
        ("auto", ["f", "g"], (), False),
        ({"type": "function", "name": "g"}, ["g"], ("g",), True),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "g"}]}, ["g"], (), False),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"name": "g"}, {"name": "g"}]}, ["g"], ("g",), False),
    ],
)
def test_a_choice_of_tools(choice: Any, names: list[str], must: tuple[str, ...], one: bool) -> None:
    tools = parsed(tools=[TOOL, OTHER], tool_choice=choice).tools
    assert tools is not None
    assert (list(tools.parameters), tools.must, tools.one_call) == (names, must, one)


def test_with_tool_choice_none_the_model_is_told_of_none() -> None:
    request = parsed(tools=[TOOL], tool_choice="none", text={"format": {"type": "json_object"}})
    assert request.tools is None and prompt(request).tools == ""
    assert request.grammar_field == "text.format"


def test_beside_tools_the_form_is_one_of_two_and_strict_tools_are_held() -> None:
    tools = [{**TOOL, "strict": True}, {**OTHER, "strict": False}]
    request = parsed(tools=tools, text={"format": SCHEMA}, thinking_token_budget=7)
    assert request.tools is not None and request.tools.strict == {"f"} and not request.tools.must
    assert request.grammar_field == "text.format.schema" and request.thinking_token_budget == 7
    assert parsed().thinking_token_budget == -1


def test_a_schema_is_a_grammar_and_is_told() -> None:
    request = parsed(text={"format": SCHEMA})
    assert request.grammar_field == "text.format.schema"
    assert orjson.loads(request.sampling.grammar)["grammars"][0]["json_schema"]["type"] == "object"
    assert orjson.loads(orjson.dumps(request.told["text"])) == {"format": SCHEMA}
    assert parsed(text={"format": {"type": "text"}}).sampling.grammar == parsed().sampling.grammar == ""


def test_effort_is_a_variable_of_the_template() -> None:
    assert prompt(parsed()).template_kwargs == ""
    given = prompt(parsed(reasoning={"effort": "low", "summary": "auto"}, chat_template_kwargs={"a": 1}))
    assert orjson.loads(given.template_kwargs) == {"a": 1, "reasoning_effort": "low"}
    none = prompt(parsed(reasoning={"effort": "none"}))
    assert orjson.loads(none.template_kwargs) == {"reasoning_effort": "none", "enable_thinking": False}
    contradiction = refusal(reasoning={"effort": "none"}, chat_template_kwargs={"enable_thinking": True})
    assert contradiction.param == "reasoning.effort"


def test_logprobs_are_included() -> None:
    assert parsed().sampling.logprobs == -1
    assert parsed(include=["message.output_text.logprobs"]).sampling.logprobs == 0
    assert parsed(include=["message.output_text.logprobs"], top_logprobs=3).sampling.logprobs == 3
    assert parsed(include=["reasoning.encrypted_content"]).sampling.logprobs == -1


def test_a_conversation_is_continued_without_its_instructions() -> None:
    kept = own()
    first = parsed(kept, instructions="Be short.")
    output = [
        {"type": "message", "role": "assistant", "status": "completed", "id": "msg_1", "content": [
            {"type": "output_text", "text": "hello", "annotations": [], "logprobs": []}]},
        {"type": "function_call", "id": "fc_1", "status": "completed", "call_id": "c1", "name": "f", "arguments": "{}"},
    ]  # fmt: skip
    kept.keep("resp_1", kept_response(b"{}", first.turns, output))
    answer = {"type": "function_call_output", "call_id": "c1", "output": "3"}
    second = parsed(kept, previous_response_id="resp_1", input=[answer])
    told = [(turn.role, turn.content) for turn in second.turns]
    assert told == [("user", "hi"), ("assistant", "hello"), ("tool", "3")]
    assert [call.id for call in second.turns[1].tool_calls] == ["c1"]
    assert prompt(second).turns == list(second.turns)
    assert second.told["previous_response_id"] == "resp_1"
    many = [{"role": "user", "content": "x"}] * 7
    assert len(parsed(kept, previous_response_id="resp_1", input=many[:6]).turns) == 8
    with pytest.raises(ApiError, match="input: has 9 messages with those before it, at most 8"):
        parsed(kept, previous_response_id="resp_1", input=many)


def test_half_a_call_is_not_continued() -> None:
    kept = own()
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": '}
    kept.keep("resp_1", kept_response(b"{}", (), [call]))
    with pytest.raises(ApiError) as refused:
        parsed(kept, previous_response_id="resp_1")
    assert refused.value.param == "previous_response_id" and "output[0].arguments" in refused.value.message


def test_what_is_not_kept_is_told() -> None:
    assert parsed(store=False).told["store"] is False
    none = KeptResponses(Bounds(most=0), lambda: 0.0).of("")
    assert parsed(none).told["store"] is False


def test_lengths_are_named_as_they_are_here() -> None:
    request = parsed(max_output_tokens=50)
    for tokens, param in ((90, "max_output_tokens"), (100, "input")):
        with pytest.raises(ApiError) as refused:
            answer_length(request, tokens, 100)
        assert refused.value.param == param and "max_tokens" not in refused.value.message


def test_extensions_are_those_of_chats() -> None:
    request = parsed(speculation={"off": True, "namespace": "team"}, top_k=5, stop=["a"], prompt_cache_key="k")
    assert (request.speculation.method, request.namespace, request.sampling.top_k) == ("naive", "team", 5)
    assert (request.stops, request.session) == (("a",), "k")


@pytest.mark.parametrize("depth", [1, 100, *range(240, 260), 500])
def test_what_is_nested_deep_is_refused_or_can_be_told(depth: int) -> None:
    nested: dict[str, Any] = {}
    for _ in range(depth):
        nested = {"properties": nested}
    for fields in ({"tools": [{**TOOL, "parameters": nested}]}, {"text": {"format": {**SCHEMA, "schema": nested}}}):
        try:
            request = parsed(**fields)
        except ApiError as error:
            assert depth > 200 and error.param in ("tools", "text.format", "text.format.schema")
        else:
            assert depth < 255 and all(written(each, 0) for each in Telling(request, "resp_1", 0).begun())


HARMLESS: dict[str, Any] = {
    "background": False, "truncation": "disabled", "service_tier": "auto", "max_tool_calls": None, "conversation": None,
    "prompt": None, "context_management": [], "user": "u", "safety_identifier": "s", "metadata": {"a": "b"},
    "include": [], "stream": True, "stream_options": {"include_obfuscation": False}, "text": {"verbosity": "medium"},
    "reasoning": {"effort": None, "summary": None}, "tools": [], "tool_choice": "auto", "return_drafts": False,
}  # fmt: skip


@pytest.mark.parametrize("name", HARMLESS)
def test_what_asks_for_nothing_is_taken(name: str) -> None:
    fields = {name: HARMLESS[name]} | ({"stream": True} if name == "stream_options" else {})
    assert parsed(**fields).sampling == parsed().sampling


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": None}, "model"),
        ({"model": 3}, "model"),
        ({"input": None}, "input"),
        ({"input": None, "messages": []}, "input"),
        ({"input": []}, "input"),
        ({"input": 3}, "input"),
        ({"input": [{"role": "user", "content": "x"}] * 9}, "input"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "input"),
        ({"instructions": 3}, "instructions"),
        ({"previous_response_id": "resp_x"}, "previous_response_id"),
        ({"previous_response_id": 3}, "previous_response_id"),
        ({"tools": {}}, "tools"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
        ({"tools": [{**TOOL, "parameters": []}]}, "tools[0].parameters"),
        ({"tools": [{**TOOL, "strict": 1}]}, "tools[0].strict"),
        ({"tools": [{**TOOL, "defer_loading": True}]}, "tools[0].defer_loading"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools[0].name"),
        ({"tools": [TOOL, TOOL]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": 3}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "web_search"}}, "tool_choice.type"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "tools": []}}, "tool_choice.tools"),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "mode": "x", "tools": []}}, "tool_choice.mode"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "tools": [{"name": "x"}]}},
            "tool_choice.tools[0].name",
        ),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls"),
        ({"text": 3}, "text"),
        ({"text": {"x": 1}}, "text.x"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"text": {"format": 3}}, "text.format"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "text", "x": 1}}}, "text.format.x"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
        ({"text": {"format": {**SCHEMA, "schema": 3}}}, "text.format.schema"),
        ({"text": {"format": {**SCHEMA, "schema": {"enum": ["x" * 200_000]}}}}, "text.format.schema"),
        ({"thinking_token_budget": -2}, "thinking_token_budget"),
        ({"temperature": 3}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"reasoning": 3}, "reasoning"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"reasoning": {"summary": "detailed"}}, "reasoning.summary"),
        ({"reasoning": {"x": 1}}, "reasoning.x"),
        ({"include": "x"}, "include"),
        ({"include": ["file_search_call.results"]}, "include[0]"),
        ({"include": [{}]}, "include[0]"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"store": 1}, "store"),
        ({"metadata": []}, "metadata"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"metadata": {"a": "x" * 513}}, "metadata.a"),
        ({"metadata": {"x" * 65: "a"}}, "metadata"),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"service_tier": "flex"}, "service_tier"),
        ({"conversation": "c"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"max_tool_calls": 1}, "max_tool_calls"),
        ({"user": 3}, "user"),
        ({"stream": 1}, "stream"),
        ({"stream_options": {}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
        ({"stream": True, "stream_options": {"include_usage": True}}, "stream_options.include_usage"),
        ({"n": 2}, "n"),
        ({"return_token_ids": True}, "return_token_ids"),
        ({"return_drafts": True}, "return_drafts"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"speculation": {"x": 1}}, "speculation.x"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], param: str) -> None:
    refused = refusal(**fields)
    assert refused.param == param and param in refused.message
