"""Grammars in GBNF and EBNF, through the library: they allow the same texts as by their own rules."""

from __future__ import annotations

import gc
import itertools
import random
import time
from contextlib import suppress

import pytest
from grammar_walk import Walk

from services.api.grammars import GrammarError, started
from services.streamer.agents.gbnf.lark import is_gbnf, lark_of
from services.streamer.agents.gbnf.syntax import Chars, Choice, GrammarSyntaxError, Name, Node, Sequence, read_rules
from services.streamer.agents.grammars import lark


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Walk:
    return Walk(tmp_path_factory.mktemp("tokenizer"), ())


ARITHMETIC = r"""
root  ::= (sum "=" blank term "\n")+   # one a line
sum   ::= term ([-+*/] term)*
term  ::= name | number | "(" blank sum ")" blank
name ::= [a-z] [a-z0-9_]* blank
number ::= [0-9]+ blank
blank ::= [ \t\n]*
"""
JSON = r"""
root   ::= object
value  ::= object | list | string | number | ("true" | "false" | "null") blank
object ::= "{" blank ( pair ("," blank pair)* )? "}" blank
pair   ::= string ":" blank value
list   ::= "[" blank ( value ("," blank value)* )? "]" blank
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt/] | "u" [0-9a-fA-F]{4}) )* "\"" blank
number ::= "-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]+)? ([eE] [-+]? [0-9]+)? blank
blank  ::= | " " | "\n" [ \t]{0,20}
"""
CHESS = """
root ::= line line{0,2}
line ::= [1-9] [0-9]? ". " move " " move "\\n"
move ::= (pawn | piece | castle) [+#]?
piece ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
pawn ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
castle ::= "O-O" "-O"?
"""
LIST = 'root ::= ("- " item)+\nitem ::= [^\\n]+ "\\n"'


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        (ARITHMETIC, ["a=1\n", "a1 +22*( b_ -3 ) = c\n", "1\n\n+2 = 3 \n \n4=4\n\n"],
         ["a=1", "1a=2\n", "(a=1\n", "\n", "1+ 2=3\n"]),
        (JSON, ["{}", '{"a": [1, -2.5e+3, "\\u00e9\\n", true, {"b": {}}], "": null}', '{ "a":\n\t0}\n'],
         ["[]", "{", '{"a": 01}', '{"a": "\\x"}', '{"a"  : 1}', '{"a": 1,}']),
        (CHESS, ["1. e4 e5\n", "1. e4 e5\n2. Nf3 O-O-O+\n12. axb8=Q# Rae1\n"], ["1. e4\n", "1. e9 e5\n", "0. e4 e5\n"]),
        (LIST, ["- a\n", "- a b\n- ünd\n"], ["- \n", "a\n", "- a"]),
        ('root ::= "a" root "b" | "ab" "c" | "a"', ["a", "abc", "aab", "aabcb"], ["ab", "aabc", "abcb"]),
        ("root ::= [a-z]* [b-d]+ x\nx ::= root? | [0-9]", ["b", "zb", "zb1", "zbzd1"], ["z", "1", ""]),
        ('root ::= "x" root | "xy" "z" | ""', ["", "xx", "xxyz", "xyz"], ["xy", "xyx"]),
        ('root ::= "1" tail | "10" tail\ntail ::= "0" tail "!" | "0"', ["10", "100", "100!"], ["1", "1000"]),
        (r'root ::= "\x2f/\\" [/\]\\^-]{2}', ["//\\/]", "//\\\\^"], ["//\\a]"]),
    ],
)  # fmt: skip
def test_a_known_grammar_allows_what_it_says(walk: Walk, grammar: str, good: list[str], bad: list[str]) -> None:
    assert is_gbnf(grammar)
    compiled = lark(lark_of(grammar))
    assert [text for text in good if not walk.allows(compiled, text)] == []
    assert [text for text in bad if walk.allows(compiled, text)] == []


def a_part(draw: random.Random, depth: int, names: list[str]) -> str:
    kind = draw.random()
    if depth == 0 or kind < 0.35:
        return draw.choice(['"a"', '"b"', '"ab"', '"c"', "[ab]", "[a-c]", "[^a]", '"abc"', '""'])
    if kind < 0.5:
        return draw.choice(names)
    parts = [a_part(draw, depth - 1, names) for _ in range(draw.randint(2, 3))]
    if kind < 0.7:
        return " ".join(parts)
    return f"({' | '.join(parts)})" if kind < 0.85 else f"({parts[0]}){draw.choice(['*', '+', '?', '{2}', '{1,2}'])}"


def texts_of(rules: dict[str, Node], longest: int) -> set[str]:
    """Of the letters a, b and c, by the rules themselves."""
    known: dict[str, set[str]] = {name: set() for name in rules}

    def joined(ones: set[str], others: set[str]) -> set[str]:
        return {one + other for one in ones for other in others if len(one) + len(other) <= longest}

    def texts(node: Node) -> set[str]:
        if isinstance(node, Chars):
            return {each for each in "abc" if any(low <= ord(each) <= high for low, high in node.ranges)}
        if isinstance(node, Name):
            return known[node.name]
        if isinstance(node, Choice):
            return set[str]().union(*map(texts, node.options))
        whole = {""}
        if isinstance(node, Sequence):
            for each in node.items:
                whole = joined(whole, texts(each))
            return whole
        item, found = texts(node.item), set[str]()
        for count in range((node.least + longest if node.most is None else node.most) + 1):
            found |= whole if count >= node.least else set()
            whole = joined(whole, item)
        return found

    while True:
        now = {name: texts(node) for name, node in rules.items()}
        if now == known:
            return known["root"]
        known = now


@pytest.mark.parametrize("seed", range(4))
def test_any_grammar_allows_exactly_the_texts_of_its_rules(walk: Walk, seed: int) -> None:
    draw = random.Random(seed)
    ids = {each: walk.ids(each)[0] for each in "abc"}
    compared = 0
    for _ in range(12):
        names = ["root", "x", "y"][: draw.randint(1, 3)]
        grammar = "\n".join(f"{name} ::= {a_part(draw, 3, names)}" for name in names)
        wanted = texts_of(read_rules(grammar), 4)
        try:
            matcher = started(walk.vocabulary, lark(lark_of(grammar)))
        except GrammarError as error:
            assert not wanted or "Too many items" in str(error), grammar
            continue
        compared += 1
        found = set()
        for length in range(5):
            for letters in itertools.product("abc", repeat=length):
                one = matcher.deep_copy()
                if all(one.consume_token(ids[each]) for each in letters) and one.is_accepting():
                    found.add("".join(letters))
        assert found == wanted, grammar
    assert compared > 6


@pytest.mark.parametrize(
    "grammar",
    [
        'root ::= "' + "a" * 30000 + '" root?',
        "root ::= r0\n" + "\n".join(f'r{i} ::= "x" r{i + 1} "y"' for i in range(1300)) + '\nr1300 ::= "a" root',
        "root ::= r0\n" + "\n".join(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(1300)) + '\nr1300 ::= "a"',
        "root ::= " + " | ".join(f'"a{i}" root' for i in range(2500)),
        "root ::= root (" + " | ".join(["[a-z]*"] * 3500) + ")",
        "root ::= " + "(" * 30 + '"a"*' + ")*" * 30 + " root?",
        "root ::= root? (" + " | ".join(f"[{chr(300 + i)}-{chr(900 + i)}]" for i in range(4000)) + ")",
        'root ::= ("a"{1000000}){1000000}',
        "\n".join(f"{name} ::= " + "(" * 30 + f"[a-z] {after}" + ")?" * 30
                  for name, after in [("root", "r0"), *((f"r{i}", f"r{i + 1}") for i in range(50)), ("r50", '"a"')]),
    ],
    ids=["long", "nested", "doubled", "wide", "ambiguous", "stars", "classes", "counted", "deep"],
)  # fmt: skip
def test_a_grammar_costs_little_or_is_refused(grammar: str) -> None:
    """The streamer answers everybody else in the same thread."""
    # What other tests have left would be searched, too.
    gc.freeze()
    begin = time.thread_time()
    with suppress(GrammarSyntaxError):
        lark_of(grammar)
    spent = time.thread_time() - begin
    gc.unfreeze()
    assert spent < 1.0


def test_lark_is_not_taken_for_gbnf() -> None:
    assert not is_gbnf('start: "a ::= b" | x\nx: "y"')
    assert is_gbnf('# a comment\n\nroot ::= "a"') and is_gbnf('root::="a"')
