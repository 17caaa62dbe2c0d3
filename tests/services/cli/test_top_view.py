from __future__ import annotations

import copy
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mesh_seen import BODY, member

from services.cli.top_view import RESET, age, bar, number, screen, share

TITLES = ["ROLE", "INSTANCE", "STATE", "SINCE", "QUEUE", "RUNNING", "TOKENS/S", "RESTARTS"]


def shown(body: Any = BODY, width: int = 120, height: int = 40, **more: Any) -> list[str]:
    return screen(body, "http://here", width, height, **{"colours": False, **more})


def test_everyone_is_shown_in_the_order_of_a_requests_way() -> None:
    lines = shown()
    assert lines[0] == "http://here: 3 processes, all ready, restarts 2"
    assert [line.split()[0] for line in lines[1:5]] == ["ROLE", "streamer", "worker", "proposer"]
    # A column nobody has a word in is left out.
    assert lines[1].split() == [*TITLES, "HEARD", "PID"]
    assert lines[3].split() == ["worker", "worker-1", "ready", "1m15s", "3", "2", "221", "0", "0.0s", "4711"]


def test_what_each_does_where_drafts_come_from_and_the_lines_between_them() -> None:
    text = "\n".join(shown())
    assert "worker-1    0.49 accepted a step, KV 25% used" in text
    assert "proposer-1  learned 123k tokens" in text
    suffix, ngram = (line.split() for line in text.splitlines() if line.startswith(("suffix", "ngram")))
    assert suffix == ["suffix", *["30", "/", "40", "75%"], "█" * 15, *["30", "/", "400", "8%"]]
    assert ngram == ["ngram", *["1", "/", "10", "10%"], "██", *["1", "/", "100", "1%"]]
    titles = next(line for line in text.splitlines() if line.startswith("DRAFTS FROM"))
    assert "ACCEPTED (10 s) / DRAFTED" in titles and "ACCEPTED (TOTAL) / DRAFTED" in titles
    assert "lines: streamer-1 → worker-1 0.5 ms, worker-1 → proposer-1 closed" in text


def test_a_killed_proposer_is_told_where_its_column_does_not_fit() -> None:
    body = copy.deepcopy(BODY)
    body["members"][0]["restarts"] = 1
    assert shown(body)[0].endswith("restarts 1") and shown(body)[4].split()[-3] == "1"
    narrow = shown(body, width=60)
    assert "RESTARTS" not in narrow[1] and narrow[0].endswith("restarts 1")
    body["members"][0]["restarts"] = 0
    assert "restarts" not in shown(body)[0]


def test_a_narrow_window_loses_the_columns_that_matter_least() -> None:
    titles = [line.split() for width in (120, 70, 50, 30) for line in [shown(width=width)[1]]]
    assert titles[1] == TITLES
    assert titles[2] == ["ROLE", "INSTANCE", "STATE", "QUEUE", "TOKENS/S"]
    assert titles[3] == ["ROLE", "STATE", "TOKENS/S"]


def test_a_low_window_says_that_there_is_more() -> None:
    lines = shown(height=5)
    assert len(lines) == 5
    assert lines[-1] == f"… {len(shown()) - 4} more lines: make the terminal higher"


def test_who_is_not_ready_is_told_with_the_reason() -> None:
    body = copy.deepcopy(BODY)
    body["members"][0] |= {"state": "stuck", "reasons": ["nobody to talk to"]}
    body["members"].append(member("tokenizer", state="gone"))
    lines = shown(body)
    # Who is gone is shown, and isn't one of them any more.
    assert lines[0] == "http://here: 3 processes, 1 not ready, restarts 2"
    assert any("nobody to talk to" in line for line in lines)
    assert any("gone" in line for line in lines)


def test_a_server_that_is_gone_is_told_with_what_was_seen_last() -> None:
    assert shown(None, trouble="nothing answers") == ["http://here: nothing answers"]
    assert shown(trouble="nothing answers")[1:] == shown()[1:]


def test_what_a_process_says_cannot_command_the_terminal() -> None:
    body = copy.deepcopy(BODY)
    body["members"][0] |= {"reasons": ["\x1b[2J"]}
    body["members"][2]["sources"][0]["name"] = "\x1b]0;x"
    for field in ("role", "instance", "state", "pid"):
        body["members"][1][field] = f"\x9b2J\r\n{field}"
    body["links"][0] |= {"from": "\x1b[2J", "to": "\x1b[2J"}
    for trouble in ("", "\x1b[2J"):
        lines = shown(body, trouble=trouble)
        assert all(line.isprintable() or line == "" for line in lines)
        assert any("instance" in line for line in lines)


@given(st.integers(1, 200), st.integers(1, 60), st.booleans())
def test_no_line_is_wider_than_the_window_and_no_screen_higher(width: int, height: int, colours: bool) -> None:
    lines = shown(width=width, height=height, colours=colours)
    assert len(lines) <= height
    for line in lines:
        assert len(re.sub(r"\x1b\[[0-9;]*m", "", line)) <= max(width, 20)
        assert line.count(RESET) == len(re.findall(r"\x1b\[[1-9][0-9;]*m", line))


@given(st.integers(20, 200))
def test_colours_change_nothing_but_colours(width: int) -> None:
    with_colours = shown(width=width, colours=True)
    assert [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in with_colours] == shown(width=width)


@pytest.mark.parametrize(
    ("value", "digits", "said"),
    [(0, 0, "0"), (9.87, 1, "9.9"), (221.2, 1, "221"), (9999, 0, "9999"), (12345, 0, "12.3k"), (123456, 0, "123k"),
     (4.56e6, 0, "4.56M"), (7e9, 0, "7G")],
)  # fmt: skip
def test_numbers(value: float, digits: int, said: str) -> None:
    assert number(value, digits) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.4, "0s"), (59.9, "59s"), (60, "1m00s"), (3599, "59m59s"), (3661, "1h01m"), (90000, "1d01h")],
)
def test_ages(seconds: float, said: str) -> None:
    assert age(seconds) == said


def test_shares_of_nothing() -> None:
    assert (share(0, 0), bar(0, 0)) == ("-", "")
