"""The best of all sources by what stood before; and what is learned of each, also of those that aren't chosen."""

from __future__ import annotations

import random

import pytest
from asking import asks, drafters, guess, index_of, say, texts, view

from services.api.drafter import MAX_DRAFT_TOKENS, NO_DRAFT, Text
from services.proposer.auto import AutoDrafter
from services.proposer.fast import compiling
from services.proposer.fast.drafting import chances
from services.proposer.fast.texts import FastTexts
from services.proposer.native import Doubles

pytestmark = pytest.mark.usefixtures("compiled")

# Share of a guess that a prediction is sure of.
SURE = 0.95


def auto(held: FastTexts | None = None) -> AutoDrafter:
    return AutoDrafter(index_of(texts() if held is None else held))


def table(held: FastTexts, name: str = "all") -> Doubles:
    """What is known of each source; of all together it is another part."""
    namespace = held.namespaces.get(name)
    assert namespace is not None
    return namespace.chances[: chances.AGREEMENT_AT]


def of_prediction(held: FastTexts, length: int) -> float:
    rate: float = chances.rate_of(table(held), chances.cell_of(chances.PREDICTION, length, SURE))
    return rate


def followed(drafter: AutoDrafter, one: Text, truth: list[int], step: int = 3) -> None:
    for at in range(0, len(truth), step):
        say(drafter, one, truth[at : at + step], 16)


def noise(seed: int, count: int) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(10**6) for _ in range(count)]


def test_a_draft_goes_on_as_long_as_there_is_hope_and_names_its_source() -> None:
    said = noise(1, 200)
    draft = guess(auto(), view(1, [*said, *said[:20]]), 1000)
    assert draft.source in ("suffix", "ngram")
    assert draft.tokens == said[20 : 20 + len(draft.tokens)]
    assert 20 < len(draft.tokens) <= MAX_DRAFT_TOKENS == 64
    assert len(draft.confidence) == len(draft.tokens)
    assert all(0 < chance <= 1 for chance in draft.confidence)


def test_what_never_came_before_is_not_guessed() -> None:
    assert guess(auto(), view(1, noise(2, 100))) == NO_DRAFT


def test_a_prediction_that_comes_true_is_believed_more_and_more_and_one_that_doesnt_less_and_less() -> None:
    for is_true in (True, False):
        drafter = auto(held := texts())
        before = of_prediction(held, 1)
        for number in range(60):
            truth = noise(number, 30)
            one = view(number + 1, [1], 1, "all", truth if is_true else noise(1000 + number, 30))
            guess(drafter, one)
            followed(drafter, one, truth)
            drafter.forget([number + 1])
        after = of_prediction(held, 1)
        assert (before < after > 0.97) if is_true else (after < 0.05)


def test_what_was_learned_is_forgotten_when_it_is_no_longer_so() -> None:
    drafter = auto(held := texts())
    for number in range(200):
        truth, is_true = noise(number, 9), 60 <= number < 120
        guess(drafter, one := view(number + 1, [1], 1, "all", truth if is_true else noise(1000 + number, 9)))
        followed(drafter, one, truth)
        drafter.forget([number + 1])
        if number in (59, 119, 199):
            assert (of_prediction(held, 1) > 0.5) == (number == 119)


def test_sources_that_are_not_chosen_are_learned_of_too() -> None:
    """Nothing is ever drafted: the budget is 0, or the text comes too soon; still nothing is asked twice."""
    drafter = auto(held := texts())
    said = noise(3, 40)
    one = view(1, [*said, *said[:10]], 50, "all", said)
    draft = guess(drafter, one, 8)
    before = table(held).copy()
    say(drafter, one, said[10:14], 8)
    seen = (table(held) != before).any(axis=1).reshape(chances.SOURCES, -1).any(axis=1)
    sources = {chances.OWN, chances.NGRAM, chances.PREDICTION}
    assert {source for source in range(chances.SOURCES) if seen[source]} == sources
    # The prediction begins anew, and was wrong at its first token.
    assert draft.tokens[:4] == said[10:14]


def test_where_the_text_ended_nothing_is_learned_until_it_goes_on() -> None:
    drafter = auto(held := texts())
    one = view(1, [1], 1, "all", list(range(100, 120)))
    guess(drafter, one, 8)
    before = table(held)[:, chances.SEEN].sum()
    guess(drafter, one, 8)
    assert table(held)[:, chances.SEEN].sum() == before == 0
    say(drafter, one, [100, 101], 8)
    assert table(held)[:, chances.SEEN].sum() == pytest.approx(2, abs=0.02)
    say(drafter, one, [7], 8)
    # Wrong tokens are one; those behind it say nothing.
    assert 2.9 < table(held)[:, chances.SEEN].sum() < 4.1


def test_a_guess_behind_what_is_ahead_counts_if_that_stood_and_not_otherwise() -> None:
    for stood in (True, False):
        drafter = auto(held := texts())
        one = view(1, [1], 1, "all", list(range(100, 140)))
        first = guess(drafter, one, 4)
        guess(drafter, one, 4, first.tokens)
        assert first.tokens == [100, 101, 102, 103]
        say(drafter, one, [*(first.tokens if stood else [100, 7, 7, 7]), 104, 105], 4)
        seen = table(held)[:, chances.SEEN].sum()
        assert seen == pytest.approx(6 if stood else 2, abs=0.2)


def test_texts_of_nobodys_namespace_learn_for_themselves_alone() -> None:
    drafter = auto(held := texts())
    for number in range(40):
        one = view(number + 1, [1], 1, "", noise(number, 30))
        first = guess(drafter, one)
        assert first.confidence == pytest.approx(guess(auto(), view(1, [1], 1, "", noise(number, 30))).confidence)
        followed(drafter, one, noise(500 + number, 30))
    assert len(held.namespaces) == 0


def test_while_the_loops_are_compiled_every_method_drafts_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    made = drafters()
    one = view(1, [1, 2, 3, 1, 2], 5, "all", [3])
    monkeypatch.setattr(compiling, "is_compiled", lambda: False)
    meanwhile = {name: drafter.draft(asks([one], [4])) for name, drafter in made.items()}
    monkeypatch.undo()
    for name, drafter in made.items():
        drafts = drafter.draft(asks([one], [4]))
        assert drafts == meanwhile[name]
        assert (drafts[0].tokens[:1] == [3]) == (name != "naive"), name


def test_chances_tell_how_often_guesses_stand() -> None:
    """On text that half repeats itself, what is claimed of first tokens is what is seen."""
    chance = random.Random(9)
    phrases = [[chance.randrange(500) for _ in range(12)] for _ in range(30)]
    drafter, claimed, stood = auto(), 0.0, 0
    for number in range(30):
        one = view(number + 1, [1], 1, "all")
        for _ in range(25):
            phrase = [token if chance.random() < 0.9 else chance.randrange(500) for token in chance.choice(phrases)]
            for token in phrase:
                draft = guess(drafter, one, 8)
                if draft.tokens and number >= 10:
                    claimed += draft.confidence[0]
                    stood += draft.tokens[0] == token
                one.tokens.append(token)
        drafter.forget([number + 1])
    assert stood > 1000 and abs(claimed / stood - 1) < 0.1


def test_where_one_source_ends_another_goes_on() -> None:
    drafter = auto()
    say(drafter, view(1, [1], 1, "all"), [20, 21, 22])
    draft = guess(drafter, view(2, [1], 1, "all", [5, 6, 7, 8, 20]), 16)
    assert draft.tokens == [5, 6, 7, 8, 20, 21, 22]
    assert draft.source == "prediction"


def test_what_two_sources_expect_is_likelier_than_what_they_contradict_each_other_in() -> None:
    """The namespace says 11 behind 10. What is predicted is that, which comes true, or something else: then neither is
    often right."""
    drafter, chance = auto(), random.Random(4)
    claimed: dict[bool, list[float]] = {True: [], False: []}
    for number in range(400):
        agrees = chance.random() < 0.5
        one = view(number + 1, [1], 1, "all", [10, 11 if agrees else 500 + number])
        draft = say(drafter, one, [10], 1)
        if number >= 200 and draft.tokens == [11]:
            claimed[agrees] += draft.confidence
        say(drafter, one, [11 if agrees or chance.random() < 0.4 else 9000 + number])
        drafter.forget([number + 1])
    together, apart = (sum(each) / len(each) for each in (claimed[True], claimed[False]))
    assert together > 0.9 and apart < 0.6, (together, apart)


def test_a_source_that_was_never_right_is_listened_to_again_when_it_is() -> None:
    """Its tokens aren't drafted any more; still they are compared."""
    drafter = auto()
    for number in range(900):
        truth, is_true = noise(number, 4), number >= 600
        one = view(number + 1, [1], 1, "all", truth if is_true else noise(5000 + number, 4))
        draft = guess(drafter, one, 4)
        if number == 599:
            assert draft == NO_DRAFT
        say(drafter, one, truth)
        drafter.forget([number + 1])
    assert len(draft.tokens) == 4


# Asked twice --------------------------------------------------------------------------------------------------


def test_what_was_said_first_of_a_place_counts_however_often_it_is_asked_about() -> None:
    said = noise(4, 60)
    once, often, never = texts(), texts(), texts()
    guess(auto(never), view(1, [1], namespace="all"))
    for drafter, times in ((auto(once), 1), (auto(often), 3)):
        one = view(1, said, namespace="all")
        for token in [*said[:30], *noise(5, 3), *said[33:60]]:
            for _ in range(times):
                guess(drafter, one, 8)
            one.tokens.append(token)
        guess(drafter, one, 8)
    assert (table(once) == table(often)).all()
    assert (table(once) != table(never)).any()
