"""An answer serves as many steps as it matches, and the next one is joined to it."""

from __future__ import annotations

from specmesh.vllm.continuation import NOTHING, Continuation, Guesses


def guesses(*tokens: int) -> Guesses:
    return Guesses([*tokens], [7] * len(tokens))


def tokens(continuation: Continuation) -> list[int]:
    return continuation.expected.tokens


def asked(start: int, length: int, *expected: int) -> Continuation:
    continuation = Continuation(start)
    continuation.expected, continuation.asked = guesses(*expected), length
    return continuation


def test_what_matches_is_used_up_and_the_rest_stays() -> None:
    continuation = asked(10, NOTHING, 1, 2, 3, 4)
    assert continuation.grow([1, 2])[1:] == (2, False)
    assert (continuation.start, tokens(continuation)) == (12, [3, 4])
    assert continuation.grow([3, 4, 5])[1:] == (2, False) and tokens(continuation) == []


def test_a_wrong_token_ends_it_and_the_question_that_built_on_it() -> None:
    continuation = asked(10, 14, 1, 2, 3, 4)
    outcome = continuation.grow([1, 9])
    assert (outcome.right, outcome.wrong) == (1, True)
    assert tokens(continuation) == [] and not continuation.join(14, guesses(5), [])


def test_an_answer_behind_what_is_expected_is_joined_to_it() -> None:
    continuation = asked(10, 12, 1, 2)
    assert continuation.join(12, guesses(3, 4), [])
    assert tokens(continuation) == [1, 2, 3, 4]


def test_an_answer_that_comes_when_the_text_has_gone_on_serves_if_it_was_right() -> None:
    for rest, expected in ((([3, 4]), [5]), ([3, 9], [])):
        continuation = asked(10, 12, 1, 2)
        continuation.grow([1, 2, *rest])
        assert continuation.join(12, guesses(3, 4, 5), rest) == bool(expected)
        assert tokens(continuation) == expected


def test_an_answer_to_another_question_is_of_no_use() -> None:
    continuation = asked(10, 10)
    assert not continuation.join(9, guesses(1), [7]) and tokens(continuation) == []
