from __future__ import annotations

from typing import Any

import orjson
import pytest

from services.streamer.agents.reader import Said, SaidCall
from services.streamer.messages.answer import MARKS, blocks, tool_input


def read(arguments: str) -> Any:
    return orjson.loads(orjson.dumps(tool_input(arguments)))


def test_blocks_stand_in_the_order_in_which_models_write_them() -> None:
    said = Said("Hm.", "On it.", [SaidCall(0, "c1", "weather", '{"city": "Bonn"}'), SaidCall(1, "c2", "time", "{}")])
    assert orjson.loads(orjson.dumps(blocks(said))) == [
        {"type": "thinking", "thinking": "Hm.", "signature": ""},
        {"type": "text", "text": "On it."},
        {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Bonn"}},
        {"type": "tool_use", "id": "c2", "name": "time", "input": {}},
    ]
    assert blocks(Said()) == []


@pytest.mark.parametrize("arguments", ["{}", '{"a": [1, {"b": null}]}', ' {"a": "}", "b": "\\"{,"}\n'])
def test_arguments_are_the_object_that_they_are(arguments: str) -> None:
    assert read(arguments) == orjson.loads(arguments)


def test_a_number_stays_as_the_model_wrote_it() -> None:
    assert b"1234567890123456789012" in orjson.dumps(tool_input('{"a": 1234567890123456789012}'))


WHOLE = '{"a": "x, {", "b": [1, {"c": true}, "\\"]"], "d": {"e": null}}'
# Up to a place in it, what is there for sure.
KNOWN = {
    "": {}, "{": {}, '{"a': {}, '{"a": "x, ': {}, '{"a": "x, {"': {"a": "x, {"}, '{"a": "x, {", "b': {"a": "x, {"},
    '{"a": "x, {", "b": [1': {"a": "x, {", "b": [1]},
    '{"a": "x, {", "b": [1, {"c": tr': {"a": "x, {", "b": [1, {}]},
    '{"a": "x, {", "b": [1, {"c": true}, "\\': {"a": "x, {", "b": [1, {"c": True}]},
}  # fmt: skip


@pytest.mark.parametrize(("beginning", "known"), KNOWN.items())
def test_of_arguments_that_were_cut_off_what_is_whole_is_kept(beginning: str, known: dict[str, Any]) -> None:
    assert WHOLE.startswith(beginning) and read(beginning) == known


def test_every_beginning_of_arguments_gives_an_object_that_grows() -> None:
    last = 0
    for place in range(len(WHOLE) + 1):
        found = read(WHOLE[:place])
        assert isinstance(found, dict) and len(orjson.dumps(found)) >= last
        last = len(orjson.dumps(found))
    assert found == orjson.loads(WHOLE)


@pytest.mark.parametrize("wrong", ["5", "[1]", "hello", '{"a": 1,, "b": }', '"', "{" * 3000, "}" * 10, '{"a": NaN}'])
def test_what_is_no_object_is_an_empty_one(wrong: str) -> None:
    assert read(wrong) == {}


def test_half_a_character_in_an_escape_reaches_the_client_as_one() -> None:
    assert orjson.dumps(tool_input('{"a": "\\ud83e"}')) == b'{"a": "\\ud83e"}'


def test_a_string_that_never_ends_is_searched_once() -> None:
    text = '{"a": "' + '\\"{,' * 100_000
    assert len(MARKS.findall(text)) == len(['{', '"a"', "the string"])
    assert read(text) == {}
