"""A step as a value: what its properties say, and that it comes back from bytes as it was."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from driving import new_sequence, request

from services.api.drafter import Draft
from services.api.prompt_columns import PromptColumns
from services.api.strategies import Verification
from services.worker.running.replay import Step, decoded, encoded
from services.worker.running.work import Logprob, Result, SequenceWork, TopId, Verdict, Work, size_of

CHAIN = Draft([8, 9], "ngram", 3, confidence=[0.5, 0.25])
TREE = Draft([8, 9, 4], "suffix", parents=[-1, -1, 0])


def test_positions_and_rows_of_an_item() -> None:
    item = SequenceWork(1, [5, 6, 7], 10, [0], True, CHAIN)
    assert (item.rows, item.position) == (5, 13)
    assert (SequenceWork(1, [5], 10, [0], True).rows, SequenceWork(1, [5], 10, [0], True).position) == (1, 11)


@pytest.mark.parametrize(
    ("items", "size"),
    [
        ([], (0, 0)),
        ([SequenceWork(1, [5], 10, [], True)], (1, 11)),
        ([SequenceWork(1, [5], 10, [], True, CHAIN), SequenceWork(2, [1, 2], 0, [], False)], (5, 15)),
        # Each of the two branches looks at the text.
        ([SequenceWork(1, [5], 10, [], True, TREE)], (4, 28)),
    ],
)
def test_the_size_of_a_step(items: list[SequenceWork], size: tuple[int, int]) -> None:
    assert size_of(items) == size


@pytest.mark.parametrize(
    ("item", "first"),
    [
        (SequenceWork(1, [4, 5, 6], 0, [0], False), 3),
        (SequenceWork(1, [4, 5, 6], 0, [0], True), 2),
        (SequenceWork(1, [4, 5, 6], 0, [0], True, scored=[5, 6]), 0),
        (SequenceWork(1, [4, 5, 6], 0, [0], True, pooled=2), 1),
        (SequenceWork(1, [4, 5, 6], 0, [0], False, pooled=3), 0),
        # After a preemption the first row was scored before.
        (SequenceWork(1, [4, 5, 6], 0, [0], False, scored=[6, 7]), 1),
    ],
)
def test_rows_that_score_verify_or_are_pooled_go_to_the_end_of_the_model(item: SequenceWork, first: int) -> None:
    assert item.logits_from == first


def a_step() -> Step:
    """With all there can be in one, but for probabilities."""
    sampling: dict[str, Any] = {
        "temperature": 0.7, "seed": 2**63 - 1, "logit_bias": {7: -1.5}, "bad_words": [[1, 2]], "logprobs": 2,
    }  # fmt: skip
    new = new_sequence(request([1, 2, 3], so_far=[4], **sampling), Verification("typical", typical_delta=0.4))
    new.drafter = "eagle3"
    items = [
        SequenceWork(1, [1, 2, 3, 4], 0, [7, 9], True, next_budget=4),
        SequenceWork(2, [5], 10, [1, 2], True, CHAIN),
        SequenceWork(3, [5], 10, [3], True, TREE),
        SequenceWork(4, [5, 6], 0, [4], False),
        SequenceWork(5, [5, 6], 0, [4], False, scored=[6, 7]),
    ]
    logprobs = [Logprob(-0.5, [TopId(9, -0.25)])]
    verdicts = [Verdict([9], 0, logprobs), Verdict([8, 9, 1], 2), Verdict([], 0, failure="not finite"), None, None]
    scores = {5: PromptColumns(begin=1, count=0, logprobs=bytes(8), ranks=bytes(8))}
    return Step(Work(items, [new], [11, 12], [(3, 4)]), Result(verdicts, 0.125, scores))


def test_a_step_survives_encoding_and_decoding() -> None:
    step = a_step()
    assert decoded(encoded(step)) == step
    assert decoded(encoded(Step(Work(), Result([])))) == Step(Work(), Result([]))


@pytest.mark.parametrize("kind", ["numpy", "torch", "bfloat16", "a view", "no rows"])
def test_probabilities_of_drafts_come_back_on_either_side(kind: str) -> None:
    rows = np.linspace(0, 1, 20, dtype=np.float32).reshape(2, 10)
    given: Any = {
        "numpy": rows, "torch": torch.from_numpy(rows), "bfloat16": torch.from_numpy(rows).bfloat16(),
        "a view": np.asfortranarray(rows), "no rows": rows[:0],
    }[kind]  # fmt: skip
    expected = np.asarray(given.float() if isinstance(given, torch.Tensor) else given, np.float32)
    step = a_step()
    step.work.items[1] = step.work.items[1]._replace(draft=CHAIN._replace(probs=given))
    again = decoded(encoded(step))
    draft = again.work.items[1].draft
    assert draft.probs.dtype == np.float32 and np.array_equal(draft.probs, expected)
    assert again.work.items[1].draft.tokens == [8, 9] and again.work.items[2] == step.work.items[2]


@pytest.mark.parametrize(
    "probs",
    [
        5,
        {"type": "probs"},
        {"type": "probs", "width": 3, "rows": b"12345678"},
        {"type": "probs", "width": 0, "rows": b""},
        [[0.5]],
    ],
    ids=str,
)
def test_invalid_probabilities_are_refused(probs: Any) -> None:
    frame = msgspec.msgpack.decode(encoded(a_step()))
    *draft, _ = frame["work"]["items"][1][SequenceWork._fields.index("draft")]
    frame["work"]["items"][1][SequenceWork._fields.index("draft")] = [*draft, probs]
    with pytest.raises(ValueError):
        decoded(msgspec.msgpack.encode(frame))
