"""Requests with tools through the real door: what a model writes comes out as calls, whole and streamed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import openai
import pytest
from fake_mesh import MODEL, FakeMesh, ids_of, says
from sse_reading import streamed

from services.api.sampling import ReasoningLimit

CALLS = (
    'On it.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Bonn", "days": [1, 2]}}\n</tool_call>\n'
    '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'
)
READ = [("weather", '{"city": "Bonn", "days": [1, 2]}'), ("time", "{}")]
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("weather", "time")
]
BODY: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "tools": TOOLS}
URL = "/v1/chat/completions"


async def answer(http: aiohttp.ClientSession, mesh: FakeMesh, **fields: Any) -> dict[str, Any]:
    async with http.post(mesh.url + URL, json={**BODY, **fields}) as response:
        assert response.status == 200, await response.text()
        told: dict[str, Any] = await response.json()
    return told


def calls_of(message: dict[str, Any]) -> list[tuple[str, str]]:
    functions = [each["function"] for each in message.get("tool_calls", [])]
    return [(each["name"], each["arguments"]) for each in functions]


def joined(chunks: list[Any], index: int = 0) -> tuple[dict[str, Any], str]:
    """The message of a choice, as clients join its deltas, and why it ended."""
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "reasoning": "", "tool_calls": []}
    reason = ""
    for choice in (each for chunk in chunks[:-1] for each in chunk["choices"] if each["index"] == index):
        reason = choice["finish_reason"] or reason
        delta = choice["delta"]
        for name in ("content", "reasoning_content", "reasoning"):
            message[name] += delta.get(name) or ""
        for call in delta.get("tool_calls", []):
            if call["index"] == len(message["tool_calls"]):
                assert set(call) == {"index", "id", "type", "function"} and call["function"]["name"]
                message["tool_calls"].append({**call, "function": {**call["function"]}})
            else:
                assert set(call) == {"index", "function"}
                message["tool_calls"][call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    return message, reason


@pytest.mark.parametrize("group", [1, 7, 500])
async def test_calls_are_read_whole_and_streamed(mesh: FakeMesh, http: aiohttp.ClientSession, group: int) -> None:
    await mesh.start_target(says(CALLS, group))
    await mesh.start_door()
    (choice,) = (await answer(http, mesh))["choices"]
    assert choice["message"]["content"] == "On it." and calls_of(choice["message"]) == READ
    assert choice["finish_reason"] == "tool_calls"
    for call in choice["message"]["tool_calls"]:
        assert call["id"].startswith("call_") and call["type"] == "function"
    message, reason = joined(await streamed(http, mesh.url + URL, BODY))
    assert (message["content"], calls_of(message), reason) == ("On it.", READ, "tool_calls")
    assert len({call["id"] for call in [*message["tool_calls"], *choice["message"]["tool_calls"]]}) == 4


async def test_arguments_leave_while_the_model_writes_them(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_target(says(CALLS))
    await mesh.start_door()
    chunks = await streamed(http, mesh.url + URL, BODY)
    deltas = [choice["delta"] for chunk in chunks[:-1] for choice in chunk["choices"]]
    parts = [call for delta in deltas for call in delta.get("tool_calls", []) if call["index"] == 0]
    assert len(parts) > 10


async def test_an_answer_of_calls_alone_has_no_content(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_target(says('<tool_call>{"name": "time", "arguments": {}}</tool_call>'))
    await mesh.start_door()
    (choice,) = (await answer(http, mesh))["choices"]
    assert choice["message"]["content"] is None
    message, _ = joined(await streamed(http, mesh.url + URL, BODY))
    assert message["content"] == ""


@pytest.mark.parametrize("fields", [{"tools": None}, {"tool_choice": "none"}])
async def test_without_tools_the_text_is_left_alone(
    mesh: FakeMesh, http: aiohttp.ClientSession, fields: dict[str, Any]
) -> None:
    await mesh.start_target(says(CALLS))
    await mesh.start_door()
    (choice,) = (await answer(http, mesh, **fields))["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (CALLS, "stop")


async def test_a_server_may_leave_calls_in_the_text(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_target(says(CALLS))
    await mesh.start_door(tool_call_parser="none")
    (choice,) = (await answer(http, mesh))["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (CALLS, "stop")


async def test_one_call_at_a_time(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_target(says(CALLS))
    await mesh.start_door()
    (choice,) = (await answer(http, mesh, parallel_tool_calls=False))["choices"]
    assert calls_of(choice["message"]) == READ[:1]


async def test_an_answer_that_is_cut_off_has_the_beginning_of_a_call(
    mesh: FakeMesh, http: aiohttp.ClientSession
) -> None:
    await mesh.start_target(says(CALLS))
    await mesh.start_door()
    length = len(ids_of(CALLS[: CALLS.index("Bonn")]))
    (choice,) = (await answer(http, mesh, max_tokens=length))["choices"]
    assert calls_of(choice["message"]) == [("weather", '{"city": "')]
    assert choice["finish_reason"] == "length"


async def test_stop_strings_and_several_answers_go_with_tools(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_target(says(CALLS, 3))
    await mesh.start_door()
    fields = {"n": 3, "stop": "\n<tool_call>\n{\"name\": \"time\""}
    for choice in (await answer(http, mesh, **fields))["choices"]:
        assert calls_of(choice["message"]) == READ[:1] and choice["stop_reason"] == fields["stop"]
    chunks = await streamed(http, mesh.url + URL, {**BODY, **fields})
    assert [calls_of(joined(chunks, index)[0]) for index in range(3)] == [READ[:1]] * 3


async def test_logprobs_ids_and_origins_are_those_of_all_tokens(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_target(says(CALLS, 4))
    await mesh.start_door()
    fields = {"logprobs": True, "return_token_ids": True, "return_provenance": True}
    chunks = await streamed(http, mesh.url + URL, {**BODY, **fields})
    choices = [choice for chunk in chunks[:-1] for choice in chunk["choices"]]
    ids = [token for choice in choices for token in choice.get("token_ids", [])]
    assert ids == ids_of(CALLS)
    logprobs = [each for choice in choices for each in (choice["logprobs"] or {}).get("content", [])]
    assert "".join(each["token"] for each in logprobs) == CALLS
    assert sum(run["tokens"] for choice in choices for run in choice.get("runs", [])) == len(ids)
    assert calls_of(joined(chunks)[0]) == READ
    whole = (await answer(http, mesh, **fields))["choices"][0]
    assert whole["token_ids"] == ids and whole["logprobs"]["content"] == logprobs


async def test_reasoning_stands_apart_and_is_counted(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    text = "<think>\nthe fox?\n</think>\n\n" + CALLS
    await mesh.start_target(says(text, 5))
    await mesh.start_door(reasoning_parser="qwen3")
    told = await answer(http, mesh)
    message = told["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"], calls_of(message)) == ("the fox?", "On it.", READ)
    assert message["reasoning"] == message["reasoning_content"]
    reasoning = len(ids_of(text[: text.index("\n\nOn")]))
    assert told["usage"]["completion_tokens_details"] == {"reasoning_tokens": reasoning}
    options = {"stream_options": {"include_usage": True}}
    chunks = await streamed(http, mesh.url + URL, {**BODY, **options})
    streamed_message, _ = joined(chunks)
    assert (streamed_message["reasoning_content"], streamed_message["content"]) == ("the fox?", "On it.")
    assert streamed_message["reasoning"] == "the fox?"
    assert chunks[-2]["usage"]["completion_tokens_details"] == {"reasoning_tokens": reasoning}
    quiet = await answer(http, mesh, include_reasoning=False)
    assert "reasoning_content" not in quiet["choices"][0]["message"]
    assert quiet["usage"] == told["usage"]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [({"max_tokens": 64}, "length"), ({"stop": '"days"'}, "stop"), ({"stop": "</tool"}, "tool_calls")],
)
async def test_half_a_call_says_why_it_is_half(
    mesh: FakeMesh, http: aiohttp.ClientSession, fields: dict[str, Any], reason: str
) -> None:
    """Clients read the arguments of a call whose finish_reason is tool_calls."""
    await mesh.start_target(says(CALLS, 3))
    await mesh.start_door()
    (choice,) = (await answer(http, mesh, **fields))["choices"]
    ((name, arguments),) = calls_of(choice["message"])
    assert (choice["finish_reason"], name) == (reason, "weather")
    # What the model wrote of them, and no end that it didn't write.
    whole = READ[0][1]
    assert whole.startswith(arguments) and (arguments == whole) == (reason == "tool_calls")
    message, ended = joined(await streamed(http, mesh.url + URL, {**BODY, **fields}))
    assert (calls_of(message), ended) == ([(name, arguments)], reason)


@pytest.mark.parametrize("tools", [None, TOOLS])
async def test_a_form_that_was_asked_for_begins_behind_the_reasoning(
    mesh: FakeMesh, http: aiohttp.ClientSession, tools: Any
) -> None:
    target = await mesh.start_target(says('hm {"a": 0} </think>\n\n{"a": 1}', 3))
    await mesh.start_door(reasoning_parser="deepseek_r1")
    fields = {"response_format": {"type": "json_object"}, "tools": tools, "tool_choice": "none" if tools else None}
    told = (await answer(http, mesh, **fields))["choices"][0]["message"]
    assert (told["content"], told["reasoning"]) == ('{"a": 1}', 'hm {"a": 0}')
    message, _ = joined(await streamed(http, mesh.url + URL, {**BODY, **fields}))
    assert (message["content"], message["reasoning"]) == ('{"a": 1}', 'hm {"a": 0}')
    # Both were checked: the form, whose field is to blame, and what the worker is sent.
    form, whole = json.loads(mesh.tokenizer.grammars_asked[0]), target.asked[0].sampling.grammar
    assert whole in mesh.tokenizer.grammars_asked
    assert json.loads(whole)["grammars"][1] == {"name": "form", **form["grammars"][0]}


@pytest.mark.parametrize(("route", "prompt"), [(URL, "</think>"), ("/v1/completions", "hi")])
async def test_where_no_reasoning_is_to_come_the_form_begins_at_once(
    mesh: FakeMesh, http: aiohttp.ClientSession, route: str, prompt: str
) -> None:
    target = await mesh.start_target(says('{"a": 1}', 3))
    await mesh.start_door(reasoning_parser="deepseek_r1")
    asked = {"prompt": prompt} if "chat" not in route else {"messages": [{"role": "user", "content": prompt}]}
    body = {"model": MODEL, **asked, "response_format": {"type": "json_object"}}
    async with http.post(mesh.url + route, json=body) as response:
        (choice,) = (await response.json())["choices"]
    assert choice.get("text", choice.get("message", {}).get("content")) == '{"a": 1}'
    assert mesh.tokenizer.grammars_asked == [target.asked[0].sampling.grammar]


@pytest.mark.parametrize(
    ("prompt", "limit"),
    [
        ("hi", ReasoningLimit(5, False, "<think>", "</think>")),
        ("<think>\n", ReasoningLimit(5, True, "<think>", "</think>")),
        ("<think>\n\n</think>\n\n", None),
    ],
)
async def test_a_budget_of_thinking_reaches_the_worker_with_what_it_needs(
    mesh: FakeMesh, http: aiohttp.ClientSession, prompt: str, limit: ReasoningLimit | None
) -> None:
    target = await mesh.start_target(says("a"))
    await mesh.start_door(reasoning_parser="qwen3")
    asked = {"messages": [{"role": "user", "content": prompt}]}
    for tokens in (5, -1, None):
        await answer(http, mesh, **asked, thinking_token_budget=tokens)
    assert [each.sampling.reasoning for each in target.asked] == [limit, None, None]


async def test_a_budget_of_thinking_needs_reasoning(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_target(says("a"))
    await mesh.start_door(reasoning_parser="none")
    for value in (5, -2, 1.5, "5"):
        async with http.post(mesh.url + URL, json={**BODY, "thinking_token_budget": value}) as response:
            error = (await response.json())["error"]
        assert (response.status, error["param"]) == (400, "thinking_token_budget"), value
    await answer(http, mesh, thinking_token_budget=-1)


async def test_a_model_is_known_by_its_template(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    from fake_mesh import DoorUnderTest

    await mesh.start_target(says('[TOOL_CALLS] [{"name": "time", "arguments": {"a": 1}}]'))
    DoorUnderTest.template, before = "{{ tools }} ... [TOOL_CALLS] ...", DoorUnderTest.template
    try:
        await mesh.start_door()
    finally:
        DoorUnderTest.template = before
    (call,) = (await answer(http, mesh))["choices"][0]["message"]["tool_calls"]
    assert call["function"] == {"name": "time", "arguments": '{"a": 1}'}
    # Its template refuses ids of another form.
    assert len(call["id"]) == 9 and call["id"].isalnum()


NAMED = {"type": "function", "function": {"name": "time"}}


@pytest.mark.parametrize(("choice", "names"), [("required", ["weather", "time"]), (NAMED, ["time"])])
async def test_a_call_that_is_asked_for_is_held_by_a_grammar(
    mesh: FakeMesh, http: aiohttp.ClientSession, choice: Any, names: list[str]
) -> None:
    target = await mesh.start_target(says(CALLS))
    await mesh.start_door()
    told = await answer(http, mesh, tool_choice=choice, n=2)
    assert [each["finish_reason"] for each in told["choices"]] == ["tool_calls"] * 2
    grammars = {asked.sampling.grammar for asked in target.asked}
    assert grammars == set(mesh.tokenizer.grammars_asked) and len(grammars) == 1
    (grammar,) = grammars
    rules = json.loads(grammar)["grammars"][0]["lark_grammar"]
    assert [name for name in ("weather", "time") if f': "{name}\\"' in rules] == names


@pytest.mark.parametrize("parser", ["none", "pythonic"])
async def test_a_format_that_cannot_be_held_to_is_refused_by_name(
    mesh: FakeMesh, http: aiohttp.ClientSession, parser: str
) -> None:
    await mesh.start_target(says(CALLS))
    await mesh.start_door(tool_call_parser=parser)
    async with http.post(mesh.url + URL, json={**BODY, "tool_choice": "required"}) as response:
        error = (await response.json())["error"]
    assert (response.status, error["param"]) == (400, "tool_choice") and parser in error["message"]


async def test_a_schema_that_cannot_be_held_is_refused(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_target(says(CALLS))
    await mesh.start_door()
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"const": "impossible"}}}]
    async with http.post(mesh.url + URL, json={**BODY, "tools": tools, "tool_choice": "required"}) as response:
        error = (await response.json())["error"]
    assert (response.status, error["param"]) == (400, "tools")


FORM = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "array"}}}
IN_A_FORM = '["<tool_call>", "a"]'


def grammar_asked(target: Any) -> list[dict[str, Any]]:
    """The grammars in the one that the worker was sent."""
    grammars = {asked.sampling.grammar for asked in target.asked}
    assert len(grammars) == 1
    grammar = grammars.pop()
    return json.loads(grammar)["grammars"] if grammar else []


@pytest.mark.parametrize(("text", "content", "calls"), [
    (IN_A_FORM, IN_A_FORM, []), (CALLS.removeprefix("On it.\n"), None, READ), ("", "", []),
])  # fmt: skip
@pytest.mark.parametrize("group", [1, 9])
async def test_an_answer_is_calls_or_the_form_that_was_asked_for(
    mesh: FakeMesh, http: aiohttp.ClientSession, text: str, content: str | None, calls: Any, group: int
) -> None:
    target = await mesh.start_target(says(text, group))
    await mesh.start_door()
    (choice,) = (await answer(http, mesh, response_format=FORM))["choices"]
    assert (choice["message"]["content"], calls_of(choice["message"])) == (content, calls)
    rules, form = grammar_asked(target)
    assert form == {"name": "form", "json_schema": {"type": "array"}} and "@form" in rules["lark_grammar"]
    # The form alone is checked first, so that a 400 names it.
    assert len(mesh.tokenizer.grammars_asked) == 2
    message, _ = joined(await streamed(http, mesh.url + URL, {**BODY, "response_format": FORM}))
    assert (message["content"], calls_of(message)) == (content or "", calls)


@pytest.mark.parametrize("choice", ["required", NAMED])
async def test_a_call_that_is_asked_for_comes_before_a_form(
    mesh: FakeMesh, http: aiohttp.ClientSession, choice: Any
) -> None:
    target = await mesh.start_target(says(CALLS))
    await mesh.start_door()
    await answer(http, mesh, tool_choice=choice, response_format=FORM)
    [rules] = grammar_asked(target)
    assert "calls:" in rules["lark_grammar"] and "@form" not in rules["lark_grammar"]


@pytest.mark.parametrize("parser", ["none", "pythonic", "qwen3_coder"])
async def test_a_form_beside_calls_that_no_grammar_holds_is_refused(
    mesh: FakeMesh, http: aiohttp.ClientSession, parser: str
) -> None:
    await mesh.start_target(says(CALLS))
    await mesh.start_door(tool_call_parser=parser)
    async with http.post(mesh.url + URL, json={**BODY, "response_format": FORM}) as response:
        error = (await response.json())["error"]
    assert (response.status, error["param"]) == (400, "response_format.json_schema.schema")
    assert parser in error["message"]


def strict_tools(**parameters: Any) -> list[Any]:
    function = {**TOOLS[0]["function"], "strict": True, **parameters}
    return [{"type": "function", "function": function}, TOOLS[1]]


async def test_arguments_of_strict_tools_alone_are_held_to_their_schema(
    mesh: FakeMesh, http: aiohttp.ClientSession
) -> None:
    target = await mesh.start_target(says(CALLS))
    await mesh.start_door()
    (choice,) = (await answer(http, mesh, tools=strict_tools(parameters={"const": {"city": 1}})))["choices"]
    assert calls_of(choice["message"]) == READ and choice["message"]["content"] == "On it."
    [rules] = grammar_asked(target)
    arguments = [line for line in rules["lark_grammar"].splitlines() if line.startswith("arguments")]
    assert arguments == ['arguments0: %json {"type": "object", "const": {"city": 1}}',
                         'arguments1: %json {"type": "object"}']  # fmt: skip
    assert "TEXT" in rules["lark_grammar"]


async def test_no_tool_is_strict_by_itself(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    target = await mesh.start_target(says(CALLS))
    await mesh.start_door()
    await answer(http, mesh)
    assert grammar_asked(target) == []


async def test_a_strict_schema_that_cannot_be_held_is_refused(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_target(says(CALLS))
    await mesh.start_door()
    tools = strict_tools(parameters={"const": "impossible"})
    async with http.post(mesh.url + URL, json={**BODY, "tools": tools}) as response:
        error = (await response.json())["error"]
    assert (response.status, error["param"]) == (400, "tools")


@pytest.mark.parametrize("parser", ["none", "pythonic"])
async def test_where_no_grammar_holds_calls_strict_tools_are_only_read(
    mesh: FakeMesh, http: aiohttp.ClientSession, parser: str
) -> None:
    target = await mesh.start_target(says(CALLS))
    await mesh.start_door(tool_call_parser=parser)
    await answer(http, mesh, tools=strict_tools())
    assert grammar_asked(target) == []


@pytest.fixture
async def client(mesh: FakeMesh) -> AsyncIterator[openai.AsyncOpenAI]:
    await mesh.start_target(says(CALLS, 3))
    await mesh.start_door()
    async with openai.AsyncOpenAI(
        base_url=mesh.url + "/v1", api_key="none", max_retries=0, _strict_response_validation=True
    ) as client:
        yield client


async def test_the_official_client_reads_calls_and_sends_results_back(client: openai.AsyncOpenAI) -> None:
    messages: list[Any] = [{"role": "user", "content": "hi"}]
    told = await client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS, tool_choice="auto")
    message = told.choices[0].message
    assert told.choices[0].finish_reason == "tool_calls" and message.tool_calls
    functions = [call.function for call in message.tool_calls if call.type == "function"]
    assert [(each.name, each.arguments) for each in functions] == READ
    results = [{"role": "tool", "tool_call_id": call.id, "content": "ok"} for call in message.tool_calls]
    again = await client.chat.completions.create(
        model=MODEL, messages=[*messages, message.model_dump(), *results], tools=TOOLS
    )
    assert again.choices[0].message.tool_calls


async def test_the_official_client_joins_streamed_calls(client: openai.AsyncOpenAI) -> None:
    async with client.chat.completions.stream(
        model=MODEL, messages=[{"role": "user", "content": "hi"}], tools=TOOLS
    ) as stream:
        final = await stream.get_final_completion()
    calls = final.choices[0].message.tool_calls
    assert calls and [(each.function.name, json.loads(each.function.arguments)) for each in calls] == [
        (name, json.loads(arguments)) for name, arguments in READ
    ]
