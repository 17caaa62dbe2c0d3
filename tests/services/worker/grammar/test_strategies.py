"""Whatever is drafted, and however it is verified: no token leaves the grammar, and where nothing may follow a text its
request alone fails."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from any_model import END, SIZE, TOKENIZER, AnyModel
from driving import Guess, Outcome, request, run_all

from services.api.drafter import Draft
from services.api.grammars import read_vocabulary, started
from services.api.messages import Generate
from services.api.strategies import STRATEGIES, Verification
from services.streamer.agents.grammars import choice, json_schema, lark, regex
from services.worker.grammar.compiled import Grammars
from services.worker.grammar.state import GrammarState, RowMasks
from services.worker.running.torch_runner import TorchRunner
from services.worker.scheduling.sequence import Sequence

GRAMMARS = [
    regex("[a-e]{2,9}"),
    regex("(the|cat|sat)( (on|mat|hat))*"),
    choice(["the cat", "the mat", "sat on the hat", "a"]),
    lark('start: "(" start ")" | "cat" | "hat"'),
    json_schema({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}),
]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("small") / "tokenizer.json"
    TOKENIZER.save(str(path))
    return path


@pytest.fixture(scope="module")
def runner(file: Path) -> TorchRunner:
    return TorchRunner(AnyModel(), grammars=Grammars(file, SIZE, (END,)))


class Walks:
    """Texts that are and that are not in a grammar, by a matcher of its own."""

    def __init__(self, file: Path) -> None:
        self._vocabulary = read_vocabulary(file, SIZE, (END,))

    def holds(self, grammar: str, ids: list[int]) -> bool:
        return started(self._vocabulary, grammar).consume_tokens(ids)

    def draft(self, chance: random.Random, grammar: str, text: list[int], budget: int) -> list[int]:
        """Mostly in the grammar."""
        matcher = started(self._vocabulary, grammar)
        if not matcher.consume_tokens(text):
            return []
        found: list[int] = []
        for _ in range(chance.randint(0, budget)):
            bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
            allowed = np.flatnonzero(np.unpackbits(bits, bitorder="little")[:SIZE]).tolist()
            if chance.random() < 0.15 or not allowed:
                return [*found, *(chance.randrange(SIZE) for _ in range(2))]
            found.append(chance.choice(allowed))
            if not matcher.consume_token(found[-1]):
                return found
        return found


@pytest.fixture(scope="module")
def walks(file: Path) -> Walks:
    return Walks(file)


def chains(walks: Walks, seed: int) -> Guess:
    def guess(sequence: Sequence, budget: int) -> Draft:
        chance = random.Random(f"{seed} {sequence.sequence_id} {sequence.length}")
        text = sequence.token_ids[sequence.prompt_tokens :]
        return Draft(walks.draft(chance, sequence.sampling.grammar, text, budget)[:budget], "t")

    return guess


def drawn(walks: Walks, seed: int) -> Guess:
    """With probabilities, of a drafter that knows no grammar."""

    def guess(sequence: Sequence, budget: int) -> Draft:
        made = chains(walks, seed)(sequence, budget)
        assert isinstance(made, Draft)
        probs = np.random.default_rng(sequence.length).dirichlet(np.ones(SIZE) / 4, len(made.tokens))
        return Draft(made.tokens, "t", probs=probs.astype(np.float32)) if made.tokens else made

    return guess


def trees(walks: Walks, seed: int) -> Guess:
    def guess(sequence: Sequence, budget: int) -> Draft:
        chance = random.Random(f"{seed} {sequence.sequence_id} {sequence.length}")
        text = sequence.token_ids[sequence.prompt_tokens :]
        tokens: list[int] = []
        parents: list[int] = []
        for _ in range(3):
            branch = walks.draft(chance, sequence.sampling.grammar, text, budget)[: budget - 1]
            parents += [-1, *range(len(tokens), len(tokens) + len(branch) - 1)][: len(branch)]
            tokens += branch
        return Draft(tokens, "t", parents=parents) if tokens else Draft([])

    return guess


def wanted(seed: int, **more: Any) -> list[Generate]:
    return [
        request(
            [5, 6], name=str(place), grammar=grammar, seed=seed + place, method="ngram",
            **{"max_tokens": 24, **more},
        )
        for place, grammar in enumerate(GRAMMARS)
    ]  # fmt: skip


@pytest.mark.parametrize("drafts", [chains, drawn, trees])
@pytest.mark.parametrize("accept_policy", ["normal", "accept_all", "reject_all"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("both", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_no_token_leaves_the_grammar(
    runner: TorchRunner, walks: Walks, both: bool, strategy: str, temperature: float, accept_policy: str, drafts: Any
) -> None:
    """With one seed, or with both."""
    verification = Verification(strategy=strategy, accept_policy=accept_policy)
    accepted = 0
    for seed in (0, 10) if both else (10 * list(STRATEGIES).index(strategy),):
        asked = wanted(seed, temperature=temperature)
        outcomes, scheduler = run_all(
            runner, asked, drafts(walks, seed), verification=verification, allow_lossy=True
        )
        for each, outcome in zip(asked, outcomes, strict=True):
            assert outcome.finished.reason in ("stop", "length")
            assert walks.holds(each.sampling.grammar, outcome.ids), TOKENIZER.decode(outcome.ids)
        accepted += sum(tally.accepted for tally in scheduler.tallies.values())
    assert (accepted > 0) == (accept_policy != "reject_all")


# Beside a grammar, or alone -----------------------------------------------------------------------------------


def ids(text: str) -> list[int]:
    return [TOKENIZER.token_to_id(each) for each in text]


LEAVES_NOTHING: list[tuple[dict[str, Any], str]] = [
    ({"grammar": regex("[a-e]{3,9}"), "allowed_token_ids": ids("xyz")}, "its grammar and allowed_token_ids"),
    ({"grammar": regex("[ab]{3,9}"), "bad_words": [ids("a"), ids("b")]}, "its grammar and bad_words"),
    ({"grammar": regex("[a-e]{4,9}"), "allowed_token_ids": ids("ab"), "bad_words": [ids("aa"), ids("ab"), ids("bb")]},
     "its grammar, allowed_token_ids and bad_words"),
    ({"grammar": lark('start: "b" "a" "a" "c"'), "bad_words": [ids("aa")], "min_tokens": 9},
     "its grammar and bad_words"),
    ({"allowed_token_ids": ids("ab"), "bad_words": [ids("aa"), ids("ab"), ids("bb")]},
     "allowed_token_ids and bad_words"),
    ({"allowed_token_ids": [*ids("a"), END], "bad_words": [ids("aa")], "min_tokens": 4},
     "allowed_token_ids, bad_words and min_tokens"),
]  # fmt: skip


def end_of(outcome: Outcome) -> tuple[Any, ...]:
    return outcome.ids, outcome.end.reason, getattr(outcome.end, "message", "")


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(("fields", "named"), LEAVES_NOTHING)
def test_parameters_that_leave_no_token_fail_their_request_alone_at_the_same_place(
    runner: TorchRunner, fields: dict[str, Any], named: str, temperature: float
) -> None:
    """With drafts as without, behind the same tokens; the prompt's pages are still found by others."""
    prompt = [5, 6, 7, 8, 9, 10, 11, 12, 13]

    def run(guess: Guess | None) -> list[tuple[Any, ...]]:
        asked = [
            request(prompt, name="bad", max_tokens=20, temperature=temperature, seed=3, **fields),
            request(prompt, name="mate", max_tokens=20, temperature=temperature, seed=4, grammar=GRAMMARS[0]),
        ]
        outcomes, scheduler = run_all(runner, asked, guess)
        assert scheduler.pages.cached >= len(prompt) // runner.facts.page_tokens
        return [end_of(each) for each in outcomes]

    bad, mate = run(None)
    assert bad[1] == "invalid" and named in bad[2] and "no token" in bad[2] and mate[1] == "stop"
    for draft in (bad[0], [*bad[0], *ids("ab")], ids("aaaaaa"), ids("bababa")):
        assert run(lambda sequence, budget, draft=draft: draft[sequence.generated :][:budget]) == [bad, mate]


def test_a_bad_word_may_end_a_grammar_but_not_keep_it_from_ending(runner: TorchRunner) -> None:
    """As ignore_eos and min_tokens: where nothing but the end may follow, the text ends."""
    asked = [
        request(grammar=lark('start: "a"'), bad_words=[[END]], max_tokens=9),
        request(grammar=regex("a{1,9}"), bad_words=[ids("a" * 2)], min_tokens=8, max_tokens=9),
    ]
    first, second = run_all(runner, asked)[0]
    assert (first.ids, first.finished.reason) == (second.ids, second.finished.reason) == (ids("a"), "stop")


def test_a_fault_of_the_library_fails_its_request_alone(runner: TorchRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    class Panic(BaseException):
        """As the library's are."""

    masks = GrammarState.masks

    def fail(state: GrammarState, draft: list[int], parents: list[int]) -> RowMasks:
        if state._grammar == GRAMMARS[0]:
            raise Panic
        return masks(state, draft, parents)

    monkeypatch.setattr(GrammarState, "masks", fail)
    first, second = run_all(runner, wanted(3)[:2])[0]
    assert (first.ids, first.end.reason, first.end.message) == ([], "engine", "its grammar failed")
    assert second.finished.reason in ("stop", "length") and second.ids
