"""Command lines and scripts of pages, read as a shell would."""

from __future__ import annotations

import pytest

from services.cli.shell_words import expanded, statements


def words(text: str, **environment: str) -> list[tuple[str, ...]]:
    return [each.words for each in statements(text, environment)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a --b 'c d' \\\n  --e", [("a", "--b", "c d", "--e")]),
        ("a; b && c | d &\ne", [("a",), ("b",), ("c",), ("d",), ("e",)]),
        ("a '--b=&' \"c;d\"", [("a", "--b=&", "c;d")]),
        ("# a comment\na # another\n\nb#c", [("a",), ("b#c",)]),
        ("a > log.txt 2>err.txt b >> c", [("a", "b")]),
        ("a > b 2>&1 &", [("a",), ("1",)]),
        ("$ bash run.sh", [("bash", "run.sh")]),
        ("a ''", [("a", "")]),
        ("", []),
    ],
)
def test_a_text_is_statements_of_words(text: str, found: list[tuple[str, ...]]) -> None:
    assert words(text) == found


def test_variables_are_of_the_script_or_of_one_command() -> None:
    first, second = statements("export A=1 B=2\nC=3\nD=4 x $A ${C}\ny $D")
    assert first.words == ("x", "1", "3") and first.environment == {"A": "1", "B": "2", "C": "3", "D": "4"}
    assert second.words == ("y", "$D") and "D" not in second.environment


def test_a_variable_has_its_value_or_that_behind_it_or_stays() -> None:
    assert words("a ${B:-c} ${D:-e} $F", B="b") == [("a", "b", "e", "$F")]
    assert expanded('${A:-${B:-9965}}', {}) == "9965" and expanded("${A:-${B:-9965}}", {"B": "1"}) == "1"


def test_a_quote_that_is_not_closed_is_said() -> None:
    with pytest.raises(ValueError, match="quotation"):
        words("a 'b")
