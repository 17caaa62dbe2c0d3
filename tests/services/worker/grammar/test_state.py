"""Where a text stands in its grammar: nothing of a rejected draft is left, each row has the mask of its own path."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from services.api import draft_tree as tree
from services.streamer.agents.grammars import choice, json_schema, regex
from services.worker.grammar.compiled import Grammars
from services.worker.grammar.state import GrammarState, RowMasks

pytestmark = pytest.mark.model

PERSON = json_schema(
    {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
)
END = 2  # <|im_end|>
ENDS = frozenset({END})
Ids = Callable[[str], list[int]]


def state(grammars: Grammars, grammar: str, text: list[int] | None = None) -> GrammarState:
    made = GrammarState(grammar, grammars, ENDS)
    made.commit(text or [])
    return made


def allowed(masks: RowMasks, row: int = 0) -> list[int]:
    assert masks.known[row]
    return np.flatnonzero(np.unpackbits(masks.bits[row].view(np.uint8), bitorder="little")).tolist()


def test_each_row_of_a_chain_has_the_mask_behind_its_token(grammars: Grammars, ids_of: Ids) -> None:
    text = ids_of('{"name": "Bob", "age": 31}')
    masks = state(grammars, PERSON).masks(text, [])
    assert masks.known.all() and masks.follows.all()
    for row in range(len(text) + 1):
        alone = state(grammars, PERSON, text[:row]).masks([], [])
        assert np.array_equal(masks.bits[row], alone.bits[0])
    assert allowed(masks, len(text)) == [END]


def test_a_rejected_draft_leaves_nothing_behind(grammars: Grammars, ids_of: Ids) -> None:
    """What others got wrong: a grammar that was advanced by tokens that were rejected."""
    text, draft = ids_of('{"name": "Bob",'), ids_of(' "age": 31}')
    kept = state(grammars, PERSON, text)
    before = kept.masks([], [])
    kept.masks(draft, [])
    kept.masks(draft[:2], [])
    assert np.array_equal(kept.masks([], []).bits, before.bits)
    kept.commit(draft[:2])
    assert np.array_equal(kept.masks([], []).bits, state(grammars, PERSON, text + draft[:2]).masks([], []).bits)


@pytest.mark.parametrize("committed", [False, True], ids=["tree", "chain"])
def test_the_mask_of_a_rejected_draft_is_not_that_of_another_text_of_its_length(
    grammars: Grammars, ids_of: Ids, committed: bool
) -> None:
    """A list and an object: what follows a quote differs, and the library's lexer is in the same state."""
    text, a_list, an_object = ids_of('{"a":'), ids_of(' ["'), ids_of(' {"')
    assert len(a_list) == len(an_object) == 1
    kept = state(grammars, json_schema({"type": "object"}), text)
    if committed:
        kept.masks(a_list, [])
        kept.commit(an_object)
        found = kept.masks([], []).bits[0]
    else:
        found = kept.masks(a_list + an_object, [-1, -1]).bits[2]
    alone = state(grammars, json_schema({"type": "object"}), text + an_object)
    assert np.array_equal(found, alone.masks([], []).bits[0])


def test_rows_behind_a_forbidden_token_are_not_computed(grammars: Grammars, ids_of: Ids) -> None:
    draft = [*ids_of('{"name"'), *ids_of("!"), *ids_of(": ")]
    masks = state(grammars, PERSON).masks(draft, [])
    forbidden = len(ids_of('{"name"'))
    assert masks.follows.tolist() == [place < forbidden for place in range(len(draft))]
    assert masks.known.tolist() == [row <= forbidden for row in range(len(draft) + 1)]


def test_the_end_comes_where_the_grammar_may_end_and_nothing_follows_it(grammars: Grammars, ids_of: Ids) -> None:
    masks = state(grammars, choice(["yes", "yesterday"])).masks([*ids_of("yes"), END, 5, 6], [])
    assert END in allowed(masks, 1) and len(allowed(masks, 1)) > 1
    assert masks.follows.tolist() == [True, True, False, False]
    assert masks.known.tolist() == [True, True, False, False, False]


def test_behind_its_end_a_text_has_no_masks(grammars: Grammars, ids_of: Ids) -> None:
    ended = state(grammars, choice(["yes"]), [*ids_of("yes"), END])
    assert ended.ended and not ended.problem
    assert not ended.masks([5], []).known.any()
    ended.commit([7])
    assert not ended.problem


def test_ids_that_are_no_tokens_follow_nothing(grammars: Grammars) -> None:
    assert state(grammars, PERSON).masks([-1, 1 << 40, 49152], [-1, -1, -1]).follows.tolist() == [False] * 3


def test_branches_are_walked_each_from_its_own_root(grammars: Grammars, ids_of: Ids) -> None:
    one, other = ids_of('{"name"'), ids_of('{ "name')
    draft = one + other
    parents = [*range(-1, len(one) - 1), -1, *range(len(one), len(draft) - 1)]
    assert_as_chains(grammars, draft, parents)


def test_trees_at_random_have_the_masks_of_their_chains(grammars: Grammars, ids_of: Ids) -> None:
    chance = random.Random(7)
    words = [ids_of(word) for word in ('{"', "name", '":', ' "', "Bob", '",', "age", "1", "}", "{", '"', " ", "!")]
    for _ in range(30):
        draft, parents = [], []
        for place in range(chance.randint(1, 24)):
            draft.append(chance.choice(chance.choice(words)))
            parents.append(chance.randint(max(-1, place - 5), place - 1))
        assert_as_chains(grammars, draft, parents)


def assert_as_chains(grammars: Grammars, draft: list[int], parents: list[int]) -> None:
    masks = state(grammars, PERSON).masks(draft, parents)
    for place in range(len(draft)):
        path = [place]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        chain = state(grammars, PERSON).masks([draft[each] for each in path], [])
        assert masks.known[place + 1] == chain.known[-1] and masks.follows[place] == chain.follows[-1]
        assert np.array_equal(masks.bits[place + 1], chain.bits[-1])
    assert tree.depths(len(draft), parents)


def test_texts_of_one_grammar_share_no_place_in_it(grammars: Grammars, ids_of: Ids) -> None:
    first, second = state(grammars, PERSON), state(grammars, PERSON)
    before = allowed(second.masks([], []))
    first.commit(ids_of('{"name": "Bob'))
    assert allowed(second.masks([], [])) == before != allowed(first.masks([], []))


# One more token than its lexer can hold: what is behind "a" can't be computed.
TOO_MUCH = regex("(a?){300}" * 300)


def test_a_draft_that_reaches_a_limit_costs_the_text_nothing(grammars: Grammars, ids_of: Ids) -> None:
    (a,) = ids_of("a")
    kept = state(grammars, TOO_MUCH)
    before = kept.masks([], []).bits
    masks = kept.masks([a], [])
    assert masks.follows.tolist() == [True] and masks.known.tolist() == [True, False]
    assert not kept.problem and np.array_equal(kept.masks([], []).bits, before)


def test_a_text_that_reaches_a_limit_fails_alone_and_says_so(grammars: Grammars, ids_of: Ids) -> None:
    (a,) = ids_of("a")
    failed = state(grammars, TOO_MUCH, [a])
    assert not failed.masks([], []).known.any()
    assert "too many expressions" in failed.problem and not failed.broken
    other = state(grammars, TOO_MUCH)
    assert other.masks([], []).known.all() and not other.problem


def test_the_memory_of_a_lexer_is_bounded(
    grammars: Grammars, ids_of: Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.api.grammars.MOST_STATES", 300)
    (a,), (b,) = ids_of("a"), ids_of("b")
    chance = random.Random(1)
    growing = state(grammars, regex("(a|b)*a(a|b){17}"))
    for _ in range(400):
        growing.commit([chance.choice((a, b))])
        growing.masks([], [])
    assert "too many states: 300" in growing.problem and not growing.broken


def test_a_text_outside_its_grammar_is_the_servers_fault(grammars: Grammars, ids_of: Ids) -> None:
    for text in ("no", '{"name"no', '{"name": "Bob", "age": 31}}'):
        outside = state(grammars, PERSON, ids_of(text))
        assert outside.problem and outside.broken
    behind_its_end = state(grammars, choice(["yes"]), ids_of("yes no"))
    assert behind_its_end.problem and behind_its_end.broken
