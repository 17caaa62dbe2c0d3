from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator

import pytest

from services.runtime.log import configure_log, fields, painted


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def written(monkeypatch: pytest.MonkeyPatch, form: str, stream: io.StringIO, level: int = logging.WARNING) -> str:
    monkeypatch.setattr(sys, "stderr", stream)
    configure_log("info", "worker/w-1", form)
    logging.getLogger("specmesh.x").log(level, "it is %s", "full", extra=fields(tokens=3, route="GET /a b", none=None))
    logging.getLogger("specmesh.x").debug("not at this level")
    return stream.getvalue()


def test_text_is_a_line_with_its_fields_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = written(monkeypatch, "text", io.StringIO()).splitlines()
    assert line.endswith(' WARNING worker/w-1 specmesh.x: it is full tokens=3 route="GET /a b"')


def test_json_is_an_object_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = written(monkeypatch, "json", io.StringIO()).splitlines()
    told = json.loads(line)
    assert told.pop("time").endswith("+00:00")
    assert told == {
        "level": "warning", "process": "worker/w-1", "logger": "specmesh.x", "message": "it is full",
        "tokens": 3, "route": "GET /a b",
    }  # fmt: skip


def test_an_exception_is_part_of_the_object(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    configure_log("info", "w", "json")
    try:
        raise KeyError("a\nb")
    except KeyError:
        logging.getLogger("x").exception("failed")
    (line,) = stream.getvalue().splitlines()
    assert "Traceback" in json.loads(line)["exception"]


def test_colours_are_for_terminals_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert "\x1b[33mWARNING\x1b[0m" in written(monkeypatch, "text", Terminal())
    assert "\x1b" not in written(monkeypatch, "text", Terminal(), logging.INFO)
    assert "\x1b" not in written(monkeypatch, "text", io.StringIO())
    assert "\x1b" not in written(monkeypatch, "json", Terminal())
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in written(monkeypatch, "text", Terminal())


def test_only_the_level_is_painted() -> None:
    line = "2026-01-01T00:00:00.000 ERROR w/1 x: an ERROR is here"
    assert painted(line) == line.replace("ERROR", "\x1b[31mERROR\x1b[0m", 1)
