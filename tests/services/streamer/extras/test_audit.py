"""The audit as values: requests that ended go in, replays and results come out."""

from __future__ import annotations

import logging

import msgspec
import pytest
from fake_mesh import CARD

from services.api.messages import MOST_PRIORITY, Generate, Run, Speculation
from services.api.sampling import Sampling
from services.api.strategies import Verification
from services.streamer.choice.acceptance import ChoiceAcceptance
from services.streamer.choice.delivery import Delivery
from services.streamer.choice.detokenize import Detokenizer
from services.streamer.choice.generation import Choice
from services.streamer.extras.audit import MAX_TRIES, MAX_WAITING, MAX_WAITING_TOKENS, Audit, chosen

PROMPT = [1, 2, 3]
EOS = 0
FAST = msgspec.structs.replace(CARD, strict=False, path="a fake")
STRICT = msgspec.structs.replace(CARD, path="a fake")


def choice(
    tokens: list[int], *, name: str = "r", stop: int | None = None, drafted: int = 1, prompt: list[int] | None = None,
    verification: Verification | None = None, speculation: Speculation | None = None, **sampling: object,
) -> Choice:  # fmt: skip
    """One that was given these tokens, a draft among them unless told otherwise."""
    acceptance = ChoiceAcceptance()
    acceptance.add([Run(length=len(tokens), drafted=drafted, accepted=0)])
    return Choice(
        index=0,
        request_id=name,
        prompt=prompt or PROMPT,
        sampling=Sampling(**{"max_tokens": 90000, **sampling}),  # type: ignore[arg-type]
        speculation=speculation or Speculation(),
        verification=verification or Verification("greedy"),
        longest_draft=8,
        delivery=Delivery(Detokenizer.__new__(Detokenizer), min_tokens=0, tokens_shown=False),
        tokens=tokens,
        stop_token=stop,
        acceptance=acceptance,
    )


def audit(threshold: int = 3) -> Audit:
    return Audit(1.0, threshold)


def end(it: Audit, *arguments: object, method: str = "ngram", strict: bool = True, **more: object) -> None:
    it.ended(choice(*arguments, **more), method, STRICT if strict else FAST)  # type: ignore[arg-type]


def begun(it: Audit, salt: str = "secret") -> Generate:
    replay = it.begin(salt)
    assert replay is not None
    return replay


def test_a_replay_is_the_request_without_drafts_at_the_lowest_priority_under_a_salt_of_its_own() -> None:
    it = audit()
    asked = Speculation(method="ngram", verify_strategy="target_match", corpora=["mine"], return_drafts=True)
    verification = Verification("target_match")
    end(it, [4, 5, 6], stop=EOS, verification=verification, speculation=asked, temperature=0.7, seed=9, logprobs=5)
    replay = begun(it, "a salt")
    assert (replay.token_ids, replay.prompt_tokens) == (PROMPT, 3)
    assert (replay.speculation.method, replay.speculation.num_speculative_tokens) == ("naive", 0)
    assert replay.speculation.verify_strategy == "target_match"
    assert not replay.speculation.learn and not replay.speculation.return_drafts and replay.namespace == ""
    assert (replay.sampling.temperature, replay.sampling.seed, replay.sampling.logprobs) == (0.7, 9, -1)
    # No token more than the answer had, its stop id included.
    assert replay.sampling.max_tokens == 4
    assert (replay.priority, replay.cache_salt) == (MOST_PRIORITY, "a salt")


def test_the_same_tokens_with_the_same_end_are_the_same_text() -> None:
    it = audit()
    end(it, [4, 5, 6], stop=EOS)
    begun(it)
    assert not it.tokens([4]) and not it.tokens([5, 6])
    it.finished(EOS)
    assert it.results == {("ngram", "same"): 1}
    assert (it.compared_tokens, it.waiting, it.begin("")) == (3, 0, None)


def test_the_first_token_that_differs_ends_the_replay_and_only_its_position_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    it = audit()
    end(it, [411, 522, 633, 744], name="chat-7", prompt=[911, 922])
    begun(it)
    with caplog.at_level(logging.WARNING):
        assert not it.tokens([411, 522])
        assert it.tokens([999, 744])
    assert it.results == {("ngram", "different"): 1}
    told = caplog.text
    assert "from token 2 on" in told and "chat-7" in told and "a fake" in told
    assert "ngram" in told and "greedy" in told
    assert not any(str(token) in told for token in (411, 522, 633, 744, 999, 911, 922))


@pytest.mark.parametrize(
    ("answer", "stop", "replay", "replay_stop", "position"),
    [
        ([4, 5], EOS, [4, 5, 6], None, 2),
        ([4, 5], EOS, [4], EOS, 1),
        ([4, 5, 6], None, [4, 5], EOS, 2),
        ([4, 5], EOS, [4, 5], 7, 2),
    ],
    ids=["goes on", "stops before", "stops instead of its last", "stops by another id"],
)
def test_another_end_is_a_difference_too(
    answer: list[int], stop: int | None, replay: list[int], replay_stop: int | None, position: int,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    it = audit()
    end(it, answer, stop=stop)
    begun(it)
    if not it.tokens(replay):
        it.finished(replay_stop)
    assert it.results == {("ngram", "different"): 1}
    assert f"from token {position} on" in caplog.text


def test_a_request_that_was_cut_short_is_compared_as_far_as_it_came() -> None:
    it = audit()
    end(it, [4, 5, 6], max_tokens=1000)
    assert begun(it).sampling.max_tokens == 3
    it.tokens([4, 5, 6])
    it.finished(None)
    assert it.results == {("ngram", "same"): 1}


def test_only_texts_that_must_be_the_same_and_had_drafts_verified_are_taken() -> None:
    it = audit()
    end(it, [4, 5, 6], drafted=0)
    end(it, [4, 5, 6], verification=Verification("rejection"))
    end(it, [4, 5, 6], verification=Verification("greedy", "accept_all"))
    assert it.waiting == 0 and it.results == {}
    end(it, [4, 5, 6])
    end(it, [4, 5, 6], verification=Verification("target_match"))
    end(it, [4, 5, 6], verification=Verification("topp", "reject_all"))
    assert it.waiting == 3


def test_the_share_is_drawn_from_the_id_of_a_request_and_is_the_same_each_time() -> None:
    names = [f"request-{number}" for number in range(20000)]
    of = {share: {name for name in names if chosen(name, share)} for share in (0.0, 0.01, 0.25, 1.0)}
    assert of[0.0] == set() and of[1.0] == set(names)
    assert 140 < len(of[0.01]) < 260 and 4700 < len(of[0.25]) < 5300
    assert of[0.01] < of[0.25]
    assert chosen("\ud800", 1.0)
    it = Audit(0.25)
    end(it, [4, 5, 6], name=min(of[0.25]))
    end(it, [4, 5, 6], name=min(set(names) - of[0.25]))
    assert it.waiting == 1


def test_without_a_share_nothing_is_kept() -> None:
    it = Audit()
    end(it, [4, 5, 6])
    assert it.waiting == 0 and it.begin("") is None


def test_the_oldest_is_dropped_when_too_many_wait() -> None:
    it = audit()
    for number in range(MAX_WAITING + 3):
        end(it, [4, 5, 6], name=str(number))
    assert it.waiting == MAX_WAITING and it.results == {("ngram", "dropped"): 3}
    assert begun(it).request_id == "3-audit"


def test_the_oldest_is_dropped_when_what_waits_is_too_long() -> None:
    it = audit()
    for number in range(3):
        end(it, [4] * (MAX_WAITING_TOKENS // 2 - 3), name=str(number))
    assert it.waiting == 2 and it.results == {("ngram", "dropped"): 1}
    # One that is too long alone pushes none out.
    end(it, [4] * (MAX_WAITING_TOKENS - 2))
    assert it.waiting == 2 and it.results == {("ngram", "dropped"): 2}
    end(it, [4] * (MAX_WAITING_TOKENS - 3), name="whole")
    assert it.waiting == 1 and begun(it).request_id == "whole-audit"


def test_an_interrupted_replay_continues_behind_what_was_compared_before_any_other_begins() -> None:
    it = audit()
    end(it, [4, 5, 6, 7, 8], name="first")
    end(it, [4, 5, 6], name="second")
    begun(it)
    it.tokens([4, 5])
    it.interrupted()
    assert it.waiting == 2
    again = begun(it)
    assert again.request_id == "first-audit" and again.attempt == 2
    assert (again.token_ids, again.prompt_tokens) == ([*PROMPT, 4, 5], 3)
    # It counts the tokens already there against the answer's length.
    assert again.sampling.max_tokens == 5
    assert not it.tokens([6, 7, 8])
    it.finished(None)
    assert it.results == {("ngram", "same"): 1} and it.compared_tokens == 5


def test_a_replay_that_is_interrupted_too_often_is_given_up() -> None:
    it = audit()
    end(it, [4, 5, 6])
    for _ in range(MAX_TRIES):
        assert it.waiting == 1
        begun(it)
        it.interrupted()
    assert it.waiting == 0 and it.results == {("ngram", "given_up"): 1}


def test_a_replay_during_which_two_workers_die_is_given_up() -> None:
    it = audit()
    end(it, [4, 5, 6])
    begun(it)
    it.worker_died()
    assert it.waiting == 1 and not it.results
    begun(it)
    it.worker_died()
    assert it.waiting == 0 and it.results == {("ngram", "given_up"): 1}


def test_a_replay_that_fails_is_given_up_and_is_no_difference() -> None:
    it = audit()
    end(it, [4, 5, 6])
    begun(it)
    it.failed()
    assert it.results == {("ngram", "given_up"): 1}


def test_closing_drops_all_that_wait_and_takes_no_more() -> None:
    it = audit()
    for number in range(3):
        end(it, [4, 5, 6], name=str(number))
    begun(it)
    it.close()
    assert it.results == {("ngram", "dropped"): 2}
    it.interrupted()
    end(it, [4, 5, 6])
    assert it.waiting == 0 and it.begin("") is None
    assert it.results == {("ngram", "dropped"): 3}


def differ(it: Audit, method: str = "ngram", strict: bool = True) -> None:
    end(it, [4, 5, 6], method=method, strict=strict)
    begun(it)
    assert it.tokens([9])


def test_a_method_is_switched_off_once_by_its_own_differences(caplog: pytest.LogCaptureFixture) -> None:
    it = audit(threshold=2)
    differ(it)
    differ(it, "suffix")
    assert it.switched_off == set()
    differ(it)
    assert it.switched_off == {"ngram"}
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING", "WARNING", "ERROR"]
    assert "ngram is switched off" in caplog.records[-1].getMessage()
    # One that had waited.
    differ(it)
    assert it.results == {("ngram", "different"): 3, ("suffix", "different"): 1}
    assert [record.levelname for record in caplog.records].count("ERROR") == 1


@pytest.mark.parametrize(("threshold", "strict"), [(0, True), (2, False)], ids=["no threshold", "rows may differ"])
def test_without_a_threshold_or_a_strict_engine_differences_are_only_counted(threshold: int, strict: bool) -> None:
    it = audit(threshold)
    for _ in range(5):
        differ(it, strict=strict)
    assert it.switched_off == set() and it.results == {("ngram", "different"): 5}
