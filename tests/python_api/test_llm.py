"""Answers from Python through a real mesh: what a program gets, and what it is refused."""

from __future__ import annotations

import inspect
import json

import pytest

from services.streamer.door.openapi import BODIES
from specmesh import LLM, RequestFailed, SamplingParams, StartFailed

pytestmark = pytest.mark.model
GREEDY = SamplingParams(temperature=0, max_tokens=24)
PROMPTS = ["The capital of France is", "One, two, three,", "Water boils at"]


def test_vllms_quick_start_runs_with_its_import_changed(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    sampling_params = SamplingParams(temperature=0.8, top_p=0.95, seed=1)
    outputs = llm.generate(PROMPTS, sampling_params)
    for output in outputs:
        print(f"Prompt: {output.prompt!r}, Generated text: {output.outputs[0].text!r}")
    assert [line.split("'")[1] for line in capsys.readouterr().out.splitlines()] == PROMPTS
    assert all(output.finished and len(output.outputs[0].token_ids) == 16 for output in outputs)


def test_a_text_is_the_same_in_a_batch_alone_by_ids_streamed_and_from_a_coroutine(llm: LLM) -> None:
    together = llm.generate(PROMPTS, GREEDY)
    texts = [output.outputs[0].text for output in together]
    assert len(set(texts)) == 3
    for prompt, output in zip(PROMPTS, together, strict=True):
        [alone] = llm.generate(prompt, GREEDY)
        [by_ids] = llm.generate(output.prompt_token_ids, GREEDY)
        [named] = llm.generate({"prompt_token_ids": output.prompt_token_ids}, GREEDY)
        same = [each.outputs[0].token_ids for each in (alone, by_ids, named)]
        assert same == [output.outputs[0].token_ids] * 3 and by_ids.prompt is None
        pieces = list(llm.stream(prompt, GREEDY))
        assert "".join(each.text for each in pieces) == output.outputs[0].text
        assert [token for each in pieces for token in each.token_ids] == output.outputs[0].token_ids
        assert pieces[-1].finish_reason == output.outputs[0].finish_reason == "length"
        assert sum(source["tokens"] for each in pieces for source in each.sources) == 24


async def test_the_async_forms(llm: LLM) -> None:
    expected = [output.outputs[0].text for output in llm.generate(PROMPTS, GREEDY)]
    assert [output.outputs[0].text for output in await llm.agenerate(PROMPTS, GREEDY)] == expected
    assert "".join([each.text async for each in llm.astream(PROMPTS[0], GREEDY)]) == expected[0]
    question = [{"role": "user", "content": "What is the capital of France?"}]
    [answer] = await llm.achat(question, GREEDY)
    [again] = llm.chat(question, GREEDY)
    assert answer.outputs[0].text == again.outputs[0].text
    assert answer.outputs[0].message is not None and answer.outputs[0].message["role"] == "assistant"


def test_log_probabilities_are_by_token_id(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=5, logprobs=3, prompt_logprobs=2)
    for [output] in (llm.generate(PROMPTS[0], params), llm.chat([{"role": "user", "content": "Hi"}], params)):
        answer = output.outputs[0]
        assert answer.logprobs is not None and len(answer.logprobs) == 5
        for token, row in zip(answer.token_ids, answer.logprobs, strict=True):
            assert len(row) == 3 and row[token].logprob == max(each.logprob for each in row.values()) <= 0
            assert row[token].rank == 1, "greedy"
        assert answer.cumulative_logprob == pytest.approx(
            sum(row[token].logprob for token, row in zip(answer.token_ids, answer.logprobs, strict=True))
        )
        assert output.prompt_logprobs is not None and output.prompt_logprobs[0] is None
        told = zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True)
        assert all(row is not None and token in row and row[token].decoded_token is not None for token, row in told)


def test_each_prompt_may_have_its_own_parameters(llm: LLM) -> None:
    params = [SamplingParams(max_tokens=3, temperature=0), SamplingParams(n=2, seed=3, max_tokens=7, ignore_eos=True)]
    first, second = llm.generate(PROMPTS[:2], params)
    assert [len(each.token_ids) for each in first.outputs] == [3]
    assert [(each.index, len(each.token_ids)) for each in second.outputs] == [(0, 7), (1, 7)]
    with pytest.raises(ValueError, match="3 prompts have 2 sampling_params"):
        llm.generate(PROMPTS, params)


def test_an_answer_keeps_to_a_schema_and_a_tool_is_called(llm: LLM) -> None:
    schema = {
        "type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"],
        "additionalProperties": False,
    }  # fmt: skip
    form = SamplingParams(temperature=0, max_tokens=60, structured_outputs={"json": schema})
    [output] = llm.chat([{"role": "user", "content": "Where is the Louvre?"}], form)
    assert set(json.loads(output.outputs[0].text)) == {"city"}
    tool = {"type": "function", "function": {"name": "look", "parameters": schema}}
    asked = SamplingParams(temperature=0, max_tokens=80, more={"tool_choice": "required"})
    [called] = llm.chat([{"role": "user", "content": "Look it up: Paris"}], asked, tools=[tool])
    assert called.outputs[0].finish_reason == "tool_calls" and called.outputs[0].message is not None
    assert called.outputs[0].message["tool_calls"][0]["function"]["name"] == "look"


def test_what_is_wrong_is_said_by_name(llm: LLM) -> None:
    with pytest.raises(RequestFailed, match="temperature") as caught:
        llm.generate(PROMPTS, SamplingParams(temperature=9))
    assert caught.value.status == 400 and caught.value.param == "temperature"
    with pytest.raises(RequestFailed, match="frequncy"):
        llm.generate(PROMPTS[0], SamplingParams(more={"frequncy_penalty": 1}))
    with pytest.raises(RequestFailed):
        list(llm.stream(PROMPTS[0], SamplingParams(top_p=3)))
    with pytest.raises(StartFailed, match="--num-speculativ-tokens"):
        LLM(num_speculativ_tokens=3)
    with pytest.raises(ValueError, match="leave out dtype"):
        LLM(url="http://127.0.0.1:1", dtype="float32")
    with pytest.raises(ValueError, match="no mesh"):
        LLM(run_dir="/nowhere")
    assert llm.generate(PROMPTS[0], GREEDY), "and it goes on"


def test_a_second_program_joins_by_the_run_dir(llm: LLM) -> None:
    assert llm._mesh is not None
    with LLM(run_dir=str(llm._mesh.folder)) as joined:
        assert (joined.model, joined.max_model_len) == (llm.model, llm.max_model_len)
        ours, theirs = (each.generate(PROMPTS[0], GREEDY)[0].outputs[0].text for each in (llm, joined))
        assert ours == theirs
    assert llm.generate(PROMPTS[0], GREEDY), "its mesh isn't the other's to end"


def test_an_embedding_is_that_of_the_api(mock_llm: LLM) -> None:
    outputs = mock_llm.embed(PROMPTS, dimensions=8)
    tokenizer = mock_llm.get_tokenizer()
    assert [each.num_prompt_tokens for each in outputs] == [len(tokenizer.encode(prompt)) for prompt in PROMPTS]
    connection = mock_llm._connection
    body = {"model": mock_llm.model, "input": PROMPTS, "dimensions": 8}
    told = connection.run(connection.post("/v1/embeddings", body))["data"]
    assert [each.outputs.embedding for each in outputs] == [pytest.approx(each["embedding"]) for each in told]
    [by_ids] = mock_llm.embed([100, 101])
    assert len(by_ids.outputs.embedding) == 16
    with pytest.raises(RequestFailed, match="pooling"):
        mock_llm.embed(PROMPTS, pooling="cls")


def test_the_tokenizer_is_the_servers(mock_llm: LLM) -> None:
    tokenizer = mock_llm.get_tokenizer()
    ids = tokenizer.encode(PROMPTS[0])
    assert tokenizer.decode(ids) == PROMPTS[0]
    conversation = [{"role": "user", "content": "Hi"}]
    text = tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
    greedy = SamplingParams(temperature=0, max_tokens=4)
    [by_text], [chat] = mock_llm.generate(text, greedy), mock_llm.chat(conversation, greedy)
    assert by_text.prompt_token_ids == chat.prompt_token_ids
    assert text == tokenizer.apply_chat_template(conversation, tokenize=False) + "<|im_start|>assistant\n"


def test_what_vllm_has_and_we_have_not_is_refused_by_name(mock_llm: LLM) -> None:
    with pytest.raises(AttributeError, match="'beam_search' here: SamplingParams"):
        mock_llm.beam_search(["a"])  # type: ignore[attr-defined]
    assert not hasattr(mock_llm, "no_such_thing")
    with pytest.raises(ValueError, match="no multi_modal_data"):
        mock_llm.generate({"prompt": "a", "multi_modal_data": {}})
    with pytest.raises(RequestFailed, match="lora_request"):
        mock_llm.generate("a", lora_request="an adapter")
    with pytest.raises(RequestFailed, match="continue_final_message"):
        mock_llm.chat([{"role": "user", "content": "a"}], continue_final_message=True)
    salted = {"prompt": "a", "cache_salt": "s"}
    assert mock_llm.generate(salted, lora_request=None, use_tqdm=False)


def test_acceptance_is_told(mock_llm: LLM) -> None:
    fixed = SamplingParams(max_tokens=50, speculation={"method": "ngram", "num_speculative_tokens": 3})
    assert mock_llm.generate(PROMPTS[0], fixed)[0].acceptance["num_spec_tokens"] == 3


def test_a_thousand_prompts_come_back_in_their_order(mock_llm: LLM) -> None:
    prompts = ([100 + number % 32, 200 + number] for number in range(1000))
    outputs = mock_llm.generate(prompts, SamplingParams(max_tokens=2, ignore_eos=True))
    assert [output.prompt_token_ids[1] for output in outputs] == [200 + number for number in range(1000)]


def test_every_parameter_is_a_field_of_a_request() -> None:
    fields = {*BODIES["/v1/completions"][0], *BODIES["/v1/chat/completions"][0]}
    ours = {name for name in inspect.signature(SamplingParams).parameters if name != "more"}
    assert ours <= fields
