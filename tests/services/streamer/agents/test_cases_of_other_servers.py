"""What the parsers of other servers are tested for, in cases of our own: each text whole and cut in pieces of any size.

A row is a format, what the model wrote, the content, and the calls with their arguments as values.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from services.streamer.agents.families import TOOL_FORMATS

FORMATS = {each.name: each for each in TOOL_FORMATS}
SCHEMAS: Any = {
    "paint": {"properties": {"wall": {"type": "string"}, "coats": {"type": "integer"}, "size": {"type": "object"}}}
}
V3 = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{}\n```json\n{}\n```<｜tool▁call▁end｜>"
PLAIN = "The wall {is} [red], <b>dry</b>; done."
ALL = "<｜tool▁calls▁begin｜>{}<｜tool▁calls▁end｜>"


def painted(*parameters: str) -> str:
    return "<tool_call>\n<function=paint>\n" + "\n".join(parameters) + "\n</function>\n</tool_call>"


# (name, arguments) of each call.
Calls = list[tuple[str, Any]]
CASES: list[tuple[str, str, str, Calls]] = [
    # Plain text is content, in every format.
    *((name, PLAIN, PLAIN, []) for name in FORMATS),
    # Hermes: without line breaks, without its end, the keys in another order, a marker inside a string.
    ("hermes", '<tool_call>{"name":"a","arguments":{"x":true}}</tool_call>', "", [("a", {"x": True})]),
    ("hermes", '<tool_call>\n{"name": "a", "arguments": {"x": true}}', "", [("a", {"x": True})]),
    ("hermes", '<tool_call>\n{"name": "a",\n"arguments":\n{"x":\n"y, z"}}\n</tool_call>', "", [("a", {"x": "y, z"})]),
    ("hermes", 'One.<tool_call>{"arguments": {"x": "</tool_call>"}, "name": "a"}</tool_call>', "One.",
     [("a", {"x": "</tool_call>"})]),
    ("hermes", '<tool_call>{"name": "a", "arguments": {}}</tool_call><tool_call>{"name": "a", "arguments": {"q": "é"}}'
     "</tool_call>", "", [("a", {}), ("a", {"q": "é"})]),
    # Arguments in a string are those arguments; any other string is one, as JSON.
    ("hermes", '<tool_call>{"name": "a", "arguments": "{\\"x\\": 1}"}</tool_call>', "", [("a", {"x": 1})]),
    *(("hermes", "<tool_call>" + json.dumps({"name": "a", "arguments": text}) + "</tool_call>", "", [("a", text)])
      for text in ("red", "{red wall}", "[oops", '{"x": 1} and more', "3")),
    # Llama: any separator, deep arguments, brackets and quotes in strings, text behind a call.
    *(("llama3_json", f'{{"name": "a", "parameters": {{"q": "1"}}}}{between}{{"name": "b", "parameters": {{}}}}', "",
       [("a", {"q": "1"}), ("b", {})]) for between in (";", "; ", " ; ", ";\n", "\n")),
    ("llama3_json", '{"name": "a", "arguments": {"q": {"r": {"s": {"t": [1, {"u": 2}]}}}}}', "",
     [("a", {"q": {"r": {"s": {"t": [1, {"u": 2}]}}}})]),
    ("llama3_json", '{"name": "a", "parameters": {"q": "say \\"{x}\\" [y]"}}', "", [("a", {"q": 'say "{x}" [y]'})]),
    ("llama3_json", '{"name": "a", "parameters": {"q": "1"}} I used {a}.', "I used {a}.", [("a", {"q": "1"})]),
    ("llama3_json", '{"name": "a", "parameters": {"q": "1"}} Sent: {"q": "1"}', 'Sent: {"q": "1"}',
     [("a", {"q": "1"})]),
    # An answer in JSON is none, also where it has a name.
    *(("llama3_json", text, text, []) for text in
      ('{"parameters": {}}', '{"name": "Ann"}', '{"name": "Ann", "age": 12}')),
    ("llama3_json", '<|python_tag|>{"name": "a"}', "", [("a", {})]),
    # Pythonic: every literal, quotes in quotes, no arguments, several calls.
    ("pythonic", "[a(x='Ann\\'s', y='\"two\"', z=None, on=True), b(), c(d={'k': [1, -2.5]}, e={}, f=[])]", "",
     [("a", {"x": "Ann's", "y": '"two"', "z": None, "on": True}), ("b", {}),
      ("c", {"d": {"k": [1, -2.5]}, "e": {}, "f": []})]),
    *(("pythonic", text, text, []) for text in ("[a(x='p 'q' 'r)]", "[a(x=1])]", "[a(x=1e999)]", "a(x=1)")),
    # Mistral: both forms, several calls, brackets in strings, text on both sides.
    ("mistral", 'Hi{hi[TOOL_CALLS] [{"arguments":{"name": "Ann"}, "name": "a"}]\nmore', "Hi{hi\nmore",
     [("a", {"name": "Ann"})]),
    ("mistral", '[TOOL_CALLS][{"name": "a", "arguments":{"x": 3.5, "y": 4}}, {"name": "b", "arguments": {}}]', "",
     [("a", {"x": 3.5, "y": 4}), ("b", {})]),
    ("mistral", '[TOOL_CALLS]a{"x": "print(\\"}\\")\\n[{}]"}[TOOL_CALLS]b{}', "",
     [("a", {"x": 'print("}")\n[{}]'}), ("b", {})]),
    # DeepSeek: in a block and without one, text before it.
    ("deepseek_v3", "Let me see." + ALL.format(V3.format("a", '{"x": "y"}') + "\n" + V3.format("b", "{}")),
     "Let me see.", [("a", {"x": "y"}), ("b", {})]),
    ("deepseek_v31", "x" + ALL.format('<｜tool▁call▁begin｜>a<｜tool▁sep｜>{"x":1}<｜tool▁call▁end｜>'
     '<｜tool▁call▁begin｜>b<｜tool▁sep｜>{"y":2}<｜tool▁call▁end｜>'), "x", [("a", {"x": 1}), ("b", {"y": 2})]),
    # Qwen3-Coder: values by the schema, over several lines, without a marker around, without their ends.
    ("qwen3_coder", "So.\n" + painted("<parameter=wall>\n12\n</parameter>", "<parameter=coats>\n2\n</parameter>",
                                    '<parameter=size>\n{"w": 1,\n "h": 2}\n</parameter>'),
     "So.", [("paint", {"wall": "12", "coats": 2, "size": {"w": 1, "h": 2}})]),
    ("qwen3_coder", "<function=paint>\n<parameter=wall>\nleft\n</parameter>\n</function>", "",
     [("paint", {"wall": "left"})]),
    ("qwen3_coder", painted("<parameter=wall>\nleft", "<parameter=coats>\n2\n</parameter>"), "",
     [("paint", {"wall": "left", "coats": 2})]),
    ("qwen3_coder", painted("<parameter=wall>\n<b>\n  x < 3\n</b>\n</parameter>") + "\n" + painted(), "",
     [("paint", {"wall": "<b>\n  x < 3\n</b>"}), ("paint", {})]),
    # gpt-oss: the recipient before the channel or behind it, with and without the kind of text, several messages.
    *(("openai", f"{head}<|message|>" + '{"x": "}"}<|call|>', "", [("a", {"x": "}"})]) for head in
      (" to=functions.a<|channel|>commentary json", " to=functions.a<|channel|>analysis <|constrain|>json",
       "<|channel|>commentary to=functions.a", "<|channel|>final to=functions.a json",
       "<|channel|>commentary to=functions.a<|constrain|>json")),
    ("openai", "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.a "
     '<|constrain|>json<|message|>{"x": 1}<|call|>', "I look.", [("a", {"x": 1})]),
]  # fmt: skip


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 13, 9999])
@pytest.mark.parametrize(("name", "text", "content", "calls"), CASES)
def test_what_is_read(name: str, text: str, content: str, calls: Calls, size: int) -> None:
    parser = FORMATS[name].parser(SCHEMAS)
    parts = [part for place in range(0, len(text), size) for part in parser.feed(text[place : place + size])]
    parts += parser.flush()
    assert "".join(part for part in parts if isinstance(part, str)) == content
    found: dict[int, list[str]] = {}
    for part in parts:
        if not isinstance(part, str):
            name_and_arguments = found.setdefault(part.index, ["", ""])
            name_and_arguments[0] += part.name
            name_and_arguments[1] += part.arguments
    assert [(name, json.loads(arguments)) for name, arguments in found.values()] == calls
