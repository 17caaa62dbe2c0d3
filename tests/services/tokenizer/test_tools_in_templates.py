"""Tools, calls and results in templates of the forms that models bring, and in one that knows none of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from services.api.chat_templates import TemplateSource
from services.api.messages import ChatTurn, ToolCall
from services.tokenizer.chat_template import ChatTemplate, TemplateError
from services.tokenizer.template_process import TemplateProcess

TEMPLATES = Path(__file__).parent / "templates"
PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
# As of DeepSeek V3 and R1: it knows calls, whose arguments it takes for a text, and no tools.
OF_CALLS = (
    "{% for m in messages %}<{{ m.role }}>{% if m.content is none %}{% for call in m.tool_calls %}"
    "{{ call.function.name + call.function.arguments }}{% endfor %}{% else %}{{ m.content }}{% endif %}{{ '\n' }}"
    "{% endfor %}"
)
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
ARGUMENTS = '{"city": "Köln \\"Ö\\"", "days": [1, 2]}'
TOOL = {"type": "function", "function": {"name": "weather", "description": "The weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}}}}  # fmt: skip
USER = ChatTurn(role="user", content="How is it?")
CALLING = ChatTurn(
    role="assistant", content=None, tool_calls=[ToolCall(id="abcdefghi", name="weather", arguments=ARGUMENTS)]
)
RESULT = ChatTurn(role="tool", content="sunny", tool_call_id="abcdefghi")


async def rendered(template: str, turns: list[ChatTurn], *, tools: Any = None, kwargs: Any = None) -> str:
    """Through the process that renders, as a request does."""
    process = TemplateProcess(TemplateSource(template, SPECIAL), max_chars=1 << 20, deadline=10.0)
    try:
        told = json.dumps(tools, ensure_ascii=False) if tools else ""
        return await process.render(turns, True, told, json.dumps(kwargs) if kwargs else "")
    finally:
        await process.close()


def template(name: str) -> str:
    return (TEMPLATES / f"{name}.jinja").read_text()


async def test_qwen_is_told_of_tools_and_sees_its_calls_as_it_writes_them() -> None:
    text = await rendered(template("qwen2_5"), [USER, CALLING, RESULT, RESULT], tools=[TOOL])
    assert json.dumps(TOOL, ensure_ascii=False) in text
    assert f'<|im_start|>assistant\n<tool_call>\n{{"name": "weather", "arguments": {ARGUMENTS}}}\n</tool_call>' in text
    response = "\n<tool_response>\nsunny\n</tool_response>"
    assert text.endswith(f"<|im_start|>user{response}{response}<|im_end|>\n<|im_start|>assistant\n")


async def test_a_variable_of_the_request_reaches_the_template() -> None:
    for thinks, end in ((False, "<think>\n\n</think>\n\n"), (True, "assistant\n")):
        text = await rendered(template("qwen2_5"), [USER], kwargs={"enable_thinking": thinks})
        assert text.endswith(end)


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt", "bos_token"])
async def test_no_variable_of_the_request_replaces_what_others_give(name: str) -> None:
    text = "{{ bos_token }}{{ messages[0].content }}{{ tools }}{{ add_generation_prompt }}"
    assert await rendered(text, [USER], kwargs={name: "x"}) == "<s>How is it?NoneTrue"


async def test_llama_is_told_of_tools_and_sees_its_calls_as_it_writes_them() -> None:
    text = await rendered(template("llama3_1"), [USER, CALLING, RESULT], tools=[TOOL])
    assert "Environment: ipython" in text and json.dumps(TOOL, indent=4) in text
    assert f'{{"name": "weather", "parameters": {ARGUMENTS}}}<|eot_id|>' in text
    assert '<|start_header_id|>ipython<|end_header_id|>\n\n"sunny"<|eot_id|>' in text


async def test_llama_takes_one_call_at_a_time_and_says_so() -> None:
    twice = ChatTurn(role="assistant", content=None, tool_calls=[*CALLING.tool_calls, *CALLING.tool_calls])
    with pytest.raises(TemplateError, match="single tool-calls at once"):
        await rendered(template("llama3_1"), [USER, twice])


async def test_mistral_is_told_of_tools_and_sees_its_calls_as_it_writes_them() -> None:
    text = await rendered(template("mistral"), [USER, CALLING, RESULT, USER], tools=[TOOL])
    assert f'[TOOL_CALLS] [{{"name": "weather", "arguments": {ARGUMENTS}, "id": "abcdefghi"}}]</s>' in text
    assert '[TOOL_RESULTS] {"content": "sunny", "call_id": "abcdefghi"}[/TOOL_RESULTS]' in text
    assert '[AVAILABLE_TOOLS] [{"type": "function", "function": {"name": "weather", ' in text


@pytest.mark.parametrize("template", [PLAIN, OF_CALLS])
async def test_a_template_without_tools_is_told_of_them_in_words(template: str) -> None:
    system = ChatTurn(role="system", content="Be brief.")
    text = await rendered(template, [system, USER, CALLING, RESULT, RESULT], tools=[TOOL])
    begin, user, rest = text.partition("<user>How is it?\n")
    assert user and begin.startswith("<system>Be brief.\n\n") and json.dumps(TOOL) in begin
    call = json.dumps({"name": "weather", "arguments": json.loads(ARGUMENTS)}, ensure_ascii=False)
    response = "<tool_response>\nsunny\n</tool_response>\n"
    assert rest == f"<assistant><tool_call>\n{call}\n</tool_call>\n<user>{response}{response}"


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("{{ '<' + a + '>' }}", f"<{ARGUMENTS}>"),
        ("{{ '<' ~ a ~ '>' }}", f"<{ARGUMENTS}>"),
        ("<{{ a }}>", f"<{ARGUMENTS}>"),
        ("{{ a | string }}", ARGUMENTS),
        ("{{ a if a is string else a | tojson }}", ARGUMENTS),
        ("{% for name in a %}{{ name }}={{ a[name] | tojson }};{% endfor %}", 'city="Köln \\"Ö\\"";days=[1, 2];'),
        ("{{ a.city }} {{ a['days'] }} {{ a is mapping }}", 'Köln "Ö" [1, 2] True'),
    ],
)
async def test_arguments_are_an_object_and_a_text(written: str, text: str) -> None:
    """Some templates join them to a text, as the model wrote them; others read an object."""
    begin = "{% if tools %}{% endif %}{% set a = messages[-1].tool_calls[0].function.arguments %}"
    assert await rendered(begin + written, [USER, CALLING]) == text


async def test_reasoning_of_earlier_answers_has_all_of_its_names() -> None:
    turns = [USER, ChatTurn(role="assistant", content="Fine.", reasoning="Hm.")]
    for name in ("reasoning", "reasoning_content", "thinking"):
        assert await rendered(f"{{{{ messages[1].{name} }}}}{{{{ messages[0].{name} }}}}", turns) == "Hm."
    calling = msgspec.structs.replace(CALLING, content="I look.", reasoning="Hm.")
    text = "{% if tools and messages[1].tool_calls %}{% endif %}{{ messages[1].reasoning }}{{ messages[1].thinking }}"
    assert await rendered(text, [USER, calling]) == "Hm."


async def test_without_a_system_message_the_words_are_one() -> None:
    text = await rendered(PLAIN, [USER], tools=[TOOL])
    assert text.startswith("<system>You can call functions.") and text.endswith("<user>How is it?\n")
    assert await rendered(PLAIN, [USER]) == "<user>How is it?\n"


def test_a_template_for_requests_with_tools_is_used_for_these() -> None:
    both = ChatTemplate(TemplateSource("without", {}, "with {{ tools[0].type }}"), 100)
    assert both.render([{"role": "user", "content": ""}], True) == "without"
    assert both.render([{"role": "user", "content": ""}], True, [TOOL]) == "with function"


@pytest.mark.parametrize("arguments", ['{"a":' * 3000 + "1" + "}" * 3000, "{no json", '"\ud800"'[:1]])
async def test_json_that_cannot_be_read_is_this_conversations_fault(arguments: str) -> None:
    call = ChatTurn(role="assistant", content=None, tool_calls=[ToolCall(id="1", name="f", arguments=arguments)])
    process = TemplateProcess(TemplateSource(template("qwen2_5"), SPECIAL), max_chars=1 << 20, deadline=10.0)
    try:
        with pytest.raises(TemplateError, match="JSON"):
            await process.render([USER, call], True)
        assert await process.render([USER], False)
    finally:
        await process.close()
