"""What a client may ask of the choice of tokens. The rest of a body: test_request.py."""

from __future__ import annotations

from typing import Any

import pytest
from refusing import CARD, asked, refusal

from services.api.sampling_defaults import SamplingDefaults
from services.streamer.openai.fields import BodyFields
from services.streamer.openai.request import check_against
from services.streamer.openai.sampling import read_sampling


def test_forbidden_and_allowed_tokens_reach_the_target() -> None:
    request = asked(bad_words=["fox"], bad_words_token_ids=[7, [8, 9]], allowed_token_ids=[5, 6])
    check_against(request, CARD)
    assert request.bad_words == ("fox",)
    assert request.sampling.bad_words == [[7], [8, 9]]
    assert request.sampling.allowed_token_ids == [5, 6]


def test_nothing_is_forbidden_and_all_is_allowed_unless_told() -> None:
    for request in (asked(), asked(bad_words=[], bad_words_token_ids=[]), asked(allowed_token_ids=None)):
        assert (request.bad_words, request.sampling.bad_words, request.sampling.allowed_token_ids) == ((), [], [])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"bad_words": "fox"}, "bad_words"),
        ({"bad_words": ["a", ""]}, "bad_words[1]"),
        ({"bad_words": [5]}, "bad_words[0]"),
        ({"bad_words": ["a" * 257]}, "bad_words[0]"),
        ({"bad_words": ["a"] * 257}, "bad_words"),
        ({"bad_words_token_ids": 5}, "bad_words_token_ids"),
        ({"bad_words_token_ids": [True]}, "bad_words_token_ids[0]"),
        ({"bad_words_token_ids": [-1]}, "bad_words_token_ids[0]"),
        ({"bad_words_token_ids": [1, "a"]}, "bad_words_token_ids[1]"),
        ({"bad_words_token_ids": [[1], []]}, "bad_words_token_ids[1]"),
        ({"bad_words_token_ids": [[1, None]]}, "bad_words_token_ids[0][1]"),
        ({"bad_words_token_ids": [[1] * 65]}, "bad_words_token_ids[0]"),
        ({"bad_words_token_ids": [1] * 1025}, "bad_words_token_ids"),
        ({"bad_words_token_ids": [1000]}, "bad_words_token_ids"),
        ({"bad_words_token_ids": [[1, 1000]]}, "bad_words_token_ids"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": {}}, "allowed_token_ids"),
        ({"allowed_token_ids": [1.0]}, "allowed_token_ids[0]"),
        ({"allowed_token_ids": [1000]}, "allowed_token_ids"),
        ({"allowed_token_ids": [1] * 65537}, "allowed_token_ids"),
    ],
)
def test_a_wrong_list_of_tokens_is_refused_by_its_place(fields: dict[str, Any], param: str) -> None:
    assert refusal(**fields).param == param


def test_a_request_that_leaves_no_token_is_refused() -> None:
    assert refusal(allowed_token_ids=[5, 6], bad_words_token_ids=[5, 6]).param == "allowed_token_ids"
    # A token that ends the text isn't chosen before min_tokens.
    assert refusal(allowed_token_ids=[0, 7], stop_token_ids=[7], min_tokens=1).param == "allowed_token_ids"
    for something in (
        {"bad_words_token_ids": [5]},
        {"bad_words_token_ids": [[5, 6], [6, 5]]},
        {"stop_token_ids": [5, 6]},
    ):
        check_against(asked(allowed_token_ids=[5, 6], **something), CARD)
    check_against(asked(allowed_token_ids=[0], min_tokens=1, ignore_eos=True), CARD)


def test_fields_that_are_set_replace_the_models_defaults_also_with_nothing() -> None:
    own = SamplingDefaults(temperature=0.6, top_p=0.9, top_k=20, min_p=0.1, repetition_penalty=1.2)

    def read(**values: object) -> SamplingDefaults:
        found = read_sampling(BodyFields(values), None, -1, own)
        return SamplingDefaults(found.temperature, found.top_p, found.top_k, found.min_p, found.repetition_penalty)

    assert read() == read(temperature=None, top_k=None) == own
    assert read(temperature=0, top_p=1, top_k=0, min_p=0, repetition_penalty=1) == SamplingDefaults(temperature=0.0)
    assert read(top_k=-1).top_k == 0
