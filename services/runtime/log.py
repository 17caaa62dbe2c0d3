"""The log of a process on stderr: one line an event, as text or as a JSON object.

    log.info("request", extra=fields(status=200))   ─▶  ... specmesh.requests: request status=200
                                                    ─▶  {..., "message": "request", "status": 200}

Values of fields may come from outside: they are escaped, so that none can begin a line of its own. Colours only where
stderr is a terminal. Knows nothing of what is logged.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TextIO

FIELDS = "specmesh_fields"
# Of one field, in characters.
LONGEST_VALUE = 256
_PLAIN = re.compile(r"[A-Za-z0-9._:/+@%,-]+")
_LEVEL = re.compile(r"(?<= )(WARNING|ERROR|CRITICAL)(?= )")
_COLOURS = {"WARNING": "\x1b[33m", "ERROR": "\x1b[31m", "CRITICAL": "\x1b[31m"}
_END = "\x1b[0m"


def fields(**values: Any) -> dict[str, Any]:
    """For `extra`: what a program that reads the log will look for. None is left out."""
    return {FIELDS: {name: value for name, value in values.items() if value is not None}}


def configure_log(level: str, who: str, form: str = "text") -> None:
    """`form`: text or json."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(who) if form == "json" else TextLines(who, colours=has_colours(sys.stderr)))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def has_colours(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def painted(line: str) -> str:
    """A line of text with its level in colour, if that is one to notice."""
    return _LEVEL.sub(lambda found: _COLOURS[found[0]] + found[0] + _END, line, count=1)


class TextLines(logging.Formatter):
    def __init__(self, who: str, *, colours: bool = False) -> None:
        super().__init__(f"%(asctime)s.%(msecs)03d %(levelname)s {who} %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S")
        self._colours = colours

    def formatMessage(self, record: logging.LogRecord) -> str:
        line = super().formatMessage(record)
        line += "".join(f" {name}={_value(value)}" for name, value in _fields_of(record).items())
        return painted(line) if self._colours else line


class JsonLines(logging.Formatter):
    def __init__(self, who: str) -> None:
        super().__init__()
        self._who = who

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "process": self._who,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value[:LONGEST_VALUE] if isinstance(value, str) else value
                 for name, value in _fields_of(record).items()}  # fmt: skip
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        # ASCII only: no line separator of Unicode either.
        return json.dumps(line, default=str)


def _fields_of(record: logging.LogRecord) -> Mapping[str, Any]:
    found: Mapping[str, Any] = getattr(record, FIELDS, {})
    return found


def _value(value: Any) -> str:
    text = value[:LONGEST_VALUE] if isinstance(value, str) else str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)
