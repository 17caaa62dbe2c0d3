"""One row of a dataclass says what a request may send, and everything else follows from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from services.api.parameters import SEEDS, Parameter, boolean, integer, number, other, parameters, text
from services.streamer.openai.errors import ApiError
from services.streamer.openai.fields import BodyFields


@dataclass(frozen=True)
class Wish:
    heat: float = number(0.5, "How hot", 0, 2, above=True)
    count: int = integer(3, "How many; -1: none", -1, 9, floor=0)
    seed: int | None = integer(None, "Any", *SEEDS)
    loud: bool = boolean("Whether")
    words: str = text("What", 5, name="said")
    ids: list[int] = other(list, {"type": "array", "description": "Which"})
    made: int = 7


ROWS = parameters(Wish)


def read(**body: Any) -> Wish:
    simple = {name: row for name, row in ROWS.items() if row.kind != "other"}
    return Wish(**BodyFields(body).read_all(simple))


def test_a_field_without_a_row_is_none_of_the_apis() -> None:
    assert list(ROWS) == ["heat", "count", "seed", "loud", "said", "ids"]
    assert ROWS["said"].attribute == "words"


def test_what_is_not_given_is_the_dataclasss_default_and_null_is_not_given() -> None:
    assert read() == Wish() == read(heat=None, count=None, seed=None, loud=None, said=None)


def test_what_is_given_is_taken_by_the_requests_name() -> None:
    assert read(heat=2, count=-1, seed=-5, loud=True, said="x") == Wish(2.0, 0, -5, True, "x")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("heat", 0, "must be greater than 0 and at most 2"), ("heat", 2.5, "not 2.5"), ("heat", True, "a number"),
        ("count", -2, "must be in -1..9, not -2"), ("count", 10, "not 10"), ("count", 1.5, "an integer"),
        ("loud", 1, "true or false"), ("said", "xxxxxx", "longer than 5"), ("said", 1, "a string"),
    ],
)  # fmt: skip
def test_what_its_row_does_not_take_is_refused_by_name(name: str, value: Any, said: str) -> None:
    with pytest.raises(ApiError, match=said) as caught:
        read(**{name: value})
    assert caught.value.param == name


def test_a_row_is_its_schema() -> None:
    assert {name: row.described() for name, row in ROWS.items()} == {
        "heat": {"type": "number", "minimum": 0, "maximum": 2, "description": "How hot", "default": 0.5},
        "count": {"type": "integer", "description": "How many; -1: none", "minimum": -1, "maximum": 9},
        "seed": {"type": "integer", "description": "Any"},
        "loud": {"type": "boolean", "default": False, "description": "Whether"},
        "said": {"type": "string", "maxLength": 5, "description": "What"},
        "ids": {"type": "array", "description": "Which"},
    }


def test_a_row_is_told_to_people() -> None:
    assert {name: row.accepted for name, row in ROWS.items()} == {
        "heat": "number 0 to 2", "count": "integer -1 to 9", "seed": "integer", "loud": "boolean",
        "said": "text, at most 5 characters", "ids": "",
    }  # fmt: skip


@pytest.mark.parametrize(("value", "taken"), [(0, False), (1, True), (2, True), (float("nan"), False), (True, False)])
def test_a_number_of_a_models_file_is_taken_as_one_of_a_request(value: Any, taken: bool) -> None:
    row: Parameter = ROWS["heat"]
    assert row.takes(value) is taken
