"""Lines of batch files: what is sent, what is refused and why, and what an answer's line says."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from services.cli import batch_lines
from services.cli.batch_lines import (
    URLS,
    Asked,
    Refused,
    answer_line,
    answered_id,
    read_line,
    read_lines,
    refused_line,
)
from services.streamer.door.http import ROUTES

GOOD = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "Hi", "max_tokens": 3}}


def raw(**changed: Any) -> bytes:
    return json.dumps({**GOOD, **changed}).encode() + b"\n"


def test_a_line_is_sent_as_it_is() -> None:
    line = read_line(7, raw(body={"prompt": "é", "temperature": 0.1, "seed": 2**63}))
    assert isinstance(line, Asked) and (line.number, line.custom_id, line.url) == (7, "a", "/v1/completions")
    assert json.loads(line.body) == {"prompt": "é", "temperature": 0.1, "seed": 2**63}


def test_every_url_is_a_route_of_the_server() -> None:
    assert set(URLS) <= {route.path for route in ROUTES if route.method == "POST"}


@pytest.mark.parametrize(
    ("line", "custom_id", "code", "named"),
    [
        (b'{"custom_id": "a",\n', None, "invalid_json", "no JSON"),
        (b"[1]\n", None, "invalid_json", "no JSON object"),
        (b"\xff\xfe{}\n", None, "invalid_json", "no JSON"),
        (b"[" * 100_000, None, "invalid_json", "no JSON"),
        (raw(custom_id=None), None, "missing_custom_id", "custom_id"),
        (raw(custom_id=""), None, "missing_custom_id", "custom_id"),
        (raw(custom_id=5), None, "missing_custom_id", "custom_id"),
        (raw(method="GET"), "a", "invalid_method", '"GET" is not POST'),
        (raw(url="/v1/images"), "a", "invalid_url", '"/v1/images" is none of'),
        (raw(url=["/v1/completions"]), "a", "invalid_url", "is none of"),
        (raw(body="Hi"), "a", "invalid_body", "body"),
        (raw(body={"stream": True}), "a", "stream_not_supported", "body.stream"),
    ],
)
def test_a_line_that_cannot_be_sent_is_refused(line: bytes, custom_id: str | None, code: str, named: str) -> None:
    refused = read_line(3, line)
    assert isinstance(refused, Refused) and named in refused.why
    assert (refused.number, refused.custom_id, refused.code) == (3, custom_id, code)
    told = json.loads(refused_line(refused))
    assert told["custom_id"] == custom_id and told["response"] is None
    assert told["error"] == {"code": code, "message": refused.why, "line": 3}
    assert answered_id(refused_line(refused)) is None


def test_a_body_that_says_that_it_is_not_streamed_is_sent() -> None:
    assert isinstance(read_line(1, raw(body={"stream": False})), Asked)


def test_lines_are_counted_with_the_empty_ones_and_the_last_needs_no_end() -> None:
    text = b"\xef\xbb\xbf" + raw().rstrip() + b"\r\n\r\n  \nno json\n" + raw(custom_id="z").rstrip()
    lines = list(read_lines(io.BytesIO(text)))
    assert [(type(line), line.number) for line in lines] == [(Asked, 1), (Refused, 4), (Asked, 5)]


def test_a_line_that_is_too_long_is_refused_and_the_next_one_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_lines, "LONGEST_LINE", len(raw()))
    exactly = raw(custom_id="b")
    first, second, third = read_lines(io.BytesIO(exactly + b"x" * 10 * len(exactly) + b"\n" + raw(custom_id="c")))
    assert isinstance(first, Asked) and isinstance(third, Asked)
    assert isinstance(second, Refused) and (second.number, second.code) == (2, "line_too_long")
    assert third.number == 3


def test_an_answer_counts_as_one_unless_it_is_an_error() -> None:
    line = answer_line("a", 200, "req-1", {"choices": []})
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    told = json.loads(line)
    assert told.pop("id").startswith("batch_req_")
    response = {"status_code": 200, "request_id": "req-1", "body": {"choices": []}}
    assert told == {"custom_id": "a", "response": response, "error": None}
    assert answered_id(line) == "a"
    assert answered_id(answer_line("a", 400, "req-1", {"error": {}})) is None
    for other in (b"{}\n", b"notes\n", b"[]\n"):
        with pytest.raises(ValueError):
            answered_id(other)
