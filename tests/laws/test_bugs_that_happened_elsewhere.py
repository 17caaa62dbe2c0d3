"""Bugs that other servers' speculation really had, each with a test under its name.

Here are those that only show between scheduler, sampler, runner and verification, around models whose logits are
made by hand; ELSEWHERE names the tests of those that show at one place alone.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_room import Ask, EngineRoom, draft

from kernels.verify.questions import BLOCK, MATCH, REJECTION, TOPP, TYPICAL, Asked, Rule, gather
from models.executor import Output
from services.api.drafts import PlacedDraft
from services.worker.running.mock import BRANCH_PAGES
from services.worker.running.runner import Facts
from services.worker.running.torch_runner import TorchRunner
from services.worker.running.verifier import verifier

ELSEWHERE = {
    "stop string inside an accepted run: text trimmed, ids and logprobs not": [
        "services/streamer/door/test_http.py"
        "::test_a_stop_string_inside_an_accepted_run_trims_text_ids_and_logprobs_at_one_place",
        "services/streamer/choice/test_delivery.py"
        "::test_a_stop_string_inside_an_accepted_run_trims_text_ids_and_logprobs_together",
    ],
    "EOS inside an accepted run": [
        "services/worker/scheduling/test_scheduler.py::test_eos_inside_an_accepted_run_ends_the_text_before_it",
        "services/worker/scheduling/test_scheduler.py::test_logprobs_are_cut_with_the_tokens",
    ],
    "draft past max_tokens or the context limit": [
        "services/worker/scheduling/test_scheduler.py::test_a_draft_is_cut_to_what_is_allowed",
        "services/worker/scheduling/test_scheduler.py::test_a_draft_that_reaches_the_end_of_the_context_ends_the_text",
        "services/worker/scheduling/test_scheduler.py::test_a_run_longer_than_max_tokens_is_cut",
    ],
    "empty drafts and drafted ids outside the vocabulary": [
        "services/worker/speculation/test_controller.py::test_invalid_drafts_are_refused_and_change_nothing",
        "kernels/verify/test_reference.py::test_what_is_no_token_never_stands",
    ],
    "collapse of long texts that 48 tokens don't show": [
        "services/worker/running/test_torch_runner.py::test_texts_of_512_tokens_show_no_collapse_that_48_would_hide",
    ],
}


@pytest.mark.parametrize("bug", ELSEWHERE)
def test_each_bug_found_elsewhere_names_its_test(bug: str) -> None:
    for place in ELSEWHERE[bug]:
        path, _, name = place.partition("::")
        tree = ast.parse((Path(__file__).parents[1] / path).read_text())
        assert any(isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name == name for each in tree.body)


# Models whose logits are made by hand --------------------------------------------------------------------

V, EOS = 60, 0


class ByLastToken:
    """Logits that depend on the last token only: what a model needs of its pages is then nothing."""

    elsewhere = feeds = False

    def __init__(self, logits: Callable[[int], torch.Tensor]) -> None:
        self.facts = Facts(V, 512, (EOS,), 16, 256, branch_pages=BRANCH_PAGES)
        self.verifier = verifier("compiled")
        self._logits = cache(logits)

    def forward(self, rows: Any, given: Any = None) -> Output:
        wanted = [self._logits(token) for row in rows for token in row.tokens[row.logits_from :]]
        return Output(torch.stack(wanted) if wanted else torch.empty(0, V))

    def copy_page(self, source: int, target: int) -> None: ...


def any_logits(last: int) -> torch.Tensor:
    return torch.randn(V, generator=torch.Generator().manual_seed(last)) * 1.5


def counting_up(last: int) -> torch.Tensor:
    """The next number of 1..19 in a circle, then the one after it. Behind 3 the end is likelier than both."""
    logits = torch.zeros(V)
    logits[last % 19 + 1], logits[(last + 1) % 19 + 1] = 9.0, 8.0
    logits[EOS] = 12.0 if last == 3 else -5.0
    return logits


def always_the_same(last: int) -> torch.Tensor:
    return 4.0 - 0.1 * torch.arange(V).float()


@contextmanager
def room(logits: Callable[[int], torch.Tensor], guess: Callable[[Ask], list[int]] | None) -> Iterator[EngineRoom]:
    def items(ask: Ask) -> PlacedDraft | None:
        tokens = guess(ask)[: ask.budget] if guess else []
        return draft(ask, tokens) if tokens else None

    with EngineRoom(TorchRunner(ByLastToken(logits)), items if guess else None) as running:
        yield running
        assert not running.failures and not running.drafts.failed


def texts(
    logits: Callable[[int], torch.Tensor],
    wanted: list[dict[str, Any]],
    guess: Callable[[Ask], list[int]] | None = None,
    together: bool = True,
) -> tuple[list[list[int]], list[list[float]], list[Any]]:
    """Of each request its tokens, their logprobs and what was counted."""
    with room(logits, guess) as running:
        sequence_ids = []
        for each in wanted:
            sequence_ids.append(running.send(**each))
            if not together:
                running.run(sequence_ids)
        running.run(sequence_ids)
        stats = [running.ends[sequence_id][0].speculation for sequence_id in sequence_ids]
        return [running.tokens[s] for s in sequence_ids], [running.logprobs[s] for s in sequence_ids], stats


def oracle(wanted: list[dict[str, Any]], truth: list[list[int]]) -> Callable[[Ask], list[int]]:
    by_prompt = {tuple(each["prompt"]): text for each, text in zip(wanted, truth, strict=True)}

    def following(ask: Ask) -> list[int]:
        text = by_prompt[tuple(ask.text[: ask.prompt_tokens])]
        return text[ask.generated + len(ask.ahead) :]

    return following


# The bugs ------------------------------------------------------------------------------------------------


def test_an_accepted_count_of_0_is_no_index_of_minus_1() -> None:
    """Its token and logprobs would be those of the last row, of another place or of the sequence before it."""
    wanted = [
        {"prompt": [token, token + 1], "max_tokens": 30, "logprobs": 1, "temperature": t, "seed": token}
        for token, t in ((5, 0.0), (6, 0.9), (7, 0.0), (8, 0.9))
    ]
    plain, numbers, _ = texts(any_logits, wanted)
    right = oracle(wanted, plain)

    def right_or_wholly_wrong(ask: Ask) -> list[int]:
        # Of neighbours one is accepted whole and the next not at all.
        truth = right(ask)
        return truth if ask.id % 2 else [(token + 1) % V for token in truth]

    said, with_drafts, stats = texts(any_logits, wanted, right_or_wholly_wrong)
    assert said == plain
    assert with_drafts == numbers and all(len(each) == 30 for each in numbers)
    believed = [each.accepted for each in stats]
    assert sorted(believed)[:2] == [0, 0] and min(sorted(believed)[2:]) > 20
    assert all(each.drafted > 20 for each in stats)
    assert all(each.accepted_per_position == [] for each in stats if not each.accepted)


def test_seeds_are_not_shared_between_requests() -> None:
    """One generator for a whole batch gives a text that depends on who else is there."""
    wanted: list[dict[str, Any]] = [
        {"prompt": [7, 8, 9], "max_tokens": 40, "temperature": 1.0, "seed": seed} for seed in (1, 2, 3, 1, 2**32 + 1)
    ]
    alone, _, _ = texts(any_logits, wanted, together=False)
    assert alone[0] == alone[3] and len(set(map(tuple, alone))) == 4
    assert texts(any_logits, wanted)[0] == alone
    assert texts(any_logits, wanted[::-1])[0] == alone[::-1]
    # Steps of several tokens for some and of one for others: places in a text, not calls, draw the numbers.
    known = oracle(wanted[:1], alone[:1])
    said, _, stats = texts(any_logits, wanted, known)
    assert said == alone and stats[0].accepted > 30 and stats[1].accepted < 10


HELD_BACK: list[dict[str, Any]] = [
    # 20 is never said but drafted in each step: behind it, nothing of the circle may follow.
    {"bad_words": [[20, token] for token in range(1, 20)] + [[20, 20, token] for token in range(1, 20)]},
    # The end is likeliest behind each 3, and three tokens are drafted in each step.
    {"min_tokens": 40, "ignore_eos": False},
    {"allowed_token_ids": [*range(1, 20)], "min_tokens": 40, "stop_token_ids": [5]},
    {"allowed_token_ids": [EOS, *range(1, 20, 2)], "bad_words": [[20, 7], [1, 3], [19]]},
]


@pytest.mark.parametrize("held_back", HELD_BACK, ids=lambda held: "+".join(held))
def test_what_may_follow_is_not_advanced_by_rejected_drafts(held_back: dict[str, Any]) -> None:
    wanted = [{"prompt": [1, 2], "max_tokens": 60, **held_back}]
    plain, _, _ = texts(counting_up, wanted)
    said, _, [stats] = texts(counting_up, wanted, lambda ask: [20, 20, 20])
    assert said == plain
    assert stats.accepted == 0 and stats.drafted > 60
    # Nor behind the part of a draft that was accepted.
    right = oracle(wanted, plain)
    said, _, [stats] = texts(counting_up, wanted, lambda ask: [*right(ask)[:2], 20, 20, 20])
    assert said == plain and stats.accepted > 20
    text = plain[0]
    assert len(text) == 60 or len(text) >= held_back["min_tokens"]
    assert not {tuple(word) for word in held_back.get("bad_words", [])} & {*pairwise([2, *text]), *((t,) for t in text)}


PENALTIES: list[dict[str, Any]] = [
    {"presence_penalty": 1.0, "frequency_penalty": 0.3},
    {"repetition_penalty": 10.0},
    {"presence_penalty": 0.5, "temperature": 0.3, "seed": 5},
]


@pytest.mark.parametrize("penalty", PENALTIES, ids=lambda penalty: "+".join(penalty))
def test_penalties_count_by_position_and_not_by_step(penalty: dict[str, Any]) -> None:
    """Counted by step, every row of a draft would find the same token the likeliest."""
    wanted = [{"prompt": [50, 51], "max_tokens": 34, **penalty}]
    plain, _, _ = texts(always_the_same, wanted)
    assert len(set(plain[0][:8])) > 3
    said, _, [believed] = texts(always_the_same, wanted, oracle(wanted, plain))
    assert said == plain and believed.accepted == believed.drafted > 25
    # A drafter that thinks the penalties of a whole step are those of its first token.
    said, _, [refused] = texts(always_the_same, wanted, lambda ask: [plain[0][ask.generated]] * 8)
    assert said == plain and refused.accepted < refused.drafted / 3


STRATEGIES = (MATCH, REJECTION, BLOCK, TYPICAL, TOPP)


def a_tree(chance: random.Random, last: int, follow: Callable[[int, int], int]) -> tuple[list[int], list[int]]:
    """Guesses behind `last` with what follows them: of each place one that the model would say there, and decoys that
    come before it and have the longer continuations. `follow` is the model's word behind (token, depth)."""
    draft, parents, ends = [], [], [(0, last, 0)]
    while len(draft) < 24 and ends:
        row, token, depth = ends.pop(chance.randrange(len(ends)))
        word = follow(token, depth)
        for guess in [*chance.sample([t for t in range(V) if t != word], chance.randint(0, 2)), word]:
            draft.append(guess)
            parents.append(row)
            ends.append((len(draft), guess, depth + 1))
    return draft, parents


@pytest.mark.parametrize("name", ["plain", "compiled"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_trees_do_not_leave_the_argmax_path(strategy: int, name: str) -> None:
    """Behind a decoy, too, stands what the model would say behind it: only the way from the root tells them apart."""
    longest = 0
    for seed in range(30):
        chance = random.Random(seed)
        last = chance.randrange(V)
        draft, parents = a_tree(chance, last, lambda token, depth: int(any_logits(token).argmax()))
        logits = torch.stack([any_logits(token) for token in [last, *draft]])
        answers = verifier(name).verify(logits, gather([Asked(Rule(strategy=strategy), 9, draft, parents)], V))
        accepted = int(answers.accepted[0])
        tokens, rows = answers.tokens[: accepted + 1].tolist(), answers.rows[: accepted + 1].tolist()
        assert all(word == int(any_logits(token).argmax()) for token, word in pairwise([last, *tokens]))
        assert [draft[row - 1] for row in rows[1:]] == tokens[:-1]
        assert all(parents[row - 1] == before for before, row in pairwise(rows))
        # As far as it was drafted.
        assert not any(p == rows[-1] and d == tokens[-1] for p, d in zip(parents, draft, strict=True))
        longest = max(longest, accepted)
    assert longest >= 5


@pytest.mark.parametrize("name", ["plain", "compiled"])
def test_a_path_of_a_tree_that_is_not_the_argmax_path_gives_the_tokens_of_that_path(name: str) -> None:
    """A sampled request may accept the second guess: what follows comes from the row behind that one."""
    off_the_path = 0
    for seed in range(60):
        root = torch.full((V,), -30.0)
        root[[7, 8]] = torch.tensor([1.0, 0.6])
        behind_7, behind_8 = torch.full((V,), -30.0), torch.full((V,), -30.0)
        behind_7[17] = behind_8[18] = 5.0
        rows = torch.stack([root, behind_7, behind_8, behind_7, behind_8])
        # Guessed 7, then 8, and behind each what follows it.
        asked = Asked(Rule(temperature=1.0, seed=seed, strategy=REJECTION), 3, [7, 8, 17, 18], [0, 0, 1, 2])
        answers = verifier(name).verify(rows, gather([asked], V))
        assert int(answers.accepted[0]) == 2
        tokens, found = answers.tokens[:2].tolist(), answers.rows[:3].tolist()
        assert (tokens, found) in (([7, 17], [0, 1, 3]), ([8, 18], [0, 2, 4]))
        off_the_path += tokens == [8, 18]
    assert 10 < off_the_path < 50
