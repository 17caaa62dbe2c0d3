"""Scripts with LMDeploy's names."""

from __future__ import annotations

import warnings

import pytest

from specmesh import LLM, GenerationConfig, PytorchEngineConfig, SpeculativeConfig, pipeline
from specmesh.lmdeploy import Pipeline, Response

from .conftest import MOCK


def test_their_script_runs_with_its_import_changed() -> None:
    spec_cfg = SpeculativeConfig(method="deepseek_mtp", num_speculative_tokens=3)
    assert spec_cfg.settings() == {"speculative_config": {"method": "deepseek_mtp", "num_speculative_tokens": 3}}
    with pipeline("", backend_config=PytorchEngineConfig(max_batch_size=8, session_len=512), **MOCK) as pipe:
        response = pipe(["Hi, pls intro yourself", "Shanghai is"], max_new_tokens=6, ignore_eos=True)
        assert isinstance(response, list) and [each.generate_token_len for each in response] == [6, 6]
        assert pipe.llm.max_model_len == 512


def test_one_prompt_a_conversation_and_a_stream(mock_llm: LLM) -> None:
    pipe, config = Pipeline(mock_llm), GenerationConfig(max_new_tokens=9, ignore_eos=True)
    one = pipe("Hi", config)
    assert isinstance(one, Response)
    conversation = pipe([{"role": "user", "content": "Hi"}], config)
    assert isinstance(conversation, Response) and conversation.text == one.text
    pieces = list(pipe.stream_infer(["Hi", "Hi"], config))
    for index in (0, 1):
        mine = [each for each in pieces if each.index == index]
        assert "".join(each.text for each in mine) == one.text and mine[-1].generate_token_len == 9


def test_what_has_no_meaning_here_says_so() -> None:
    with pytest.warns(UserWarning, match="cache_max_entry_count has no meaning here"):
        assert PytorchEngineConfig(tp=2, cache_max_entry_count=0.5).settings() == {"tensor_parallel_size": 2}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PytorchEngineConfig(dtype="float32").settings()


def test_without_do_sample_the_most_probable_token_is_taken() -> None:
    assert GenerationConfig().params().temperature == 0.0
    drawn = GenerationConfig(do_sample=True, random_seed=4).params()
    assert (drawn.temperature, drawn.top_k, drawn.seed, drawn.max_tokens) == (0.8, 50, 4, 512)
