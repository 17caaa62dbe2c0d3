"""Rows are followed by their tokens, whatever the batch does."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from batch import Batch

from specmesh.vllm.rows import COMPARED, RESTS, Rows, misplaced

REQUESTS = 2500


def as_bytes(tokens: list[int]) -> bytes:
    return np.array(tokens, np.int32).tobytes()


def arrays(*rows: list[int], width: int = 16) -> tuple[np.ndarray, np.ndarray]:
    tokens = np.full((len(rows), width), 99, np.int32)
    for row, text in enumerate(rows):
        tokens[row, : len(text)] = text
    return np.array([len(text) for text in rows]), tokens


@pytest.mark.parametrize("seed", [1, 2])
def test_requests_in_random_order_are_followed_without_a_mistake(seed: int) -> None:
    """Each row has its request's tokens, and no text begins that was known: of equal ones as many as there are."""
    batch, rows = Batch(seed), Rows()
    # By text: its tokens, and the last call that had it.
    known: dict[int, tuple[bytes, int]] = {}
    ended, begun, call = [], 0, 0
    while batch.started < REQUESTS:
        call += 1
        sampled = batch.step()
        step = rows.follow(sampled, batch.lengths, batch.tokens)
        assert misplaced(step, batch.lengths, batch.tokens) == []
        wanted = Counter(as_bytes(each.tokens[: -len(new)]) for each, new in batch.rows_of(sampled) if new)
        held = Counter(raw for raw, _ in known.values())
        assert step.began == sum((wanted - held).values())
        begun += step.began
        for (request, new), text in zip(batch.rows_of(sampled), step.texts, strict=True):
            assert (text is None) == (not new)
            if text is not None:
                assert text.tokens() == request.tokens
                assert known.get(text.text_id, (b"", 0))[1] < call, "two rows have one text"
                known[text.text_id] = bytes(text.raw), call
        for text in step.ended:
            raw, seen = known.pop(text.text_id)
            assert bytes(text.raw) == raw and call - seen == RESTS
        ended += step.ended
        assert len(rows) == len(known) <= batch.rows * (RESTS + 1)
    # Most end once; a request that was away for longer begins another text.
    assert REQUESTS // 2 < begun < 2 * batch.started and begun == len(ended) + len(known)


def test_a_row_with_another_request_is_another_text() -> None:
    rows = Rows()
    [first] = rows.follow([[3]], *arrays([1, 2, 3])).texts
    [second] = rows.follow([[4]], *arrays([2, 2, 3, 4])).texts
    assert first is not None and second is not None and second.text_id != first.text_id
    assert (second.prompt_tokens, second.tokens(), first.tokens()) == (3, [2, 2, 3, 4], [1, 2, 3])


def test_rows_that_change_places_keep_their_texts() -> None:
    rows = Rows()
    before = rows.follow([[3], [6]], *arrays([1, 2, 3], [4, 5, 6])).texts
    after = rows.follow([[7, 8], [9]], *arrays([4, 5, 6, 7, 8], [1, 2, 3, 9])).texts
    assert after == [before[1], before[0]]


def test_a_text_that_moved_is_not_also_in_the_row_that_it_left() -> None:
    rows = Rows()
    [_, moved] = rows.follow([[9], [2]], *arrays([9], [1, 2])).texts
    [first, second] = rows.follow([[3], [4]], *arrays([1, 2, 3], [1, 2, 3, 4])).texts
    assert first is moved and second is not moved


def test_two_requests_with_one_text_are_two_texts() -> None:
    rows = Rows()
    before = rows.follow([[3], [3]], *arrays([1, 2, 3], [1, 2, 3])).texts
    after = rows.follow([[4], [5]], *arrays([1, 2, 3, 4], [1, 2, 3, 5])).texts
    assert before[0] is not before[1] and set(map(id, after)) == set(map(id, before))


def test_a_text_is_ended_only_after_some_calls_without_its_row() -> None:
    rows = Rows()
    [text] = rows.follow([[3]], *arrays([1, 2, 3])).texts
    for _ in range(RESTS - 1):
        assert rows.follow([[]], *arrays([7, 7])).ended == []
    [again] = rows.follow([[4]], *arrays([1, 2, 3, 4])).texts
    assert again is text
    ends = [rows.follow([[]], *arrays([7, 7])).ended for _ in range(RESTS)]
    assert ends == [[]] * (RESTS - 1) + [[text]] and len(rows) == 0


def test_a_row_whose_beginning_is_another_moved_here_is_compared_as_a_whole() -> None:
    """Equal ends and equal lengths: only the first token tells them apart."""
    rows, long = Rows(), [5] * (COMPARED + 2)
    width = COMPARED + 8
    begun = rows.follow([[5], [5]], *arrays([1, *long], [2, *long], width=width)).texts
    moved = rows.follow([[], [6]], *arrays([0], [2, *long, 6], width=width)).texts
    assert moved[1] is begun[1]
    back = rows.follow([[7], []], *arrays([1, *long, 7], [0], width=width)).texts
    assert back[0] is begun[0]


def test_the_end_of_all_leaves_nothing() -> None:
    rows = Rows()
    [text] = rows.follow([[3]], *arrays([1, 2, 3])).texts
    assert rows.end_all() == [text] and len(rows) == 0 and rows.end_all() == []
