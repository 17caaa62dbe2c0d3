"""The table of status codes in docs/use/http.md against the code: each error that is made there has its row."""

from __future__ import annotations

import ast
import re

from fences import ROOT

from services.api.settings import ROLES

PAGE = (ROOT / "docs" / "use" / "http.md").read_text()
CODE = re.compile(r"`([a-z_]+)`")
# Their codes are words of other processes, and have rows of their own.
REASONS = {(400, "invalid"), (400, "no_template"), (409, "no_demo"), (429, "overloaded"), (500, "engine"),
           (500, "internal"), (503, "unavailable"), (503, "no_worker"), (503, "no_tokenizer"), (503, "no_proposer"),
           (503, "peer_lost"), (503, "busy"), (503, "deadline"), (504, "deadline")}  # fmt: skip


def told() -> set[tuple[int, str]]:
    (table,) = re.findall(r"<!-- codes -->\n(.*?)<!-- end -->", PAGE, re.DOTALL)
    rows = [line.strip("|").split(" | ") for line in table.strip().splitlines()[2:]]
    return {(int(status), code) for status, codes, _ in rows for code in CODE.findall(codes)}


def constant(node: ast.expr | None) -> object:
    return node.value if isinstance(node, ast.Constant) else None


def made() -> set[tuple[int, str]]:
    """Of the calls that make an error with a status and a code that are written there."""
    found = set()
    for file in (ROOT / "services" / "streamer").rglob("*.py"):
        for call in ast.walk(ast.parse(file.read_text())):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or not call.args:
                continue
            named = {keyword.arg: keyword.value for keyword in call.keywords}
            if call.func.id == "ApiError":
                status, code = constant(call.args[0]), constant(named.get("code"))
            elif call.func.id == "bad_value":
                status, code = 400, constant(call.args[2] if len(call.args) > 2 else named.get("code"))
            else:
                continue
            if isinstance(status, int) and isinstance(code, str):
                found.add((status, code))
    return found


def test_the_table_has_every_status_with_its_codes_and_no_other() -> None:
    there = made()
    assert len(there) > 25 and not there & REASONS
    # The default of bad_value.
    assert told() == there | REASONS | {(400, "invalid_value")}


def test_the_words_of_other_processes_are_in_the_code() -> None:
    text = "\n".join(
        file.read_text()
        for folder in ("services", "mesh")
        for file in (ROOT / folder).rglob("*.py")
        if "streamer" not in file.parts
    )
    for _, code in REASONS:
        assert f'"{code}"' in text or code.removeprefix("no_") in ROLES, code
