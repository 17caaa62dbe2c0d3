"""What a client may say of drafts: what guesses, how far, what judges, whose text it may know."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from refusing import CARD, asked, refusal

from services.api.messages import Speculation
from services.streamer.openai.request import RequestLimits, check_against, parse_chat
from services.streamer.openai.speculation import longest_draft


def test_every_wish_of_speculation_reaches_the_target() -> None:
    wish = {
        "method": "ngram", "num_speculative_tokens": 4, "verify_strategy": "block", "accept_policy": "reject_all",
        "max_candidate_len": 3, "verify_window": 0, "typical_epsilon": 0.1, "typical_delta": 1,
    }  # fmt: skip
    request = asked(speculation=wish)
    check_against(request, CARD)
    assert request.speculation == Speculation(**wish)


def test_a_wish_that_is_not_given_is_the_servers_choice() -> None:
    for nothing in (None, {}, {"verify_strategy": None, "verify_window": None}):
        assert asked(speculation=nothing).speculation == Speculation()


def test_auto_is_always_served() -> None:
    check_against(asked(speculation={"verify_strategy": "auto"}), CARD)


@pytest.mark.parametrize(
    ("wish", "served"),
    [
        ({"verify_strategy": "topp"}, "auto, greedy, target_match, rejection, block, not 'topp'"),
        ({"verify_strategy": "typical"}, "auto, greedy, target_match, rejection, block, not 'typical'"),
        ({"accept_policy": "accept_all"}, "normal, reject_all, not 'accept_all'"),
    ],
)
def test_what_changes_the_text_is_refused_with_what_is_served_and_why(wish: dict[str, str], served: str) -> None:
    error = refusal(speculation=wish)
    assert error.param == f"speculation.{next(iter(wish))}"
    assert f"must be one of {served}" in error.message
    assert "allow_lossy" in error.message


def test_a_name_nobody_knows_is_refused_with_what_is_served() -> None:
    for name in ("verify_strategy", "accept_policy"):
        error = refusal(speculation={name: "magic"})
        assert error.param == f"speculation.{name}"
        assert "not 'magic'" in error.message and "allow_lossy" not in error.message


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("max_candidate_len", 0),
        ("max_candidate_len", 1025),
        ("max_candidate_len", 2.0),
        ("verify_window", -1),
        ("verify_window", 65),
        ("typical_epsilon", 0),
        ("typical_epsilon", 1.5),
        ("typical_delta", -1),
        ("typical_delta", "0.3"),
        ("verify_strategy", 5),
        ("verify_strategy", "x" * 65),
        ("accept_policy", True),
        ("posterior_alpha", 0.3),
        ("off", "yes"),
        ("off", 1),
        ("corpus", 5),
        ("corpus", ""),
        ("corpus", "a/b"),
        ("corpora", "docs"),
        ("corpora", ["a"] * 17),
        ("namespace", ["a"]),
        ("namespace", "a b"),
        ("namespace", "x" * 65),
        ("learn", "no"),
    ],
)
def test_a_wrong_wish_is_refused_by_name(name: str, wrong: Any) -> None:
    assert refusal(speculation={name: wrong}).param == f"speculation.{name}"


def test_off_is_the_method_naive_in_other_words() -> None:
    for wish in (
        {"off": True},
        {"method": "off"},
        {"off": True, "method": "off"},
        {"off": True, "method": "naive"},
        {"off": True, "num_speculative_tokens": 0},
    ):
        request = asked(speculation=wish)
        check_against(request, CARD)
        assert request.speculation.method == "naive"
    # With naive a length never meant anything, and still doesn't.
    asked(speculation={"method": "naive", "num_speculative_tokens": 4})
    assert asked(speculation={"off": False}).speculation == Speculation()


@pytest.mark.parametrize(
    ("wish", "param"),
    [
        ({"off": True, "method": "ngram"}, "off"),
        ({"off": False, "method": "off"}, "off"),
        ({"off": True, "num_speculative_tokens": 1}, "off"),
        ({"method": "off", "num_speculative_tokens": 1}, "method"),
        ({"corpus": "a", "corpora": ["a"]}, "corpus"),
        ({"corpora": ["a", None]}, "corpora[1]"),
        ({"corpora": ["a", "b", "c d"]}, "corpora[2]"),
    ],
)
def test_a_wish_that_contradicts_itself_is_refused_by_name(wish: dict[str, Any], param: str) -> None:
    assert refusal(speculation=wish).param == f"speculation.{param}"


def test_corpora_are_one_several_none_or_whatever_there_is() -> None:
    assert asked(speculation={"corpus": "docs-1.2_x"}).speculation.corpora == ["docs-1.2_x"]
    assert asked(speculation={"corpora": ["a", "b", "a"]}).speculation.corpora == ["a", "b"]
    assert asked(speculation={"corpora": []}).speculation.corpora == []
    assert asked(speculation={"corpus": None, "corpora": None}).speculation.corpora is None


def test_an_answer_is_learned_from_unless_it_is_said_otherwise() -> None:
    for wish in ({}, {"learn": None}, {"learn": True}):
        assert asked(speculation=wish).speculation.learn
    assert not asked(speculation={"learn": False}).speculation.learn


def test_a_namespace_is_a_name_that_the_target_never_hears() -> None:
    request = asked(speculation={"namespace": "team-1"})
    assert (request.namespace, request.speculation) == ("team-1", Speculation())
    assert (asked().namespace, asked(speculation={}).namespace) == ("", "")


def test_a_prediction_is_a_text_or_its_parts() -> None:
    for content, text in (
        ("hello", "hello"),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab"),
        ("", ""),
        ([], ""),
    ):
        prediction = {"type": "content", "content": content}
        assert asked(prediction=prediction).prediction == text
        chat = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "prediction": prediction}
        assert parse_chat(chat, RequestLimits()).prediction == text
    assert asked().prediction is asked(prediction=None).prediction is None


@pytest.mark.parametrize(
    ("prediction", "param"),
    [
        ("hello", "prediction"),
        ({"content": "a"}, "prediction.type"),
        ({"type": "text", "content": "a"}, "prediction.type"),
        ({"type": "content"}, "prediction.content"),
        ({"type": "content", "content": 5}, "prediction.content"),
        ({"type": "content", "content": "a", "x": 1}, "prediction.x"),
        ({"type": "content", "content": [{"type": "image"}]}, "prediction.content[0].type"),
        ({"type": "content", "content": [{"type": "text"}]}, "prediction.content[0].text"),
    ],
)
def test_a_wrong_prediction_is_refused_by_its_place(prediction: Any, param: str) -> None:
    assert refusal(prediction=prediction).param == param


def test_how_long_a_draft_may_be_is_what_was_asked_within_what_is_served() -> None:
    for wish, longest in (
        ({}, 8),
        ({"num_speculative_tokens": 3}, 3),
        ({"num_speculative_tokens": 0}, 0),
        ({"method": "naive"}, 0),
        ({"off": True}, 0),
    ):
        assert longest_draft(asked(speculation=wish).speculation, CARD) == longest
    quiet = msgspec.structs.replace(CARD, speculation=Speculation(method="naive"))
    assert longest_draft(Speculation(), quiet) == 0
    assert longest_draft(Speculation(method="ngram"), quiet) == 8
