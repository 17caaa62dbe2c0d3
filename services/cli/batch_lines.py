"""The lines of OpenAI's batch files: what is asked, what is refused before it is asked, and the lines of answers.

    IN    {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {...}}
    OUT   {"id": "batch_req_…", "custom_id": "a", "response": {"status_code": 200, "request_id": …, "body": {...}},
           "error": null}
          {"id": "batch_req_…", "custom_id": "a", "response": null, "error": {"code": …, "message": …, "line": 17}}

Pure, but for reading a file; knows neither HTTP nor what is in OUT already.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, TypeAlias

import orjson

URLS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/messages")
# A line is held in memory, and as many as there are requests in flight.
LONGEST_LINE = 64 << 20
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Asked:
    """A line to send. `number`: of the line, from 1."""

    number: int
    custom_id: str
    url: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Refused:
    """A line that can't be sent. `custom_id`: if it has one."""

    number: int
    custom_id: str | None
    code: str
    why: str


Line: TypeAlias = Asked | Refused


def read_lines(file: BinaryIO) -> Iterator[Line]:
    """Empty lines are passed over."""
    number = 0
    while raw := file.readline(LONGEST_LINE + 1):
        number += 1
        if number == 1:
            raw = raw.removeprefix(BYTE_ORDER_MARK)
        if len(raw) > LONGEST_LINE and not raw.endswith(b"\n"):
            _pass_over(file)
            yield Refused(number, None, "line_too_long", f"longer than {LONGEST_LINE >> 20} MB")
        elif raw.strip():
            yield read_line(number, raw)


def _pass_over(file: BinaryIO) -> None:
    while (rest := file.readline(LONGEST_LINE)) and not rest.endswith(b"\n"):
        pass


def read_line(number: int, raw: bytes) -> Line:
    try:
        line = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        return Refused(number, None, "invalid_json", f"no JSON: {error.msg} (column {error.colno})")
    if not isinstance(line, dict):
        return Refused(number, None, "invalid_json", "no JSON object")
    custom_id, body = line.get("custom_id"), line.get("body")
    if not isinstance(custom_id, str) or not custom_id:
        return Refused(number, None, "missing_custom_id", "custom_id: a text that names the line is missing")
    if wrong := _wrong(line):
        return Refused(number, custom_id, *wrong)
    return Asked(number, custom_id, line["url"], orjson.dumps(body))


def _wrong(line: dict[str, Any]) -> tuple[str, str] | None:
    """Code and reason."""
    method, url, body = line.get("method"), line.get("url"), line.get("body")
    if method != "POST":
        return "invalid_method", f"method: {_shown(method)} is not POST"
    if url not in URLS:
        return "invalid_url", f"url: {_shown(url)} is none of {', '.join(URLS)}"
    if not isinstance(body, dict):
        return "invalid_body", "body: no JSON object"
    if body.get("stream"):
        return "stream_not_supported", "body.stream: an answer in a file isn't streamed; leave it out"
    return None


def _shown(value: Any) -> str:
    return str(orjson.dumps(value).decode())[:80]


def answer_line(custom_id: str, status: int, request_id: str, body: Any) -> bytes:
    response = {"status_code": status, "request_id": request_id, "body": body}
    return _line(custom_id, response, None)


def refused_line(line: Refused) -> bytes:
    return _line(line.custom_id, None, {"code": line.code, "message": line.why, "line": line.number})


def _line(custom_id: str | None, response: dict[str, Any] | None, error: dict[str, Any] | None) -> bytes:
    line = {"id": f"batch_req_{secrets.token_hex(12)}", "custom_id": custom_id, "response": response, "error": error}
    return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)


def answered_id(raw: bytes) -> str | None:
    """Of a line of OUT the custom_id, if it holds an answer; None for an error, which may be tried again. Raises
    ValueError if it is no such line."""
    line = orjson.loads(raw)
    if not isinstance(line, dict) or not {"custom_id", "response", "error"} <= line.keys():
        raise ValueError("it has no custom_id, response and error")
    response, custom_id = line["response"], line["custom_id"]
    if not isinstance(response, dict) or line["error"] is not None or not isinstance(custom_id, str):
        return None
    status = response.get("status_code")
    return custom_id if isinstance(status, int) and status < 400 else None
