"""The audit as values: requests that ended go in, replays and results come out."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from mesh_around import request

from services.api.messages import MOST_PRIORITY, Failed, Finished, Generate, Tokens
from services.worker.audit import MOST_TOKENS, MOST_TRIES, MOST_WAITING, Audit, chosen
from services.worker.running.runner import Verdict
from services.worker.scheduling.arrival import make_sequence
from services.worker.scheduling.events import Arrived, Cancelled, Emit, Fail, Finish, SwitchOff
from services.worker.scheduling.limits import Limits
from services.worker.scheduling.sequence import Sequence
from services.worker.verify.policy import Verification

EOS = 0
PROMPT = [1, 2, 3]
LIMITS = Limits(
    vocab_size=1000,
    max_context=100000,
    eos_token_ids=(EOS,),
    page_tokens=4,
    pages=100000,
    method="ngram",
    methods=("naive", "ngram", "suffix"),
)


def ended(
    tokens: list[int], *, name: str = "r", drafted: bool = True, so_far: list[int] | None = None, stream: int = 1,
    prompt: list[int] | None = None, server: str = "auto", policy: str = "normal", **more: Any,
) -> Sequence:  # fmt: skip
    """A sequence that was given these tokens (EOS ends it), a draft among them unless told otherwise."""
    generate = request(prompt or PROMPT, name=name, so_far=so_far, **{"max_tokens": 90000, **more})
    limits = LIMITS if server == "auto" and policy == "normal" else _limits(Verification(server, policy))
    sequence = make_sequence(Arrived(generate, stream), 1, limits, {})
    sequence.waiting_to_running(list(range(30000)), 4, 0)
    sequence.commit(Verdict(tokens[:1], 0))
    if tokens[1:]:
        sequence.commit(Verdict(tokens[1:], len(tokens) - 2 if drafted else 0), tokens[1:-1] if drafted else [])
    return sequence


def _limits(verification: Verification) -> Limits:
    return Limits(**{name: getattr(LIMITS, name) for name in LIMITS.__slots__} | {"verification": verification})


def audit(threshold: int = 3) -> Audit:
    return Audit(1.0, threshold, salt="secret", path="a fake")


def taken(audit: Audit) -> tuple[int, Generate]:
    arrived = audit.begin(5.0)
    assert arrived is not None and arrived.at == 5.0 and arrived.deadline is None
    return arrived.stream, arrived.generate


def emit(stream: int, *ids: int) -> Emit:
    return Emit(stream, Tokens(request_id="r", attempt=1, seq=0, ids=list(ids)))


def finish(stream: int, stop_token: int | None = None) -> Finish:
    reason: Any = "length" if stop_token is None else "stop"
    return Finish(
        stream,
        Finished(
            request_id="r", attempt=1, reason=reason, prompt_tokens=3, cached_tokens=0, completion_tokens=0,
            stop_token=stop_token,
        ),
    )  # fmt: skip


def results(audit: Audit) -> dict[tuple[str, str], int]:
    return dict(audit.results)


def test_a_replay_is_the_request_without_drafts_as_the_last_of_all_and_under_a_salt_of_its_own() -> None:
    it = audit()
    it.ended(ended([4, 5, 6, EOS], temperature=0.7, seed=9, top_p=0.9, logprobs=5, strategy="target_match"))
    stream, generate = taken(it)
    assert stream < 0
    assert generate.token_ids == PROMPT and generate.prompt_tokens == 3
    assert (generate.speculation.method, generate.speculation.num_speculative_tokens) == ("naive", 0)
    assert generate.speculation.verify_strategy == "target_match"
    assert (generate.sampling.temperature, generate.sampling.seed, generate.sampling.top_p) == (0.7, 9, 0.9)
    assert generate.sampling.logprobs == -1
    # Not one token more than the answer had, with the stop id.
    assert generate.sampling.max_tokens == 4
    assert (generate.priority, generate.cache_salt) == (MOST_PRIORITY, "secret")


def test_the_same_text_with_the_same_end_is_the_same() -> None:
    it = audit()
    it.ended(ended([4, 5, 6, EOS]))
    stream, _ = taken(it)
    assert it.hear(emit(stream, 4)) == [] and it.hear(emit(stream, 5)) == [] and it.hear(emit(stream, 6)) == []
    assert it.hear(finish(stream, EOS)) == []
    assert results(it) == {("ngram", "same"): 1}
    assert (it.compared_tokens, it.waiting, it.begin(0.0)) == (3, 0, None)


def test_the_first_token_that_differs_ends_the_replay_and_is_logged_by_its_place_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    it = audit()
    it.ended(ended([411, 522, 633, 744], name="chat-7", prompt=[911, 922]))
    stream, _ = taken(it)
    with caplog.at_level(logging.WARNING):
        assert it.hear(emit(stream, 411)) == []
        assert it.hear(emit(stream, 522)) == []
        assert it.hear(emit(stream, 999)) == [Cancelled(stream)]
    assert results(it) == {("ngram", "different"): 1}
    [record] = caplog.records
    told = record.getMessage()
    assert "from token 2 on" in told and "chat-7" in told and "a fake" in told
    assert "ngram" in told and "greedy" in told
    assert not any(str(token) in told for token in (411, 522, 633, 744, 999, 911, 922))
    # What still comes of it is about nobody.
    assert it.hear(emit(stream, 744)) == [] and it.hear(finish(stream)) == []
    assert results(it) == {("ngram", "different"): 1}


@pytest.mark.parametrize(
    ("answer", "replay", "stop", "position"),
    [
        ([4, 5, EOS], [4, 5, 6], None, 2),
        ([4, 5, EOS], [4], EOS, 1),
        ([4, 5, 6], [4, 5], EOS, 2),
        ([4, 5, EOS], [4, 5], 7, 2),
    ],
    ids=["goes on", "stops before", "stops instead of its last", "stops by another id"],
)
def test_another_end_is_a_difference_too(
    answer: list[int], replay: list[int], stop: int | None, position: int, caplog: pytest.LogCaptureFixture
) -> None:
    it = audit()
    it.ended(ended(answer))
    stream, _ = taken(it)
    for token in replay:
        it.hear(emit(stream, token))
    it.hear(finish(stream, stop))
    assert results(it) == {("ngram", "different"): 1}
    assert f"from token {position} on" in caplog.text


def test_positions_count_from_the_beginning_of_the_answer_in_a_later_attempt_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    it = audit()
    it.ended(ended([7, 8, 9], so_far=[4, 5, 6], attempt=2))
    stream, generate = taken(it)
    assert generate.token_ids == [*PROMPT, 4, 5, 6] and generate.sampling.max_tokens == 6
    it.hear(emit(stream, 7))
    it.hear(emit(stream, 1))
    assert "from token 4 on" in caplog.text and "attempt 2" in caplog.text


def test_a_request_that_was_cancelled_is_compared_as_far_as_it_came() -> None:
    it = audit()
    it.ended(ended([4, 5, 6], max_tokens=1000))
    stream, generate = taken(it)
    assert generate.sampling.max_tokens == 3
    for token in (4, 5, 6):
        it.hear(emit(stream, token))
    it.hear(finish(stream))
    assert results(it) == {("ngram", "same"): 1}


def test_only_texts_that_must_be_the_same_and_that_drafts_had_a_part_in_are_taken() -> None:
    it = audit()
    it.ended(ended([4, 5, 6], drafted=False))
    it.ended(ended([4, 5, 6], temperature=1.0, server="rejection"))
    it.ended(ended([4, 5, 6], policy="accept_all"))
    it.ended(ended([4, 5, 6], stream=-1))
    assert it.waiting == 0 and results(it) == {}
    it.ended(ended([4, 5, 6]))
    it.ended(ended([4, 5, 6], temperature=1.0))
    it.ended(ended([4, 5, 6], temperature=1.0, server="rejection", strategy="target_match"))
    it.ended(ended([4, 5, 6], temperature=0.0, server="rejection"))
    assert it.waiting == 4


def test_the_share_is_drawn_from_the_name_of_a_request_and_is_the_same_each_time() -> None:
    names = [f"request-{number}" for number in range(20000)]
    of = {share: {name for name in names if chosen(name, share)} for share in (0.0, 0.01, 0.25, 1.0)}
    assert of[0.0] == set() and of[1.0] == set(names)
    assert 140 < len(of[0.01]) < 260 and 4700 < len(of[0.25]) < 5300
    assert of[0.01] < of[0.25]
    assert of[0.25] == {name for name in names if chosen(name, 0.25)}
    assert chosen("\ud800", 1.0)
    it = Audit(0.25, salt="secret")
    it.ended(ended([4, 5, 6], name=min(of[0.25])))
    it.ended(ended([4, 5, 6], name=min(set(names) - of[0.25])))
    assert it.waiting == 1


def test_without_a_share_nothing_is_kept() -> None:
    it = Audit()
    it.ended(ended([4, 5, 6]))
    assert it.waiting == 0 and it.begin(0.0) is None and it.interrupt() == [] and it.close() == []


def test_the_oldest_is_dropped_when_too_many_wait() -> None:
    it = audit()
    for number in range(MOST_WAITING + 3):
        it.ended(ended([4, 5, 6], name=str(number)))
    assert it.waiting == MOST_WAITING and results(it) == {("ngram", "dropped"): 3}
    assert taken(it)[1].request_id == "3"


def test_the_oldest_is_dropped_when_what_waits_is_too_long() -> None:
    it = audit()
    for number in range(3):
        it.ended(ended([4] * (MOST_TOKENS // 2 - 3), name=str(number)))
    assert it.waiting == 2 and results(it) == {("ngram", "dropped"): 1}
    # One that is too long alone pushes nobody out.
    it.ended(ended([4] * (MOST_TOKENS - 2)))
    assert it.waiting == 2 and results(it) == {("ngram", "dropped"): 2}
    it.ended(ended([4] * (MOST_TOKENS - 3), name="whole"))
    assert it.waiting == 1 and taken(it)[1].request_id == "whole"


def test_a_replay_that_gives_way_goes_on_behind_what_is_proven() -> None:
    it = audit()
    it.ended(ended([4, 5, 6, 7, 8], name="first"))
    it.ended(ended([4, 5, 6], name="second"))
    stream, _ = taken(it)
    it.hear(emit(stream, 4))
    it.hear(emit(stream, 5))
    assert it.interrupt() == [Cancelled(stream)]
    assert it.interrupt() == [] and it.waiting == 2
    again, generate = taken(it)
    assert again != stream and again < 0 and generate.request_id == "first"
    assert generate.token_ids == [*PROMPT, 4, 5] and generate.prompt_tokens == 3
    # A word of the one that was stopped counts no more.
    assert it.hear(emit(stream, 99)) == []
    for token in (6, 7, 8):
        assert it.hear(emit(again, token)) == []
    it.hear(finish(again))
    assert results(it) == {("ngram", "same"): 1} and it.compared_tokens == 5


def test_a_replay_that_gives_way_too_often_is_given_up() -> None:
    it = audit()
    it.ended(ended([4, 5, 6]))
    for _ in range(MOST_TRIES):
        assert it.waiting == 1
        stream, _ = taken(it)
        assert it.interrupt() == [Cancelled(stream)]
    assert it.waiting == 0 and results(it) == {("ngram", "given_up"): 1}


def test_a_replay_that_fails_is_given_up_and_is_no_difference() -> None:
    it = audit()
    it.ended(ended([4, 5, 6]))
    stream, _ = taken(it)
    failure = Failed(request_id="r", attempt=1, reason="engine", message="no")
    assert it.hear(Fail(stream, failure)) == []
    assert results(it) == {("ngram", "given_up"): 1}


def test_closing_drops_the_one_at_work_and_all_that_wait_and_takes_no_more() -> None:
    it = audit()
    for number in range(3):
        it.ended(ended([4, 5, 6], name=str(number)))
    stream, _ = taken(it)
    assert it.close() == [Cancelled(stream)]
    assert it.close() == []
    it.ended(ended([4, 5, 6]))
    assert it.waiting == 0 and it.begin(0.0) is None
    assert results(it) == {("ngram", "dropped"): 3}


def differ(it: Audit, method: str = "ngram") -> list[Any]:
    it.ended(ended([4, 5, 6], method=method))
    stream, _ = taken(it)
    return it.hear(emit(stream, 9))[1:]


def test_a_proposer_is_switched_off_once_by_so_many_differences_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    it = audit(threshold=2)
    assert differ(it) == [] and differ(it, "suffix") == []
    assert it.switched_off == set()
    assert differ(it) == [SwitchOff("ngram")]
    assert it.switched_off == {"ngram"}
    assert [r.levelname for r in caplog.records] == ["WARNING", "WARNING", "WARNING", "ERROR"]
    assert "ngram is switched off" in caplog.records[-1].getMessage()
    # One that had waited.
    assert differ(it) == []
    assert results(it) == {("ngram", "different"): 3, ("suffix", "different"): 1}


def test_without_a_threshold_differences_are_only_counted() -> None:
    it = audit(threshold=0)
    assert [differ(it) for _ in range(20)] == [[]] * 20
    assert it.switched_off == set() and results(it) == {("ngram", "different"): 20}
