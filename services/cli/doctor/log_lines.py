"""Lines of our logs without what users or other programs have put into them.

    a line of the log      its time, level, process and logger; the words that stand in our source; known fields
    a traceback            files, lines and functions, and the type of the error
    anything else          its length

What a message was filled in with is kept if it's a number or a name that we give, and in messages that tell of this
machine alone. Prompts, answers and grammars may be in whatever else an error quotes.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from services.api.methods import METHODS
from specmesh import rooms

LINE = re.compile(r"(?P<time>\d{4}-\d\d-\d\dT[\d:.+]+) (?P<level>[A-Z]+) (?P<process>[\w./-]+) (?P<logger>[\w.]+): "
                  r"(?P<said>.*)")  # fmt: skip
HEAD = ("time", "level", "process", "logger", "message")  # of a line of JSON
FIELD = re.compile(r' (\w+)=("(?:[^"\\]|\\.)*"|\S+)')
# The first argument of a call of `log`, as far as it is text.
CALL = re.compile(r'\blog\.(?:debug|info|warning|error|exception|critical)\(\s*((?:"(?:[^"\\]|\\.)*"|[^",()])+)')
TEXT = re.compile(r'"((?:[^"\\]|\\.)*)"')
ROUTE = re.compile(r'\bRoute\("([A-Z]+)", "(/[^"]*)"')
FILLED_IN = re.compile(r"%[-\d.]*[a-z]|\{[^}]*\}")
# Shorter ones would fit anything.
LEAST_LETTERS = 5
OF_THIS_MACHINE = ("cannot run: %s", "the model can't be loaded: %s", "not ready: %s", "no new epoch: %s")
QUOTED = re.compile(r""""[^"]*"|'[^']*'|`[^`]*`""")
OURS = re.compile(r"-?\d[\d.]*(?:e[-+]\d+)?|(?:streamer|tokenizer|proposer|worker|prefill|decode|directory)(?:-\d+)?"
                  r"|req-[0-9a-f]{16}")  # fmt: skip
PLACE = re.compile(r'  File "([^"]*)", line (\d+), in ([\w<>.]+)')
# By the ends of their names: the line may as well be a part of what an error says.
ERROR = re.compile(r"((?:\w+\.)*[A-Z]\w*(?:Error|Exception|Failed|Busy|Lost|Refuse|Malformed|Damaged))(?::.*)?")
CUT = "…"


def without_text(lines: Iterable[str]) -> Iterator[str]:
    failing = False
    for line in lines:
        if found := _record(line):
            failing = False
            yield _told(found)
            yield from _traceback(found["exception"].splitlines())
            continue
        if line.startswith("Traceback "):
            failing = True
        told = _of_traceback(line) if failing else ""
        failing = failing and line[:1] in ("T", " ")
        if told is not None:
            yield told or f"({len(line)} characters)"


def _record(line: str) -> Mapping[str, str] | None:
    """A line of either form, with all that comes after the logger's name as `said`."""
    exception = ""
    if line.startswith("{"):
        try:
            found = json.loads(line)
            head = [str(found.pop(name)) for name in HEAD]
        except (ValueError, KeyError):
            return None
        exception = str(found.pop("exception", ""))
        said = " ".join([head[-1], *(f"{name}={json.dumps(value)}" for name, value in found.items())])
        line = f"{head[0]} {head[1].upper()} {head[2]} {head[3]}: {said}".replace("\n", " ")
    match = LINE.fullmatch(line)
    return {**match.groupdict(), "exception": exception} if match else None


def _told(found: Mapping[str, str]) -> str:
    word, _, _ = found["said"].partition(" ")
    if found["logger"].startswith("specmesh.") and word in ("request", "throughput"):
        said = word + "".join(f" {name}={value}" for name, value in _fields(found["said"]))
    else:
        said = _message(found["said"])
    return f"{found['time']} {found['level']} {found['process']} {found['logger']}: {said}"


# Fields ---------------------------------------------------------------------------------------------------


def _fields(said: str) -> Iterator[tuple[str, str]]:
    for name, written in FIELD.findall(said):
        value = written.strip('"')
        kept = CHECKS.get(name, _is_figure)(value)
        yield name, written if kept else CUT


def _is_figure(value: str) -> bool:
    return OURS.fullmatch(value) is not None or value in ("True", "False", "true", "false", "null")


def _is_route(value: str) -> bool:
    return value in _routes()


CHECKS: Mapping[str, Callable[[str], bool]] = {
    "route": _is_route,
    "method": METHODS.__contains__,
    # Of a table, not of a message.
    "error": lambda value: re.fullmatch("[a-z_]{1,40}", value) is not None,
}


@functools.cache
def _routes() -> frozenset[str]:
    """As they stand in the table of the HTTP API, which is a role's: commands import none."""
    table = (rooms.FOLDER / "services" / "streamer" / "door" / "http.py").read_text("utf-8")
    return frozenset(f"{verb} {path}" for verb, path in ROUTE.findall(table))


# Messages -------------------------------------------------------------------------------------------------


def _message(said: str) -> str:
    for pattern, parts in _known_messages():
        if found := pattern.fullmatch(said):
            whole = "%s".join(parts) in OF_THIS_MACHINE
            filled = [QUOTED.sub(CUT, each) if whole or OURS.fullmatch(each) else CUT for each in found.groups()]
            return "".join(part + more for part, more in zip(parts, [*filled, ""], strict=True))
    return f"({len(said)} characters)"


@functools.cache
def _known_messages() -> list[tuple[re.Pattern[str], list[str]]]:
    """With their constant parts; the one with most of them is first."""
    texts: set[str] = set()
    for room in ("services", "mesh", "models", "kernels"):
        for file in (rooms.FOLDER / room).rglob("*.py"):
            for argument in CALL.findall(file.read_text("utf-8")):
                # Of `"ready" if now else "not ready: %s"` either; what stands side by side is one text.
                for one in re.split(r"\bif\b[^\"]*\belse\b", argument):
                    texts.add("".join(TEXT.findall(one)))
    parted = [FILLED_IN.split(text.replace("%%", "%").replace('\\"', '"')) for text in texts]
    parted = [parts for parts in parted if len(re.findall("[a-zA-Z]", "".join(parts))) >= LEAST_LETTERS]
    parted.sort(key=lambda parts: (-len("".join(parts)), parts))
    return [(re.compile("(.*)".join(map(re.escape, parts))), parts) for parts in parted]


# Tracebacks -----------------------------------------------------------------------------------------------


def _traceback(lines: Iterable[str]) -> Iterator[str]:
    yield from (told for line in lines if (told := _of_traceback(line)))


def _of_traceback(line: str) -> str | None:
    """None: a line of source, which is known by its place. Empty: it may be anything."""
    if line == "Traceback (most recent call last):":
        return line
    if place := PLACE.fullmatch(line):
        return line if place[1].endswith(".py") or place[1].startswith("<") else ""
    if line.startswith(" "):
        return None
    error = ERROR.fullmatch(line)
    return error[1] if error else ""
