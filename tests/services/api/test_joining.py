"""Messages that wait together become one; nothing is lost, and nothing overtakes."""

from __future__ import annotations

import pytest

from services.api.joining import Answer, next_of
from services.api.messages import Failed, Run, Span, TokenLogprob, Tokens
from services.api.prompt_logprobs import PromptLogprob, pack

END = Failed(request_id="r", attempt=1, reason="engine", message="x")


def tokens(seq: int, *ids: int) -> Tokens:
    return Tokens(
        request_id="r", attempt=1, seq=seq, ids=list(ids), runs=[Run(length=len(ids), drafted=seq, accepted=0)],
        logprobs=[TokenLogprob(logprob=-float(each)) for each in ids], spans=[Span(what="verify", begin=seq, end=seq)],
    )  # fmt: skip


def test_all_tokens_that_follow_each_other_are_one_message_with_a_run_for_each_step() -> None:
    held: list[Answer] = [tokens(4, 7), tokens(5, 8, 9), tokens(7, 6), END]
    message = next_of(held)
    assert isinstance(message, Tokens) and (message.seq, message.ids) == (4, [7, 8, 9, 6])
    assert [(run.length, run.drafted) for run in message.runs] == [(1, 4), (2, 5), (1, 7)]
    assert [value.logprob for value in message.logprobs or []] == [-7.0, -8.0, -9.0, -6.0]
    assert [span.begin for span in message.spans] == [4, 5, 7]
    assert held == [END] and next_of(held) is END and not held


@pytest.mark.parametrize(
    "held",
    [
        [END],
        [tokens(0, 1)],
        # A gap, and tokens that came before.
        [tokens(0, 1), tokens(2, 3)],
        [tokens(5, 1, 2), tokens(6, 2)],
        [Tokens(request_id="r", attempt=1, seq=0, ids=[], prompt_logprobs=pack(each, [PromptLogprob(logprob=-1.0)]))
         for each in (1, 2)],
    ],
    ids=["end", "one", "gap", "again", "prompt"],
)  # fmt: skip
def test_others_stay_as_they_are(held: list[Answer]) -> None:
    left = list(held)
    assert [next_of(left) for _ in held] == held
