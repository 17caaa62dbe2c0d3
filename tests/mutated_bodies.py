"""Bodies of requests with every field, and mutations of them: wrong types, odd values, fields moved, repeated or left
out, and bytes that are no JSON."""

from __future__ import annotations

import random
from copy import deepcopy
from typing import Any

import orjson

MODEL = "tiny"

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "a": {"type": "string", "maxLength": 9, "pattern": "[a-z]*"}, "b": {"enum": ["x", 1, None]},
        "c": {"type": "array", "items": {"$ref": "#/$defs/d"}, "minItems": 1, "maxItems": 3},
        "e": {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 9}, {"const": "f"}]},
    },
    "required": ["a", "c"], "additionalProperties": False, "$defs": {"d": {"type": "number"}},
}  # fmt: skip
SEEDS: list[tuple[str, dict[str, Any]]] = [
    (
        "/v1/chat/completions",
        {
            "model": MODEL, "messages": [
                {"role": "system", "content": "a"}, {"role": "user", "content": [{"type": "text", "text": "b"}]},
            ],
            "stream": True, "stream_options": {"include_usage": True}, "n": 2, "stop": ["a", "b"], "max_tokens": 5,
            "temperature": 0.5, "top_p": 0.9, "seed": 1, "logit_bias": {"1": 2}, "logprobs": True, "top_logprobs": 3,
            "speculation": {"method": "ngram", "num_speculative_tokens": 2}, "tools": None,
            "bad_words": ["fox", "the"],
        },
    ),
    (
        "/v1/completions",
        {
            "model": MODEL, "prompt": ["a", "b"], "logprobs": 2, "echo": True, "prompt_logprobs": 1,
            "stop_token_ids": [1], "min_tokens": 1,
            "bad_words_token_ids": [[1, 2], 3], "allowed_token_ids": [4],
            "speculation": {
                "verify_strategy": "block", "accept_policy": "normal", "max_candidate_len": 3, "verify_window": 1,
                "typical_epsilon": 0.1, "typical_delta": 0.2,
            },
        },
    ),
    ("/v1/completions", {"model": MODEL, "prompt": [[1, 2], [3]], "max_tokens": 3, "return_token_ids": True}),
    (
        "/v1/embeddings",
        {
            "model": MODEL, "input": ["a", "b"], "encoding_format": "base64", "dimensions": 3, "pooling": "mean",
            "normalize": False, "user": "me", "priority": 1, "cache_salt": "s",
        },
    ),
    ("/v1/embeddings", {"model": MODEL, "input": [[1, 2], [3]]}),
    (
        "/v1/chat/completions",
        {
            "model": MODEL, "messages": [{"role": "user", "content": "b"}], "tool_choice": "auto",
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {}, "strict": True}}],
            "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}},
        },
    ),
    (
        "/v1/completions",
        {
            "model": MODEL, "prompt": "a", "max_tokens": 3, "response_format": {"type": "structural_tag", "format": {
                "type": "sequence", "elements": [
                    {"type": "tag", "begin": "<a>", "content": {"type": "any_text", "excludes": ["b"]}, "end": ["<"]},
                    {"type": "repeat", "min": 1, "max": 2, "content": {"type": "grammar", "grammar": 'root ::= "a"+'}},
                    {"type": "triggered_tags", "triggers": ["<"], "stop_after_first": True, "tags": [
                        {"begin": "<f>", "content": {"type": "json_schema", "json_schema": True}, "end": ""}]},
                ]}},
        },
    ),
    (
        "/v1/completions",
        {
            "model": MODEL, "prompt": "a", "max_tokens": 3, "structured_outputs": {"structural_tag": {
                "structures": [{"begin": "<f>", "schema": {"type": "object"}, "end": "</f>"}], "triggers": ["<f"]}},
        },
    ),
    (
        "/v1/completions",
        {"model": MODEL, "prompt": "a", "max_tokens": 3, "guided_grammar": 'root ::= x{1,2} # c\nx ::= [a-z] | "\\n"'},
    ),
    (
        "/v1/completions",
        {
            "model": MODEL, "prompt": "a",
            "prediction": {"type": "content", "content": [{"type": "text", "text": "b"}]},
            "return_provenance": True, "return_drafts": True,
            "return_speculate_metrics": True, "return_speculation_steps": True,
            "speculation": {"off": False, "corpora": ["a", "b"], "namespace": "team", "learn": False}, "stream": True,
        },
    ),
    (
        "/v1/chat/completions",
        {
            "model": MODEL, "messages": [{"role": "user", "content": "b"}], "speculation": {"corpus": "docs"},
            "prediction": {"type": "content", "content": "hello"},
        },
    ),
    (
        "/v1/chat/completions",
        {
            "model": MODEL, "messages": [
                {"role": "user", "content": "b"},
                {"role": "assistant", "content": None, "reasoning_content": "a", "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": [1, {}]}'}},
                    {"id": "c2", "type": "function", "function": {"name": "g", "arguments": {"a": 1}}},
                ]},
                {"role": "tool", "tool_call_id": "c1", "content": "3"},
                {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "4"}]},
            ],
            "tools": [{"type": "function", "function": {
                "name": "f", "description": "a", "strict": True,
                "parameters": {"type": "object", "properties": {"a": {"type": "array"}}, "required": ["a"]},
            }}],
            "tool_choice": {"type": "function", "function": {"name": "f"}}, "parallel_tool_calls": False,
            "include_reasoning": True, "thinking_token_budget": 4, "stream": True,
            "chat_template_kwargs": {"enable_thinking": False, "a": [1]}, "logprobs": True,
        },
    ),
    (
        "/v1/messages",
        {
            "model": MODEL, "max_tokens": 60, "stream": True, "stop_sequences": ["a"], "temperature": 0.5, "top_p": 0.9,
            "system": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}], "top_k": 3, "messages": [
                {"role": "user", "content": "b"},
                {"role": "assistant", "content": [
                    {"type": "thinking", "thinking": "a", "signature": ""}, {"type": "text", "text": "b"},
                    {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": [1, {}]}},
                ]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "c1", "content": "3", "is_error": True},
                    {"type": "tool_result", "tool_use_id": "c2", "content": [{"type": "text", "text": "4"}]},
                    {"type": "text", "text": "b"},
                ]},
            ],
            "tools": [{"name": "f", "description": "a", "input_schema": {"type": "object", "required": ["a"]}}],
            "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
            "thinking": {"type": "enabled", "budget_tokens": 5}, "output_config": {"effort": "low"},
            "metadata": {"user_id": "a"}, "speculation": {"method": "ngram"},
        },
    ),
    (
        "/v1/messages",
        {
            "model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": "b"}],
            "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}},
        },
    ),
    (
        "/v1/messages/count_tokens",
        {
            "model": MODEL, "system": "a", "messages": [{"role": "user", "content": [{"type": "text", "text": "b"}]}],
            "tools": [{"name": "f", "input_schema": {}}], "tool_choice": {"type": "auto"},
        },
    ),
    (
        "/v1/chat/completions",
        {
            "model": MODEL, "messages": [{"role": "user", "content": "b"}], "stream": True, "max_tokens": 3,
            "response_format": {"type": "json_schema", "json_schema": {
                "name": "a", "description": "b", "strict": True, "schema": SCHEMA,
            }},
            "reasoning_effort": None, "chat_template_kwargs": {"enable_thinking": True},
        },
    ),
    ("/v1/completions", {"model": MODEL, "prompt": "a", "response_format": {"type": "json_object"}}),
    (
        "/v1/completions",
        {
            "model": MODEL, "prompt": "a", "stream": True,
            "structured_outputs": {"json": SCHEMA, "whitespace_pattern": "[ ]?", "disable_any_whitespace": False},
        },
    ),
    ("/v1/completions", {"model": MODEL, "prompt": "a", "structured_outputs": {"regex": "[0-9]{4}(a|b)*"}}),
    ("/v1/completions", {"model": MODEL, "prompt": "a", "structured_outputs": {"choice": ["yes", "no"]}}),
    ("/v1/completions", {"model": MODEL, "prompt": "a", "structured_outputs": {"grammar": 'start: "a" | /b+/'}}),
    ("/v1/completions", {"model": MODEL, "prompt": "a", "structured_outputs": {"json_object": True}}),
    ("/v1/completions", {"model": MODEL, "prompt": "a", "guided_json": SCHEMA, "guided_whitespace_pattern": " *"}),
    ("/v1/completions", {"model": MODEL, "prompt": "a", "guided_regex": "a+b?"}),
    ("/v1/completions", {"model": MODEL, "prompt": "a", "guided_choice": ["a", "b"]}),
    ("/v1/completions", {"model": MODEL, "prompt": "a", "guided_grammar": 'start: "a"'}),
    ("/v1/completions", {"model": MODEL, "prompt": "a", "guided_json_object": True}),
    (
        "/v1/chat/completions",
        {
            "model": MODEL, "messages": [{"role": "user", "content": "b"}], "tool_choice": "required",
            "tools": [
                {"type": "function", "function": {"name": "f", "parameters": SCHEMA}},
                {"type": "function", "function": {"name": "g"}},
            ],
        },
    ),
    ("/tokenize", {"prompt": "a", "add_special_tokens": True}),
    (
        "/tokenize",
        {
            "messages": [{"role": "tool", "content": "a"}], "chat_template_kwargs": {"a": 1},
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
        },
    ),
    ("/detokenize", {"tokens": [1, 2, 3]}),
]  # fmt: skip
RESPONSES: list[tuple[str, dict[str, Any]]] = [
    (
        "/v1/responses",
        {
            "model": MODEL, "input": "hi", "instructions": "a", "max_output_tokens": 5, "temperature": 0.5,
            "top_p": 0.9, "metadata": {"a": "b"}, "stream": True, "stream_options": {"include_obfuscation": False},
            "include": ["message.output_text.logprobs", "reasoning.encrypted_content"], "top_logprobs": 2,
            "text": {"format": {"type": "json_schema", "name": "n", "strict": True, "schema": {
                "type": "object", "properties": {"a": {"type": "string"}}}}, "verbosity": "medium"},
            "reasoning": {"effort": "low", "summary": "auto"}, "store": True, "truncation": "disabled", "user": "u",
            "background": False, "speculation": {"method": "ngram"}, "previous_response_id": None,
        },
    ),
    (
        "/v1/responses",
        {
            "model": MODEL, "input": [
                {"role": "user", "content": "b"},
                {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "b"}]},
                {"type": "reasoning", "id": "rs_1", "summary": [], "content": [
                    {"type": "reasoning_text", "text": "c"}]},
                {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [
                    {"type": "output_text", "text": "d", "annotations": [], "logprobs": []}]},
                {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": '{"a": [1, {}]}'},
                {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "3"}]},
            ],
            "tools": [{"type": "function", "name": "f", "description": "a", "strict": True, "parameters": {
                "type": "object", "properties": {"a": {"type": "array"}}, "required": ["a"]}}],
            "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
            "parallel_tool_calls": False, "chat_template_kwargs": {"a": [1]}, "prompt_cache_key": "k",
        },
    ),
]  # fmt: skip
ODD: list[Any] = [
    None, True, False, 0, -1, 1, 1.5, -0.0, 1e308, 2**31, 2**63, -(2**63), 2**64 - 1, "", "a", "\x00", "é🦊", "9" * 50,
    [], {}, [[]], [{}], {"a": {}}, [None], [1, "a"], ["", ""], {"type": "text"}, "text", "user", MODEL, "x" * 5000,
]  # fmt: skip
WORDS = [b"\xff", b"NaN", b"Infinity", b"\\ud800", b"[" * 500, b"1e999", b'"', b"{"]


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) inside a JSON value."""
    found: list[tuple[Any, Any]] = []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found.append((value, key))
        found += places(inner)
    return found


def mutated(draw: random.Random, body: dict[str, Any]) -> bytes:
    value = orjson.loads(orjson.dumps(body))
    for _ in range(draw.choice([1, 1, 2, 4])):
        spots = places(value)
        if not spots:
            break
        container, key = draw.choice(spots)
        what = draw.randrange(4)
        if what == 0:
            container[key] = deepcopy(draw.choice(ODD))
        elif what == 1 and isinstance(container, dict):
            container[draw.choice(["x", "", "stop", "tools", "messages", "n", "\u0000"])] = container.pop(key)
        elif what == 2 and isinstance(container, dict):
            del container[key]
        else:
            container[key] = [container[key]] * draw.choice([1, 3, 100])
    raw = bytearray(orjson.dumps(value))
    if draw.random() < 0.4:
        for _ in range(draw.choice([1, 3, 20])):
            at = draw.randrange(len(raw) + 1)
            how = draw.randrange(3)
            if how == 0:
                raw[at:at] = bytes([draw.randrange(256)])
            elif how == 1:
                del raw[at : at + draw.choice([1, 10])]
            else:
                raw[at : at + 1] = draw.choice(WORDS)
    return bytes(raw)
