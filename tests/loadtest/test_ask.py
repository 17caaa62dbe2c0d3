"""Bodies as they leave, and what tells sides apart."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from loadtest.ask import CHAT, COMPLETIONS, LoadRequest, Side, side, speculation

# What any server of the API may be sent unasked.
EVERYBODYS = {"model", "stream", "stream_options", "max_tokens", "temperature", "seed", "messages", "prompt"}


def sent(ask: LoadRequest, body: dict[str, Any], index: int = 0) -> tuple[str, dict[str, Any]]:
    path, request = ask.request(ask.shaped(body), index)
    return path, orjson.loads(request)


def test_a_request_goes_where_its_body_belongs_with_fields_everybody_knows() -> None:
    talk, text = {"messages": [{"role": "user", "content": "u"}]}, {"prompt": "p"}
    assert [sent(LoadRequest(), body)[0] for body in (talk, text)] == [CHAT, COMPLETIONS]
    assert all(set(sent(LoadRequest(), body)[1]) <= EVERYBODYS for body in (talk, text))
    assert sent(LoadRequest(path=COMPLETIONS), talk) == sent(LoadRequest(), {"prompt": "u"})
    assert sent(LoadRequest(path=CHAT), text)[1]["messages"] == [{"role": "user", "content": "p"}]


def test_flags_overrule_the_request_and_the_request_overrules_defaults() -> None:
    body = {"prompt": "p", "max_tokens": 9, "temperature": 0.7, "model": "theirs"}
    _, own = sent(LoadRequest(model="m", seed=5), body, index=2)
    assert (own["max_tokens"], own["temperature"], own["model"], own["seed"]) == (9, 0.7, "m", 7)
    _, told = sent(LoadRequest(max_tokens=3, temperature=0.0, extra={"seed": 1, "stop": None}), body)
    assert (told["max_tokens"], told["temperature"], told["seed"]) == (3, 0.0, 1) and "stop" not in told
    _, neither = sent(LoadRequest(), {"prompt": "p"})
    assert (neither["max_tokens"], neither["temperature"]) == (128, 0.0)


def test_what_not_every_server_knows_is_sent_when_asked_for() -> None:
    _, body = sent(LoadRequest(ignore_eos=True, token_ids=True, speculation={"method": "off"}), {"prompt": "p"})
    assert set(body) - EVERYBODYS == {"ignore_eos", "return_token_ids", "speculation"}


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("speculation=off", {"speculation": {"method": "off"}}),
        ("speculation=ngram:5", {"speculation": {"method": "ngram", "num_speculative_tokens": 5}}),
        ('speculation={"method": "auto"}', {"speculation": {"method": "auto"}}),
        ("temperature=0.5; top_p=1", {"temperature": 0.5, "top_p": 1}),
        ("model=other one", {"model": "other one"}),
        ("a.b=true;a.c=x", {"a": {"b": True, "c": "x"}}),
    ],
)
def test_a_side_is_fields_of_the_body(text: str, fields: dict[str, Any]) -> None:
    assert side(text) == Side(text, fields)


def test_a_side_may_be_another_server() -> None:
    assert side("url=http://peer:1/v1;model=x") == Side(
        "url=http://peer:1/v1;model=x", {"model": "x"}, "http://peer:1/v1"
    )


def test_a_side_may_have_a_name() -> None:
    assert side("label=a peer;url=http://peer:1;top_p=1") == Side("a peer", {"top_p": 1}, "http://peer:1")


@pytest.mark.parametrize("text", ["", "speculation", "=1", "speculation=no good", "speculation=ngram:x", "a=1;a.b=2"])
def test_a_side_of_something_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        side(text)


def test_sides_with_drafts_of_their_own_get_caches_of_their_own() -> None:
    off, auto, hot = side("speculation=off"), side("speculation=auto"), side("temperature=1")
    assert off.ask(LoadRequest(), "run").extra["cache_salt"] != auto.ask(LoadRequest(), "run").extra["cache_salt"]
    assert "cache_salt" not in auto.ask(LoadRequest(), "").extra
    # A field only our server knows is for those who use one already.
    assert "cache_salt" not in hot.ask(LoadRequest(), "run").extra
    assert side("speculation=auto;cache_salt=mine").ask(LoadRequest(), "run").extra["cache_salt"] == "mine"


def test_speculation_is_a_method_a_length_or_an_object() -> None:
    assert speculation("suffix") == {"method": "suffix"}
    with pytest.raises(ValueError):
        speculation("{")
