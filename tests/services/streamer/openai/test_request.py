from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.api.messages import ChatTurn, Encode, ModelCard, Speculation, ToolCall
from services.streamer.openai.errors import ApiError
from services.streamer.openai.not_served import BOTH, CHAT, COMPLETION
from services.streamer.openai.request import (
    WITHOUT_EFFECT,
    Request,
    RequestLimits,
    answer_length,
    check_against,
    parse_chat,
    parse_completion,
    parse_detokenize,
    parse_json,
    parse_tokenize,
)

LIMITS = RequestLimits()
CARD = ModelCard(
    model="m", max_context=100, vocab_size=1000, eos_token_ids=[0], methods=["naive", "ngram"],
    verify_strategies=["greedy", "target_match"], max_speculative_tokens=8, engine="mock", accept_policies=["normal"],
)  # fmt: skip


def chat(**fields: Any) -> Request:
    return parse_chat({"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}, LIMITS)


def completion(**fields: Any) -> Request:
    return parse_completion({"model": "m", "prompt": "hi", **fields}, LIMITS)


def refusal(parse: Any, **fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse(**fields)
    assert caught.value.status == 400
    return caught.value


def test_a_chat_has_openai_defaults() -> None:
    request = chat()
    assert request.prompts == [Encode(turns=[ChatTurn(role="user", content="hi")])]
    assert (request.sampling.temperature, request.sampling.top_p, request.n) == (1.0, 1.0, 1)
    assert (request.max_tokens, request.seed, request.sampling.logprobs) == (None, None, -1)
    assert not request.stream


def test_a_completion_has_sixteen_tokens_unless_told() -> None:
    assert completion().max_tokens == 16
    assert completion(max_tokens=3).max_tokens == 3


def test_every_sampling_parameter_reaches_the_target() -> None:
    given_ = {
        "temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.1, "presence_penalty": 1, "min_tokens": 2,
        "frequency_penalty": -1, "repetition_penalty": 1.2, "stop_token_ids": [7], "ignore_eos": True,
    }  # fmt: skip
    sampling = completion(**given_, logit_bias={"12": -100, "7": 2.5}, logprobs=3).sampling
    for name, value in given_.items():
        assert getattr(sampling, name) == value
    assert sampling.logit_bias == {12: -100.0, 7: 2.5}
    assert sampling.logprobs == 3


def test_priority_and_salt_are_taken_within_bounds() -> None:
    request = completion(priority=-100, cache_salt="tenant")
    assert (request.priority, request.cache_salt) == (-100, "tenant")
    assert (completion().priority, completion().cache_salt) == (0, "")
    for wrong in (101, -101, 1.5, "1", True):
        assert refusal(completion, priority=wrong).param == "priority"
    for wrong in (5, "s" * 1025):
        assert refusal(chat, cache_salt=wrong).param == "cache_salt"


def test_prompts_come_in_four_forms() -> None:
    assert completion(prompt="a").prompts == [Encode(text="a")]
    assert completion(prompt=["a", "b"]).prompts == [Encode(text="a"), Encode(text="b")]
    assert completion(prompt=[1, 2]).prompts == [[1, 2]]
    assert completion(prompt=[[1], [2, 3]]).prompts == [[1], [2, 3]]


def test_text_parts_are_joined_and_developer_becomes_system() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    request = chat(messages=[{"role": "developer", "content": parts}])
    assert request.prompts == [Encode(turns=[ChatTurn(role="system", content="ab")])]


def test_an_answer_of_this_api_can_be_sent_back_as_a_message() -> None:
    answer = {
        "role": "assistant", "content": "hello", "refusal": None, "annotations": None, "audio": None,
        "function_call": None, "tool_calls": None,
    }  # fmt: skip
    request = chat(messages=[answer, {"role": "user", "content": "more"}])
    assert isinstance(request.prompts[0], Encode)


def test_what_a_client_has_parsed_of_an_answer_may_stand_in_it() -> None:
    """As openai's `parse` returns answers, with what it made of their JSON."""
    function = {"name": "f", "arguments": '{"a": 1}', "parsed_arguments": {"a": 1}}
    called = {"role": "assistant", "content": None, "parsed": None, "tool_calls": [{"id": "1", "function": function}]}
    formed = {"role": "assistant", "content": '{"b": 2}', "parsed": {"b": 2}}
    (prompt,) = chat(messages=[called, {"role": "tool", "tool_call_id": "1", "content": "3"}, formed]).prompts
    assert isinstance(prompt, Encode)
    assert prompt.turns[0].tool_calls == [ToolCall(id="1", name="f", arguments='{"a": 1}')]
    assert prompt.turns[2].content == '{"b": 2}'


def test_chat_logprobs_are_a_switch_and_a_count() -> None:
    assert chat(logprobs=True).sampling.logprobs == 0
    assert chat(logprobs=True, top_logprobs=5).sampling.logprobs == 5
    assert refusal(chat, top_logprobs=5).param == "top_logprobs"
    assert refusal(chat, logprobs=True, top_logprobs=21).param == "top_logprobs"


def test_speculation_is_a_wish_within_what_the_model_offers() -> None:
    wish = {"method": "naive", "num_speculative_tokens": 0, "verify_strategy": "greedy"}
    request = chat(speculation=wish)
    assert request.speculation == Speculation(method="naive", num_speculative_tokens=0, verify_strategy="greedy")
    check_against(request, CARD)
    for name, value in {"method": "magic", "num_speculative_tokens": 9, "verify_strategy": "magic"}.items():
        with pytest.raises(ApiError) as caught:
            check_against(chat(speculation={name: value}), CARD)
        assert caught.value.param == f"speculation.{name}"


@pytest.mark.parametrize("name", [*CHAT, *BOTH, "no_such_field"])
def test_what_chat_does_not_support_is_refused_by_name(name: str) -> None:
    error = refusal(chat, **{name: {"type": "something"}})
    assert (error.param, error.code) == (name, "unsupported_parameter")


@pytest.mark.parametrize("name", [*COMPLETION, *BOTH, "no_such_field"])
def test_what_completions_do_not_support_is_refused_by_name(name: str) -> None:
    error = refusal(completion, **{name: {"type": "something"}})
    assert (error.param, error.code) == (name, "unsupported_parameter")


def test_values_that_ask_for_nothing_are_let_through() -> None:
    for name, values in {**CHAT, **BOTH}.items():
        for value in (None, *values):
            chat(**{name: value})
    for name, values in {**COMPLETION, **BOTH}.items():
        for value in (None, *values):
            completion(**{name: value})
    for name in WITHOUT_EFFECT:
        chat(**{name: "x"})


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": True}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": 1.5}, "top_k"),
        ({"n": 0}, "n"),
        ({"n": 9}, "n"),
        ({"n": True}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 2**40}, "max_tokens"),
        ({"min_tokens": 17}, "min_tokens"),
        ({"seed": 1e300}, "seed"),
        ({"seed": 2**63}, "seed"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop[1]"),
        ({"stop": ["a", 1]}, "stop[1]"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": "a" * 257}, "stop"),
        ({"stop": 5}, "stop"),
        ({"logit_bias": []}, "logit_bias"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"²": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias.1"),
        ({"logit_bias": {"1": None}}, "logit_bias.1"),
        ({"logit_bias": {str(i): 0 for i in range(1025)}}, "logit_bias"),
        ({"stop_token_ids": [True]}, "stop_token_ids"),
        ({"stop_token_ids": 3}, "stop_token_ids"),
        ({"ignore_eos": 1}, "ignore_eos"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"continuous_usage_stats": 1}}, "stream_options.continuous_usage_stats"),
        ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x"),
        ({"stream": True, "stream_options": []}, "stream_options"),
        ({"speculation": {"x": 1}}, "speculation.x"),
        ({"speculation": {"num_speculative_tokens": -1}}, "speculation.num_speculative_tokens"),
        ({"model": None}, "model"),
        ({"model": 5}, "model"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": 21}, "logprobs"),
        ({"best_of": 2}, "best_of"),
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": {}}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt[1]"),
        ({"prompt": ["a", 1]}, "prompt[1]"),
        ({"prompt": [[1], []]}, "prompt[1]"),
        ({"prompt": [[1], [-1]]}, "prompt[1][0]"),
        ({"prompt": [True]}, "prompt[0]"),
        ({"prompt": ["a"] * 65}, "prompt"),
        ({"prompt": ["a"] * 64, "n": 3}, "n"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    assert refusal(completion, **fields).param == param


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        ([], "messages"),
        ("hi", "messages"),
        (["hi"], "messages[0]"),
        ([{"content": "hi"}], "messages[0].role"),
        ([{"role": "robot", "content": "hi"}], "messages[0].role"),
        ([{"role": "function", "content": "hi"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": [{"type": "text", "text": "a", "x": 1}]}], "messages[0].content[0].x"),
        ([{"role": "user", "content": "a", "tool_calls": [{}]}], "messages[0].tool_calls"),
        ([{"role": "user", "content": "a", "x": 1}], "messages[0].x"),
        ([{"role": "user", "content": "a"}] * 1025, "messages"),
    ],
)  # fmt: skip
def test_a_wrong_message_is_refused_by_its_place(messages: Any, param: str) -> None:
    assert refusal(chat, messages=messages).param == param


def test_the_newer_name_of_max_tokens_wins_and_must_not_contradict() -> None:
    assert chat(max_completion_tokens=5).max_tokens == 5
    assert chat(max_completion_tokens=5, max_tokens=5).max_tokens == 5
    assert refusal(chat, max_completion_tokens=5, max_tokens=6).param == "max_tokens"


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"null", b"5", b'"x"', b'{"a": NaN}', b'{"a": Infinity}', b'{"a": "\xff"}', b"\xef\xbb\xbf{}",
        b'{"a": "\\ud800"}', b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b'{"a":' * 50_000, b"{'a': 1}",
    ],
)  # fmt: skip
def test_what_is_no_json_object_is_a_400(body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        parse_json(body)
    assert (caught.value.status, caught.value.code) == (400, "invalid_json")


def test_the_deepest_json_that_parses_is_refused_without_being_printed() -> None:
    nested: Any = []
    for _ in range(5000):
        nested = [nested]
    for name in ("temperature", "stop", "logit_bias", "tools", "response_format", "prompt", "nonsense"):
        assert refusal(completion, **{name: nested}).param in (name, f"{name}[0]", f"{name}[0][0]")


def test_a_huge_number_is_out_of_range() -> None:
    body = parse_json(b'{"model":"m","prompt":"x","temperature":1' + b"0" * 200 + b"}")
    assert refusal(lambda: parse_completion(body, LIMITS)).param == "temperature"


def test_token_ids_outside_the_vocabulary_are_refused() -> None:
    for fields in ({"prompt": [1000]}, {"stop_token_ids": [1000]}, {"logit_bias": {"1000": 1}}):
        with pytest.raises(ApiError) as caught:
            check_against(completion(**fields), CARD)
        assert caught.value.param == next(iter(fields))


def test_an_answer_must_fit_behind_its_prompt() -> None:
    assert answer_length(chat(), 60, 100) == 40
    assert answer_length(completion(max_tokens=40), 60, 100) == 40
    for request, prompt in ((chat(), 100), (completion(max_tokens=41), 60)):
        with pytest.raises(ApiError) as caught:
            answer_length(request, prompt, 100)
        assert caught.value.code == "context_length_exceeded"
    assert refusal(lambda: answer_length(completion(prompt=""), 0, 100)).param == "prompt"


def test_tokenize_takes_a_text_or_a_conversation() -> None:
    assert parse_tokenize({"prompt": "a"}, LIMITS) == (None, Encode(text="a"))
    turns = [{"role": "user", "content": "a"}]
    model, message = parse_tokenize({"model": "m", "messages": turns, "add_generation_prompt": False}, LIMITS)
    assert (model, message.add_generation_prompt) == ("m", False)
    assert refusal(lambda: parse_tokenize({}, LIMITS)).param == "prompt"
    assert refusal(lambda: parse_tokenize({"prompt": "a", "x": 1}, LIMITS)).param == "x"


def test_detokenize_takes_token_ids() -> None:
    assert parse_detokenize({"tokens": [1, 2]}) == (None, [1, 2])
    assert refusal(lambda: parse_detokenize({"tokens": "x"})).param == "tokens"
    assert refusal(lambda: parse_detokenize({"tokens": [1, "x"]})).param == "tokens[1]"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=5,
)
NAMES = [
    "messages", "prompt", "stream", "stream_options", "n", "stop", "max_tokens", "temperature", "top_k", "seed",
    "logit_bias", "logprobs", "top_logprobs", "stop_token_ids", "speculation", "tools", "user", "other", "model",
    "bad_words", "bad_words_token_ids", "allowed_token_ids", "prediction", "return_provenance",
    "return_drafts",
]  # fmt: skip


@given(st.dictionaries(st.sampled_from(NAMES), JSON))
@settings(max_examples=500, deadline=None)
def test_any_json_gives_a_request_or_a_400(fields: dict[str, Any]) -> None:
    for parse in (chat, completion):
        try:
            assert isinstance(parse(**fields), Request)
        except ApiError as error:
            assert error.status == 400
            assert orjson.dumps(error.body())


@pytest.mark.parametrize(
    ("parse", "body", "said"),
    [
        (parse_chat, {"messages": [{"role": "user", "content": "hi"}]}, "model: is missing; GET /v1/models"),
        (parse_chat, {"model": "m", "prompt": "hi"}, "messages: is missing; prompt is a field of /v1/completions"),
        (parse_chat, {"model": "m", "text": "hi"}, "messages: is missing; text is a field of /v1/completions"),
        (parse_completion, {"model": "m", "messages": []}, "messages is a field of /v1/chat/completions"),
        (parse_completion, {"model": "m", "text": ["hi"]}, "text: must be a string"),
        (parse_completion, {"model": "m", "text": "hi", "prompt": "hi"}, "text: is PaddleNLP's name"),
        (parse_completion, {"model": "m", "prompt": "hi", "temprature": 1}, "(did you mean temperature?)"),
        (parse_completion, {"model": "m", "prompt": "hi", "speculation": {"metod": "x"}}, "(did you mean method?)"),
    ],
)
def test_a_refusal_says_what_was_meant(parse: Any, body: dict[str, Any], said: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse(body, LIMITS)
    assert said in caught.value.message


def test_text_is_another_name_of_a_prompt() -> None:
    """As PaddleNLP's server took it."""
    assert parse_completion({"model": "m", "text": "hi"}, LIMITS) == completion(model="m", prompt="hi")


def test_more_tokens_than_fit_says_how_many_do() -> None:
    with pytest.raises(ApiError, match="at most 90 fit"):
        answer_length(completion(max_tokens=91), 10, 100)
