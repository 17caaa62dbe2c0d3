"""What is read of a grammar in GBNF or EBNF, and where it is wrong."""

from __future__ import annotations

import pytest

from services.streamer.agents.gbnf.syntax import (
    LAST,
    MOST_CHARACTERS,
    MOST_NESTED,
    Chars,
    Choice,
    GrammarSyntaxError,
    Name,
    Node,
    Repeat,
    Sequence,
    read_rules,
)


def chars(*ranges: str) -> Chars:
    return Chars(tuple((ord(each[0]), ord(each[-1])) for each in ranges))


def root(text: str) -> Node:
    return read_rules("root ::= " + text)["root"]


@pytest.mark.parametrize(
    ("text", "node"),
    [
        ('"a"', chars("a")),
        ('"ab"', Sequence((chars("a"), chars("b")))),
        ('""', Sequence(())),
        ("", Sequence(())),
        ("[a-c]", chars("ac")),
        ("[cab]", chars("ac")),
        ("[a-cb-d]", chars("ad")),
        ("[-a]", chars("-", "a")),
        ("[a-]", chars("-", "a")),
        ("[^a]", Chars(((0, ord("a") - 1), (ord("b"), LAST)))),
        ("[^]", Chars(((0, LAST),))),
        (".", Chars(((0, LAST),))),
        (r'"\n\t\r\"\\"', Sequence(tuple(chars(each) for each in '\n\t\r"\\'))),
        (r'"\x41\u00e9\U0001F600"', Sequence((chars("A"), chars("é"), chars("😀")))),
        (r"[\]\[\-\^]", chars("-", "[", "]^")),
        ('"é"', chars("é")),
        ('"a" | "b" |', Choice((chars("a"), chars("b"), Sequence(())))),
        ('"a"* "b"+ "c"?', Sequence((Repeat(chars("a"), 0, None), Repeat(chars("b"), 1, None),
                                     Repeat(chars("c"), 0, 1)))),
        ('"a"{2}', Repeat(chars("a"), 2, 2)),
        ('"a"{2,}', Repeat(chars("a"), 2, None)),
        ('"a"{ 2 , 3 }', Repeat(chars("a"), 2, 3)),
        ('"a"{,3}', Repeat(chars("a"), 0, 3)),
        ('("a" "b")?', Repeat(Sequence((chars("a"), chars("b"))), 0, 1)),
        ('(\n"a" # one\n | # or\n "b")', Choice((chars("a"), chars("b")))),
        ('"#" # "x"', chars("#")),
        ("root root", Sequence((Name("root", 9), Name("root", 14)))),
    ],
)  # fmt: skip
def test_a_rule_is_read(text: str, node: Node) -> None:
    assert root(text) == node


def test_a_rule_ends_where_the_next_begins() -> None:
    rules = read_rules('# all\nroot ::= a-1\n  B_2 |\n  "x"\na-1::="y"\n\nB_2 ::= "z" # end')
    assert rules["root"] == Choice((Sequence((Name("a-1", 15), Name("B_2", 21))), chars("x")))
    assert (rules["a-1"], rules["B_2"]) == (chars("y"), chars("z"))


@pytest.mark.parametrize(
    ("text", "place", "problem"),
    [
        ('root ::= "a', "line 1, column 10", "no end"),
        ('root ::= "a"\nx ::= [a', "line 2, column 7", "no end"),
        ("root ::= [z-a]", "line 1, column 10", "before its begin"),
        ('root ::= ("a"\nx ::= "b"', "line 2, column 1", ") was expected"),
        ('root ::= "a")', "line 1, column 13", "name ::="),
        ('root ::= "a"\n\n  )', "line 3, column 3", "name ::="),
        (r'root ::= "\q"', "line 1, column 11", r"\q is not known"),
        (r'root ::= "\x4"', "line 1, column 11", "2 hexadecimal"),
        (r'root ::= "\UFFFFFFFF"', "line 1, column 11", "8 hexadecimal"),
        ('root ::= "a"{', "line 1, column 13", "{m}"),
        ('root ::= "a"{,}', "line 1, column 13", "{m}"),
        ('root ::= "a"{3,2}', "line 1, column 13", "in order"),
        ('root ::= "a"{99999999}', "line 1, column 13", "at most"),
        ('root ::= "a"*****', "line 1, column 17", "too many"),
        ('root ::= "a" other', "line 1, column 14", "no rule other"),
        ('start ::= "a"', "line 1, column 14", "no rule root"),
        ('root ::= "a"\nroot ::= "b"', "line 2, column 1", "twice"),
        ("root ::= <think>", "line 1, column 10", "tokens"),
        ("root ::= !<[5]>", "line 1, column 10", "tokens"),
        ("root ::= @", "line 1, column 10", "'@'"),
        ("root ::= " + "(" * (MOST_NESTED + 1), "line 1, column", "nested"),
        ("root ::= " + " " * MOST_CHARACTERS, "", "longer than"),
        ("nothing", "line 1, column 1", "name ::="),
    ],
)
def test_what_is_wrong_is_told_with_its_place(text: str, place: str, problem: str) -> None:
    with pytest.raises(GrammarSyntaxError) as caught:
        read_rules(text)
    assert str(caught.value).startswith(place) and problem in str(caught.value)
