"""Requests that are the same everywhere, and how the speculation benchmark counts; measuring needs a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.results_in_pages import CALLED
from bench.speculation import Method, Seen, auto_missed, compare, method, missed, rotated
from bench.streams import Heard, Refused, told
from bench.workloads import LEADING, WORKLOADS, from_lines, route, salt_of
from loadtest.workloads import REQUESTS
from services.streamer.openai.request import RequestLimits, parse_chat, parse_completion

# Three steps gave nine tokens; a stop text stood before the last two.
STEPS = {"accepted_tokens": 9, "average_accept_length": 3.0}
EVENTS: list[tuple[float, dict[str, Any]]] = [
    (1.0, {"choices": [{"delta": {"role": "assistant"}}]}),
    (2.0, {"choices": [{"delta": {"content": "a"}}]}),
    (3.0, {"choices": [{"delta": {"content": "bc"}}]}),
    (3.5, {"choices": [{"delta": {}, "finish_reason": "stop", "speculate_metrics": STEPS}]}),
    (
        3.6,
        {
            "choices": [],
            "usage": {"completion_tokens": 7},
            "metrics": {"speculative_decoding": {"num_draft_tokens": 6, "num_accepted_draft_tokens": 4}},
        },
    ),
]


@pytest.mark.parametrize("name", WORKLOADS)
def test_requests_are_the_same_for_a_seed_and_more_of_them_begin_alike(name: str) -> None:
    requests = WORKLOADS[name].requests
    assert requests(12, 3) == requests(40, 3)[:12] != requests(12, 4)
    assert len(requests(40, 3)) == 40


@pytest.mark.parametrize("name", WORKLOADS)
def test_no_request_comes_twice_and_all_are_greedy_and_of_a_usual_size(name: str) -> None:
    bodies = WORKLOADS[name].requests(32, 1)
    assert len({json.dumps(body) for body in bodies}) == 32
    for body in bodies:
        text = body.get("prompt") or "".join(message["content"] for message in body["messages"])
        assert 300 < len(text) < 6000, (name, len(text))
        assert body["temperature"] == 0 and 100 <= body["max_tokens"] <= 400


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_server_takes_every_request(name: str) -> None:
    for body in WORKLOADS[name].requests(8, 1):
        parse = parse_chat if route(body).endswith("chat/completions") else parse_completion
        parse({**body, "model": "m"}, RequestLimits())


def test_what_leads_is_not_selected_and_a_cold_request_has_a_salt_of_its_own() -> None:
    assert set(CALLED) == set(REQUESTS)
    assert LEADING[0] == "edit" and "edit-favourable" not in LEADING
    assert [salt_of(name, "run", 3) for name in ("edit", "chat", "lines.jsonl")] == ["run 3", "run", "run"]


def test_turns_of_a_session_hold_the_turns_before() -> None:
    first, second, third = WORKLOADS["agentic"].requests(3, 1)
    assert first["messages"] == second["messages"][: len(first["messages"])]
    assert second["messages"] == third["messages"][: len(second["messages"])]


def test_lines_of_a_file_are_requests_again_from_the_beginning(tmp_path: Path) -> None:
    (tmp_path / "two.jsonl").write_text('{"prompt": "a"}\n\n{"messages": []}\n')
    bodies = from_lines(tmp_path / "two.jsonl", 3)
    assert [route(body) for body in bodies] == ["/v1/completions", "/v1/chat/completions", "/v1/completions"]
    (tmp_path / "none.jsonl").write_text("\n")
    with pytest.raises(ValueError, match="no requests"):
        from_lines(tmp_path / "none.jsonl", 3)


def test_a_stream_is_timed_from_its_first_text_to_its_end() -> None:
    heard = told(EVENTS, sent=0.5)
    assert (heard.text, heard.tokens, heard.drafted, heard.accepted) == ("abc", 7, 6, 4)
    assert (heard.steps, heard.given) == (3, 9)
    assert (heard.seconds, heard.decode_seconds) == (3.0, 1.5)


def test_a_stream_that_breaks_off_is_no_answer() -> None:
    with pytest.raises(Refused):
        told(EVENTS[:3], sent=0.5)


def test_a_method_may_have_a_longest_draft() -> None:
    assert method("ngram:5") == Method("ngram:5", {"method": "ngram", "num_speculative_tokens": 5})
    assert method("auto") == Method("auto", {"method": "auto"})


def test_everyone_is_first_once() -> None:
    methods = [method(name) for name in "abc"]
    assert [rotated(methods, turn)[0].label for turn in range(4)] == ["a", "b", "c", "a"]
    assert sorted(each.label for each in rotated(methods, 2)) == ["a", "b", "c"]


def seen(decode: float, text: str = "t", accepted: int = 0) -> Seen:
    """Two answers of eleven tokens, of which the drafts' were a step less each, and half a second until the first."""
    heard = Heard(text, 11, 11 - accepted, 11, accepted, accepted, 0.0, 0.5, 0.5 + decode)
    return Seen([heard] * 2, 2 * (0.5 + decode))


def test_speed_is_compared_by_the_times_of_the_same_texts() -> None:
    found = compare({"naive": [seen(4.0), seen(2.0)], "auto": [seen(2.0, accepted=6), seen(1.0, accepted=6)]})
    assert found["auto"]["decode"] == [2.0, 2.0, 2.0]
    assert found["auto"]["request"][0] == pytest.approx((4.5 / 2.5 * 2.5 / 1.5) ** 0.5, abs=1e-3)
    assert found["auto"]["throughput"] == pytest.approx(7.0 / 4.0)
    assert found["auto"]["tokens_per_step"] == 2.2 and found["naive"]["tokens_per_step"] == 1.0
    assert found["naive"]["decode_tokens_per_second"] == 3.3
    assert missed({"mine": {"1": found}}) == []


def test_a_text_that_differs_is_told() -> None:
    found = compare({"naive": [seen(1.0)], "ngram:5": [seen(1.0, text="other")]})
    assert missed({"chat": {"4": found}}) == ["chat, 4 at a time: 2 texts of ngram:5 differ"]


def test_auto_is_held_to_its_bar_and_to_the_best_of_the_others() -> None:
    def figures(**decode: float) -> dict[str, Any]:
        return {name: {"decode": [each], "throughput": each} for name, each in decode.items()}

    assert auto_missed("edit-favourable", 1, figures(naive=1.0, ngram=3.1, auto=3.0)) == []
    assert len(auto_missed("edit-favourable", 1, figures(naive=1.0, ngram=3.5, auto=2.9))) == 2
    assert auto_missed("edit-favourable", 16, figures(naive=1.0, ngram=0.8, auto=0.99)) == []
    assert auto_missed("chat", 16, figures(naive=1.0, auto=0.98)) == ["is 0.98 x naive, the bar is 0.99"]
