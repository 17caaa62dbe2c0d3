"""An answer serves as many steps as it matches, and the next one is joined to it."""

from __future__ import annotations

from specmesh.vllm.continuation import NOTHING, Continuation, Drafted


def answer(length: int, *tokens: int) -> Drafted:
    return Drafted(1, length, [*tokens], [10 * token for token in tokens])


def expected(continuation: Continuation) -> list[int]:
    at = continuation.at
    assert continuation.cells[at:] == [10 * token for token in continuation.tokens[at:]]
    return continuation.tokens[at:]


def asked(start: int, length: int, *tokens: int) -> Continuation:
    continuation = Continuation(start)
    continuation.tokens, continuation.cells = [*tokens], [10 * token for token in tokens]
    continuation.asked = length
    return continuation


def test_what_matches_is_used_up_and_the_rest_stays() -> None:
    continuation = asked(10, NOTHING, 1, 2, 3, 4)
    assert continuation.grow([1, 2]) == (2, False)
    assert (continuation.start, expected(continuation), continuation.left) == (12, [3, 4], 2)
    assert continuation.grow([3, 4, 5]) == (2, False) and expected(continuation) == []


def test_a_wrong_token_ends_it_and_the_question_that_built_on_it() -> None:
    continuation = asked(10, 14, 1, 2, 3, 4)
    assert continuation.grow([1, 9]) == (1, True)
    assert expected(continuation) == [] and not continuation.join(answer(14, 5), [])


def test_an_answer_behind_what_is_expected_is_joined_to_it() -> None:
    continuation = asked(10, 13, 1, 2, 3)
    assert continuation.join(answer(13, 4, 5), [])
    assert expected(continuation) == [1, 2, 3, 4, 5]


def test_so_it_is_when_some_of_that_has_come_true_meanwhile() -> None:
    continuation = asked(10, 13, 1, 2, 3)
    continuation.grow([1, 2])
    assert continuation.join(answer(13, 4, 5), []) and expected(continuation) == [3, 4, 5]


def test_an_answer_that_comes_when_the_text_has_gone_on_serves_if_it_was_right() -> None:
    for rest, left in (([3, 4], [5]), ([3, 9], [])):
        continuation = asked(10, 12, 1, 2)
        continuation.grow([1, 2, *rest])
        assert continuation.join(answer(12, 3, 4, 5), rest) == bool(left)
        assert expected(continuation) == left


def test_an_answer_to_another_question_is_of_no_use() -> None:
    continuation = asked(10, 10)
    assert not continuation.join(answer(9, 1), [7]) and expected(continuation) == []
