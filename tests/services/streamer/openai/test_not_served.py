from __future__ import annotations

from typing import Any

import pytest

from services.streamer.openai.errors import ApiError
from services.streamer.openai.request import Request, RequestLimits, parse_chat, parse_completion

USER = {"role": "user", "content": "hi"}
# What vLLM takes missing fields for, as clients send them that write all of their parameters out.
DEFAULTS: dict[str, Any] = {
    "n": 1, "stream": False, "stream_options": None, "temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0,
    "presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0, "length_penalty": 1.0, "seed": None,
    "logit_bias": None, "stop": [], "stop_token_ids": [], "include_stop_str_in_output": False, "ignore_eos": False,
    "min_tokens": 0, "skip_special_tokens": True, "spaces_between_special_tokens": True, "use_beam_search": False,
    "truncate_prompt_tokens": None, "prompt_logprobs": None, "allowed_token_ids": None, "bad_words": [], "priority": 0,
    "response_format": None, "structured_outputs": None, "logits_processors": None, "return_token_ids": None,
    "return_tokens_as_token_ids": None, "cache_salt": None, "kv_transfer_params": None, "vllm_xargs": None,
    "echo": False, "user": None,
}  # fmt: skip
OF_CHAT: dict[str, Any] = {
    "logprobs": False, "top_logprobs": 0, "tools": None, "tool_choice": "none", "parallel_tool_calls": True,
    "include_reasoning": True, "add_generation_prompt": True, "continue_final_message": False,
    "add_special_tokens": False, "documents": None, "chat_template": None, "chat_template_kwargs": None,
    "mm_processor_kwargs": None, "reasoning_effort": None, "max_completion_tokens": None, "request_id": None,
}  # fmt: skip
OF_COMPLETION: dict[str, Any] = {
    "best_of": 1, "suffix": None, "logprobs": None, "prompt_embeds": None, "add_special_tokens": True, "max_tokens": 16,
}  # fmt: skip


def chat(**fields: Any) -> Request:
    return parse_chat({"model": "m", "messages": [USER], **fields}, RequestLimits())


def completion(**fields: Any) -> Request:
    return parse_completion({"model": "m", "prompt": "hi", **fields}, RequestLimits())


def refusal(parse: Any, **fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse(**fields)
    assert (caught.value.status, caught.value.code) == (400, "unsupported_parameter")
    return caught.value


def test_vllms_defaults_may_be_sent() -> None:
    assert chat(**DEFAULTS, **OF_CHAT) == chat()
    assert completion(**DEFAULTS, **OF_COMPLETION) == completion()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("skip_special_tokens", False), ("include_stop_str_in_output", True), ("spaces_between_special_tokens", False),
        ("use_beam_search", True), ("length_penalty", 0.8), ("truncate_prompt_tokens", 5),
        ("skip_special_tokens", 1),
    ],
)  # fmt: skip
@pytest.mark.parametrize("parse", [chat, completion])
def test_other_values_are_refused_by_name(parse: Any, field: str, value: Any) -> None:
    assert refusal(parse, **{field: value}).param == field


def test_a_chat_has_no_echo() -> None:
    assert refusal(chat, echo=True).param == "echo"


def test_a_refusal_says_what_is_taken() -> None:
    message = refusal(chat, skip_special_tokens=False).message
    assert message == "skip_special_tokens is not supported by this server, other than as true"


def test_a_message_without_content_and_without_tools_lacks_its_content() -> None:
    with pytest.raises(ApiError, match=r"messages\[0\]\.content: is missing"):
        chat(messages=[{"role": "assistant", "content": None, "tool_calls": []}])


@pytest.mark.parametrize(
    "labels", [None, {}, {"user": {"id": 1}, "turn": 3, "method": "x"}, {"temperature": "0.5", "enable_thinking": None}]
)
def test_labels_have_no_effect(labels: Any) -> None:
    assert chat(metadata=labels) == chat()


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("speculation", {"off": True}, "put speculation into the body itself"),
        ("min_tokens", 5, "put min_tokens into the body itself"),
        ("enable_thinking", False, "is not supported by this server"),
        ("chat_template", {}, "is not supported by this server"),
    ],
)
@pytest.mark.parametrize("parse", [chat, completion])
def test_what_asks_for_something_there_is_named(parse: Any, name: str, value: Any, told: str) -> None:
    error = refusal(parse, metadata={"a": "b", name: value})
    assert error.param == f"metadata.{name}" and told in error.message


def test_tools_among_the_labels_belong_into_the_body_of_a_chat() -> None:
    assert "put tools into the body itself" in refusal(chat, metadata={"tools": [{}]}).message
    assert "is not supported by this server" in refusal(completion, metadata={"tools": [{}]}).message
