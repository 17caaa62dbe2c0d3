"""What arrives on the socket is checked once more, whoever sent it."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from services.api.messages import Generate, Sampling
from services.api.sampling import SamplingParameters, parameters_of, problem, stop_ids

NAN = float("nan")


def request(prompt: list[int] | None = None, **sampling: Any) -> Generate:
    ids = prompt or [100, 101, 102, 103]
    return Generate(request_id="r", attempt=1, token_ids=ids, prompt_tokens=len(ids), sampling=Sampling(**sampling))


def test_what_the_door_lets_through_is_fine() -> None:
    fine = request(temperature=2.0, top_p=0.0, top_k=1 << 30, min_p=1.0, logit_bias={0: -100.0, 99: 100.0}, logprobs=20)
    assert problem(fine, 200) == ""


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"prompt": [200]}, "token_ids"),
        ({"temperature": NAN}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"min_p": 1.1}, "min_p"),
        ({"repetition_penalty": NAN}, "repetition_penalty"),
        ({"presence_penalty": 1e9}, "presence_penalty"),
        ({"frequency_penalty": NAN}, "frequency_penalty"),
        ({"logit_bias": {-1: 0.0}}, "logit_bias"),
        ({"logit_bias": {1: NAN}}, "logit_bias"),
        ({"logit_bias": dict.fromkeys(range(2000), 1.0)}, "too many"),
        ({"stop_token_ids": list(range(2000))}, "too many"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": -2}, "logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"min_tokens": -1}, "min_tokens"),
    ],
)
def test_what_is_wrong_is_named(wrong: dict[str, Any], named: str) -> None:
    assert named in problem(request(**wrong), 200)


def test_a_prompt_must_lie_within_the_tokens() -> None:
    from msgspec.structs import replace

    for prompt_tokens in (0, -1, 5):
        assert "prompt_tokens" in problem(replace(request([1, 2, 3]), prompt_tokens=prompt_tokens), 200)
    assert "empty" in problem(replace(request(), token_ids=[]), 200)


def test_eos_stops_unless_ignored_and_stop_ids_always_do() -> None:
    assert stop_ids(Sampling(stop_token_ids=[7]), (0, 2)) == {0, 2, 7}
    assert stop_ids(Sampling(stop_token_ids=[7], ignore_eos=True), (0, 2)) == {7}


def test_the_runner_is_told_every_parameter() -> None:
    """A field that the message gets, the runner gets, too."""
    assert [each.name for each in fields(SamplingParameters)] == list(Sampling.__struct_fields__)
    assert parameters_of(Sampling()) == SamplingParameters()
    given = {"temperature": 0.5, "seed": 7, "logit_bias": {3: 1.0}, "bad_words": [[1, 2]], "ignore_eos": True}
    assert parameters_of(Sampling(**given)) == SamplingParameters(**given)
