"""What arrives on the socket is checked once more, whoever sent it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from mesh.codec import Codec
from services.api.messages import KINDS, Generate
from services.api.sampling import PARAMETERS, Sampling, problem, stop_ids

NAN = float("nan")


def request(prompt: list[int] | None = None, **sampling: Any) -> Generate:
    ids = prompt or [100, 101, 102, 103]
    return Generate(request_id="r", attempt=1, token_ids=ids, prompt_tokens=len(ids), sampling=Sampling(**sampling))


def wrong_with(asked: Generate) -> str:
    return problem(asked.token_ids, asked.prompt_tokens, asked.sampling, 200)


def test_what_the_door_lets_through_is_fine() -> None:
    biases = {0: -100.0, 99: 100.0}
    fine = request(temperature=2.0, top_p=1e-6, top_k=1 << 30, min_p=1.0, logit_bias=biases, logprobs=20)
    assert wrong_with(fine) == ""


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
    assert named in wrong_with(request(**wrong))


def test_a_prompt_must_lie_within_the_tokens() -> None:
    from msgspec.structs import replace

    for prompt_tokens in (0, -1, 5):
        assert "prompt_tokens" in wrong_with(replace(request([1, 2, 3]), prompt_tokens=prompt_tokens))
    assert "empty" in wrong_with(replace(request(), token_ids=[]))


def test_eos_stops_unless_ignored_and_stop_ids_always_do() -> None:
    assert stop_ids(Sampling(stop_token_ids=[7]), (0, 2)) == {0, 2, 7}
    assert stop_ids(Sampling(stop_token_ids=[7], ignore_eos=True), (0, 2)) == {7}


def test_sampling_crosses_the_wire_as_it_is() -> None:
    """One type from the HTTP API to the kernels: what a worker decodes is what the streamer made."""
    given = Sampling(temperature=0.5, seed=7, logit_bias={3: 1.0}, bad_words=[[1, 2]], ignore_eos=True)
    sent = request(**asdict(given))
    codec = Codec(KINDS)
    assert codec.decode(*codec.encode(sent)[:2]) == sent and sent.sampling == given


def test_every_number_that_the_api_takes_has_bounds_on_the_wire() -> None:
    """Those of its row, so a new parameter is checked in both places."""
    for row in PARAMETERS.values():
        if row.kind in ("number", "integer"):
            assert row.attribute in wrong_with(request(**{row.attribute: row.high + 1}))
            assert row.attribute in wrong_with(request(**{row.attribute: row.low - 1}))
            assert wrong_with(request(**{row.attribute: row.high})) == ""
