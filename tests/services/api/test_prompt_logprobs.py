from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.codec import MAX_BODY, Codec
from services.api.messages import KINDS, Tokens, TopToken
from services.api.prompt_columns import PromptColumns
from services.api.prompt_logprobs import TOKENS_IN_MESSAGE, PromptLogprob, pack, parts, tokens_in, unpack
from services.api.sampling import MAX_LOGPROBS


def scored(number: int, count: int) -> list[PromptLogprob]:
    return [
        PromptLogprob(
            logprob=-place / 4, top=[TopToken(id=place + nth, logprob=-nth / 8) for nth in range(count)], rank=place + 1
        )
        for place in range(number)
    ]


@given(st.integers(0, 40), st.integers(0, 3), st.integers(1, 9))
@settings(max_examples=100, deadline=None)
def test_what_is_packed_and_cut_comes_back_in_order(number: int, count: int, most: int) -> None:
    told = scored(number, count)
    back: list[PromptLogprob] = []
    for part in parts(pack(1, told), most):
        assert part.begin == 1 + len(back) and 1 <= tokens_in(part) <= most
        back += unpack(part)
    assert back == told


def test_a_message_is_far_below_what_may_be_sent() -> None:
    [part] = parts(pack(1, scored(TOKENS_IN_MESSAGE, MAX_LOGPROBS)))
    message = Tokens(request_id="r", attempt=1, seq=0, ids=[], prompt_logprobs=part)
    codec = Codec(KINDS)
    kind, body, _ = codec.encode(message)
    assert len(body) < MAX_BODY // 100
    assert codec.decode(kind, body) == message




@pytest.mark.parametrize(
    "changed",
    [
        {"begin": -1},
        {"count": -1},
        {"count": 3},
        {"logprobs": bytes(7)},
        {"logprobs": bytes(4)},
        {"ranks": bytes(5)},
        {"top_ids": bytes(8)},
        {"top_logprobs": b""},
    ],
    ids=str,
)
def test_columns_that_do_not_fit_each_other_are_refused(changed: dict[str, Any]) -> None:
    whole = pack(1, scored(2, 2))
    assert unpack(whole) == scored(2, 2)
    with pytest.raises(ValueError):
        unpack(dataclasses.replace(whole, **changed))


def test_columns_of_nothing_are_nothing() -> None:
    assert unpack(PromptColumns(begin=1, count=2, logprobs=b"", ranks=b"")) == []
